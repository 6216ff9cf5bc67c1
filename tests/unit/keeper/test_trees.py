"""Which look at /proc proves that an attempt left no process."""

from __future__ import annotations

import os

import pytest

from agent.keeper import trees
from agent.keeper.processes import ProcessInfo
from agent.keeper.trees import Trees

KEEPER = os.getpid()
MAIN, STRAY, OTHER = KEEPER + 1, KEEPER + 2, KEEPER + 3


def process(pid: int, *, parent: int = KEEPER, is_zombie: bool = False) -> ProcessInfo:
    return ProcessInfo(
        pid=pid,
        ppid=parent,
        session=pid,
        start_ticks=1,
        rss_bytes=0,
        cpu_ticks=0,
        is_zombie=is_zombie,
    )


def look(monkeypatch: pytest.MonkeyPatch, *found: ProcessInfo) -> tuple[list[int], bool]:
    """The orphans' pids, and whether they are all; `OTHER + 1` is listed and gone when read."""
    table = {info.pid: info for info in found}
    monkeypatch.setattr(trees, "list_pids", lambda: [*table, OTHER + 1])
    monkeypatch.setattr(trees, "read_process", table.get)
    orphans, are_all = Trees(lambda: 0).orphans({MAIN})
    return [info.pid for info in orphans], are_all


def test_a_child_that_we_did_not_start_is_an_orphan(monkeypatch: pytest.MonkeyPatch) -> None:
    found = look(monkeypatch, process(MAIN), process(STRAY), process(OTHER, parent=STRAY))
    assert found == ([STRAY], True)


def test_an_orphan_that_died_during_the_look_may_have_forked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert look(monkeypatch, process(STRAY, is_zombie=True)) == ([], False)


def test_the_deaths_of_others_prove_nothing_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    main = process(MAIN, is_zombie=True)
    foreign = process(OTHER, parent=STRAY, is_zombie=True)
    assert look(monkeypatch, main, foreign) == ([], True)
