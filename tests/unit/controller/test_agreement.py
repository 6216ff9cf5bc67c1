"""Members whose states differ: who is wrong, who stops, and what keeps them stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from replication.errors import MemberUnreachable, RequestFailed
from replication.memory import MemoryLog
from scheduler.controller.agreement import (
    BLOCK_ENTRIES,
    KEPT_MAX,
    MARKER_NAME,
    OPEN_ROUNDS_MAX,
    PERIOD_S,
    REPORT_KIND,
    REPORTED_MAX,
    RETRY_S,
    STOP_KIND,
    Agreement,
    Difference,
    Diverged,
    agreed_index,
    judge,
    refuse_marked,
)
from scheduler.controller.config import load_config
from scheduler.controller.founding import found
from scheduler.controller.metrics import Metrics
from scheduler.controller.state_machine import ClusterMachine
from scheduler.controller.watch import EventHub
from scheduler.core.commands import ClusterFounded, LeaderTookOver, encode_entry
from scheduler.core.views import event_view
from scheduler.main import EXIT_FATAL, main
from tests.unit.controller.world import CONFIG, INCARNATION, run_virtual

NAMES = ("c1", "c2", "c3")


class Member:
    """One controller's log, state and agreement; `end` is why it had to stop."""

    def __init__(self, members: Members, name: str, data_dir: Path, *, release: str) -> None:
        self.metrics = Metrics()
        self.machine = ClusterMachine(EventHub(render=event_view), self.metrics)
        self.log = MemoryLog(self.machine, name=name, members=NAMES)
        self.log.peer = lambda target, kind, body: members.ask(name, target, kind, body)
        self.data_dir = data_dir
        data_dir.mkdir()
        self.agreement = Agreement(
            log=self.log,
            machine=self.machine,
            metrics=self.metrics,
            data_dir=data_dir,
            release=release,
        )
        self.end: BaseException | None = None
        self.agreement.on_fatal(self._note_end)

    def _note_end(self, error: BaseException) -> None:
        assert self.end is None
        self.end = error

    def damage(self) -> None:
        """A bit that flipped in memory."""
        self.machine.state.next_job += 1

    @property
    def mismatches(self) -> float:
        value = self.metrics.registry.get_sample_value("pertinax_digest_mismatches_total")
        assert value is not None
        return value


class Members:
    """Three controllers with one log; c1 leads. Names in `away` answer nobody."""

    def __init__(
        self, directory: Path, *, releases: tuple[str, str, str] = ("1", "1", "1")
    ) -> None:
        self.away: set[str] = set()
        self.all = {
            name: Member(self, name, directory / name, release=release)
            for name, release in zip(NAMES, releases, strict=True)
        }
        self.c1, self.c2, self.c3 = (self.all[name] for name in NAMES)
        self.lead("c1")
        founded = ClusterFounded(cluster_id="cluster", incarnation=INCARNATION, log_time_ms=1)
        self.apply(encode_entry(founded))

    def lead(self, name: str) -> None:
        for member in self.all.values():
            member.log.set_leader(name)
            if not member.log.is_leader:
                member.log._advance()  # the leader's no-op, which is an entry here as well

    def apply(self, command: bytes) -> None:
        """Every member applies one more entry."""
        for member in self.all.values():
            member.log.apply_from_leader(command)

    def apply_many(self, count: int) -> None:
        for number in range(count):
            entry = LeaderTookOver(term=number + 1, leader="c1", log_time_ms=number + 2)
            self.apply(encode_entry(entry))

    async def ask(self, asker: str, target: str, kind: str, body: bytes) -> bytes:
        if target in self.away:
            raise MemberUnreachable(target)
        try:
            return await self.all[target].log._handlers[kind](asker, body)
        except ValueError as error:
            raise RequestFailed(str(error)) from None

    @property
    def ended(self) -> list[str]:
        return [name for name, member in self.all.items() if member.end is not None]


def play(directory: Path, scenario: Callable[[Members], Awaitable[None]]) -> None:
    async def whole() -> None:
        await scenario(Members(directory))

    run_virtual(whole())


