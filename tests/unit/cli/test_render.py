"""Tables and texts: aligned, within the width, and harmless."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.cli.render import (
    ago,
    fields,
    harmless,
    lasted,
    phase_of,
    size,
    span,
    table,
    visible,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_columns_are_aligned_and_trailing_blanks_are_left_out() -> None:
    text = table(("ID", "NAME"), [(1, "a"), (200, None)], columns=80, is_coloured=False)
    assert text == "ID   NAME\n1    a\n200"


def test_only_flexible_columns_are_cut_to_the_width() -> None:
    rows = [("key", "x" * 50, "y" * 50)]
    text = table(("A", "B", "C"), rows, flexible=("B", "C"), columns=60, is_coloured=False)
    line = text.splitlines()[1]
    assert len(line) <= 60
    assert line.startswith("key  x")
    assert line.count("…") == 2


def test_a_table_without_flexible_columns_is_never_cut() -> None:
    text = table(("A",), [("x" * 300,)], columns=20, is_coloured=False)
    assert "x" * 300 in text


def test_wide_characters_take_two_columns() -> None:
    text = table(("NAME", "N"), [("日本", 1), ("ab", 2)], columns=80, is_coloured=False)
    assert text == "NAME  N\n日本  1\nab    2"


def test_phases_are_coloured_only_when_asked() -> None:
    assert "\x1b[31mFailed\x1b[0m" in table(("P",), [("Failed",)], is_coloured=True)
    assert "\x1b" not in table(("P",), [("Failed",)], is_coloured=False)


@given(st.text(max_size=30), st.integers(12, 200))
def test_no_cell_can_move_the_cursor_or_add_a_line(text: str, columns: int) -> None:
    shown = table(("A", "B"), [(text, text)], flexible=("A",), columns=columns, is_coloured=False)
    assert len(shown.split("\n")) == 2
    assert all(line.isprintable() for line in shown.split("\n"))


def test_controls_are_written_out() -> None:
    assert visible("a\x1b[31m\n\x9b\u202e") == "a^[[31m^J\\x9b\\u202e"
    assert harmless("a\tb\r\n\x1b]0;x\x07") == "a\tb\r\n^[]0;x^G"


def test_fields_leave_out_what_is_not_there() -> None:
    assert fields([("a", 1), ("bcd", None), ("e", ""), ("f", False)]) == "a: 1\nf: no"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0s"),
        (9.94, "9.9s"),
        (59, "59s"),
        (60, "1m00s"),
        (3599, "59m59s"),
        (3600, "1h00m"),
        (90_061, "1d01h"),
    ],
)
def test_spans(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_times_are_relative() -> None:
    assert ago("2026-01-02T03:03:55Z", now=NOW) == "10s ago"
    assert ago("2026-01-02T04:04:05Z", now=NOW) == "in 1h00m"
    assert ago(None) == ""
    assert ago("soon") == "soon"
    assert lasted("2026-01-02T03:04:00Z", None, now=NOW) == "5.0s"
    assert lasted(None, None) == ""
    assert lasted(NOW.isoformat(), (NOW - timedelta(seconds=1)).isoformat()) == "0.0s"


def test_sizes() -> None:
    assert [size(n) for n in (0, 1023, 1536, 200 << 20, 5 << 40)] == [
        "0 B", "1023 B", "1.5 KiB", "200 MiB", "5.0 TiB",
    ]  # fmt: skip
    assert size(None) == ""


def test_what_nobody_hears_of_is_shown_as_unknown() -> None:
    unknown = {"cause": "heartbeat_lost", "transient_since": "x", "deadline": "y"}
    assert phase_of({"phase": "Running", "unknown": unknown}) == "Unknown (heartbeat_lost)"
    assert phase_of({"phase": "Running", "unknown": 1}) == "Unknown"
    assert phase_of({"phase": "Running", "unknown": 0}) == "Running"
    ending = {"to": "Killed", "since": "x"}
    assert phase_of({"phase": "Running", "unknown": 0, "ending": ending}) == "Running → Killed"
