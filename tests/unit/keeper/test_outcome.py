"""From a wait status to a cause."""

from __future__ import annotations

import pytest

from agent.keeper.outcome import ENDINGS, Exit, cause_of_exit, signal_name


def cause(status: int, ending: str | None = None, *, was_oom: bool = False) -> str:
    return cause_of_exit(status, ending=ending, accepted=(75,), was_oom=was_oom)


@pytest.mark.parametrize(
    ("status", "expected"),
    [(0, "exit_zero"), (75 << 8, "accepted_exit"), (1 << 8, "exit_nonzero"), (9, "signal")],
)
def test_untouched_end_is_its_own(status: int, expected: str) -> None:
    assert cause(status) == expected


@pytest.mark.parametrize("ending", sorted(ENDINGS))
@pytest.mark.parametrize("status", [0, 75 << 8, 1 << 8, 9, 15])
def test_what_we_ended_is_never_a_success(status: int, ending: str) -> None:
    assert cause(status, ending) == ending


def test_kernel_s_record_explains_a_failure_but_not_a_success() -> None:
    assert cause(9, was_oom=True) == "oom"
    assert cause(137 << 8, was_oom=True) == "oom"
    assert cause(0, was_oom=True) == "exit_zero"


def test_kill_without_a_record_is_no_oom() -> None:
    assert cause(9) == "signal"


def test_exit_reads_signal_and_core() -> None:
    assert Exit.of_status(11 | 0x80) == Exit(exit_code=None, signal="SIGSEGV", has_core=True)
    assert Exit.of_status(3 << 8) == Exit(exit_code=3, signal=None, has_core=False)
    assert signal_name(40) == "SIG40"