def test_equal_states_agree_up_to_the_newest_entry(tmp_path: Path) -> None:
    async def scenario(members: Members) -> None:
        members.apply_many(3)
        assert await members.c1.agreement.compare() is None
        value = members.c1.metrics.registry.get_sample_value("pertinax_digest_agreed_index")
        assert value == members.c1.machine.state.index
        assert members.ended == []

    play(tmp_path, scenario)


def test_the_minority_stops_and_cannot_start_again(tmp_path: Path) -> None:
    async def scenario(members: Members) -> None:
        members.c3.damage()
        difference = await members.c1.agreement.compare()
        assert difference is not None
        assert difference.wrong == ("c3",)
        assert members.ended == ["c3"]
        assert isinstance(members.c3.end, Diverged)
        with pytest.raises(Diverged, match="cluster replace c3"):
            refuse_marked(members.c3.data_dir)
        refuse_marked(members.c1.data_dir)
        assert members.c1.mismatches == 1
        with pytest.raises(Diverged):
            members.c3.log.apply_from_leader(b"")

    play(tmp_path, scenario)


def test_a_marked_directory_is_not_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c1.toml"
    file.write_text(CONFIG)
    config = load_config(file)
    found(config)
    (config.data_dir / MARKER_NAME).write_text("its state differs: `pertinax cluster replace c1`\n")
    assert main(["--config", str(file)]) == EXIT_FATAL
    assert "cluster replace c1" in capsys.readouterr().err


def test_a_leader_in_the_minority_stops_itself_alone(tmp_path: Path) -> None:
    async def scenario(members: Members) -> None:
        members.c1.damage()
        await members.c1.agreement.compare()
        assert members.ended == ["c1"]

    play(tmp_path, scenario)


def test_three_different_states_all_stop(tmp_path: Path) -> None:
    async def scenario(members: Members) -> None:
        members.c2.damage()
        members.c3.damage()
        members.c3.damage()
        await members.c1.agreement.compare()
        assert members.ended == ["c1", "c2", "c3"]
        with pytest.raises(Diverged, match="No majority"):
            refuse_marked(members.c1.data_dir)

    play(tmp_path, scenario)


def test_a_member_that_comes_back_in_time_decides(tmp_path: Path) -> None:
    async def scenario(members: Members) -> None:
        members.away = {"c3"}
        members.c2.damage()
        running = asyncio.create_task(members.c1.agreement.run())
        await asyncio.sleep(PERIOD_S + 3 * RETRY_S + 0.5)
        assert members.ended == []
        members.away = set()
        await asyncio.sleep(RETRY_S)
        assert members.ended == ["c2"]
        running.cancel()

    play(tmp_path, scenario)


def test_without_a_majority_all_that_can_be_reached_stop_in_the_end(tmp_path: Path) -> None:
    async def scenario(members: Members) -> None:
        members.away = {"c3"}
        members.c2.damage()
        for _ in range(OPEN_ROUNDS_MAX):
            await members.c1.agreement.compare()
        assert members.ended == []
        await members.c1.agreement.compare()
        assert members.ended == ["c1", "c2"]

    play(tmp_path, scenario)


def test_a_follower_behind_is_compared_at_the_last_common_block(tmp_path: Path) -> None:
    async def scenario(members: Members) -> None:
        members.c3.damage()
        members.apply_many(BLOCK_ENTRIES)
        entry = LeaderTookOver(term=900, leader="c1", log_time_ms=99_999)
        for member in (members.c1, members.c2):
            member.log.apply_from_leader(encode_entry(entry))
        difference = await members.c1.agreement.compare()
        assert difference is not None
        assert difference.index == BLOCK_ENTRIES
        assert members.ended == ["c3"]

    play(tmp_path, scenario)


def test_what_is_remembered_and_told_is_bounded(tmp_path: Path) -> None:
    async def scenario(members: Members) -> None:
        agreement = members.c2.agreement
        for _ in range(KEPT_MAX + 50):
            members.c2.machine.state.index += 1
            agreement._take()
        assert len(agreement._kept) == KEPT_MAX
        assert min(agreement._kept) > 50
        body = await members.c2.log.request("c2", REPORT_KIND, b"", timeout_s=1)
        assert len(body) < 64 * REPORTED_MAX

    play(tmp_path, scenario)


def test_another_release_is_not_compared(tmp_path: Path) -> None:
    async def whole() -> None:
        members = Members(tmp_path, releases=("1", "1", "2"))
        members.c3.damage()
        assert await members.c1.agreement.compare() is None
        assert members.ended == []

    run_virtual(whole())


def test_answers_that_cannot_be_read_count_as_none(tmp_path: Path) -> None:
    async def scenario(members: Members) -> None:
        async def garbage(member: str, body: bytes) -> bytes:
            del member, body
            return b"\x93\xff"

        members.c3.log.on_request(REPORT_KIND, garbage)
        members.c2.damage()
        difference = await members.c1.agreement.compare()
        assert difference is not None
        assert sorted(difference.digests) == ["c1", "c2"]
        assert members.ended == []

    play(tmp_path, scenario)


def test_only_the_leader_can_stop_a_member_and_only_for_its_own_digest(tmp_path: Path) -> None:
    async def scenario(members: Members) -> None:
        await members.c1.agreement.compare()
        kept = members.c3.agreement._kept
        index = max(kept)
        difference = Difference(
            index, {"c1": "x", "c3": kept[index]}, ("c3",), has_majority=True, is_open=False
        )
        await members.c2.agreement._order_stop("c3", difference)
        assert members.ended == []
        other = Difference(
            index, {"c1": "x", "c3": "another"}, ("c3",), has_majority=True, is_open=False
        )
        await members.c1.agreement._order_stop("c3", other)
        assert members.ended == []
        await members.c1.agreement._order_stop("c3", difference)
        assert members.ended == ["c3"]

    play(tmp_path, scenario)


def test_a_stop_that_was_not_delivered_is_ordered_again(tmp_path: Path) -> None:
    async def scenario(members: Members) -> None:
        members.c3.damage()
        handler = members.c3.log._handlers[STOP_KIND]

        async def deaf(member: str, body: bytes) -> bytes:
            raise ValueError(f"not now, {member}: {len(body)}")

        members.c3.log.on_request(STOP_KIND, deaf)
        await members.c1.agreement.compare()
        assert members.ended == []
        members.c3.log.on_request(STOP_KIND, handler)
        await members.c1.agreement.compare()
        assert members.ended == ["c3"]

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    ("tables", "members", "wrong", "is_open"),
    [
        ({"a": {1: "x"}, "b": {1: "x"}, "c": {1: "x"}}, 3, None, False),
        ({"a": {1: "x"}, "b": {2: "y"}}, 3, None, False),
        ({"a": {1: "x"}, "b": {1: "y"}}, 3, ("a", "b"), True),
        # A decided index is preferred over a newer open one.
        ({"a": {1: "x", 2: "x"}, "b": {1: "y", 2: "y"}, "c": {1: "x"}}, 3, ("b",), False),
        ({"a": {1: "x"}, "b": {1: "x"}, "c": {1: "y"}, "d": {1: "y"}}, 5, ("a", "b", "c", "d"),
         True),
        ({"a": {1: "x"}, "b": {1: "y"}, "c": {1: "z"}}, 5, ("a", "b", "c"), True),
        ({"a": {1: "x"}, "b": {1: "y"}, "c": {1: "z"}, "d": {1: "u"}}, 5, ("a", "b", "c", "d"),
         False),
        ({"a": {1: "x"}, "b": {1: "x"}, "c": {1: "x"}, "d": {1: "y"}}, 5, ("d",), False),
    ],
)  # fmt: skip
def test_who_is_wrong(
    tables: dict[str, dict[int, str]],
    members: int,
    wrong: tuple[str, ...] | None,
    *,
    is_open: bool,
) -> None:
    found = judge(tables, members=members)
    assert (found.wrong if found else None) == wrong
    assert (found.is_open if found else False) == is_open


def test_the_newest_common_index() -> None:
    assert agreed_index({"a": {1: "x", 5: "y"}, "b": {1: "x", 4: "z"}}) == 1
    assert agreed_index({"a": {1: "x"}, "b": {2: "x"}}) == 0
