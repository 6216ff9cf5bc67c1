"""Leases: the margin, the file, and what an unreadable file means."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.keeper.leases import Leases


@pytest.fixture
def leases(tmp_path: Path) -> Leases:
    return Leases(tmp_path / "leases", boot_id="boot-1")


def reopened(tmp_path: Path, boot_id: str = "boot-1") -> Leases:
    leases = Leases(tmp_path / "leases", boot_id=boot_id)
    leases.load()
    return leases


def test_lease_is_valid_until_its_margin(leases: Leases) -> None:
    leases.margin_ms = 300
    leases.renew("a", 1_000)
    assert leases.is_valid("a", now_ms=699)
    assert not leases.is_valid("a", now_ms=700)
    assert not leases.is_valid("b", now_ms=0)


def test_renewal_never_shortens(leases: Leases) -> None:
    leases.renew("a", 5_000)
    leases.renew("a", 4_000)
    assert leases.acts_at_ms("a") == 4_000


def test_file_survives_the_keeper(leases: Leases, tmp_path: Path) -> None:
    leases.margin_ms = 250
    leases.renew("a", 5_000)
    leases.renew("b", 6_000)
    leases.drop("b")
    leases.save()
    found = reopened(tmp_path)
    assert (found.margin_ms, found.acts_at_ms("a"), found.acts_at_ms("b")) == (250, 4_750, 0)


def test_file_of_another_boot_grants_nothing(leases: Leases, tmp_path: Path) -> None:
    leases.renew("a", 5_000)
    leases.save()
    assert reopened(tmp_path, "boot-2").acts_at_ms("a") == 0


def test_every_broken_file_grants_nothing_more(leases: Leases, tmp_path: Path) -> None:
    leases.renew("a", 5_000)
    leases.save()
    whole = (tmp_path / "leases").read_bytes()
    for length in range(len(whole)):
        (tmp_path / "leases").write_bytes(whole[:length])
        assert reopened(tmp_path).acts_at_ms("a") <= 4_000


def test_file_that_cannot_be_written_leaves_the_old_one(leases: Leases, tmp_path: Path) -> None:
    leases.renew("a", 5_000)
    leases.save()
    (tmp_path / "leases.new").mkdir()
    leases.renew("a", 9_000)
    with pytest.raises(IsADirectoryError):
        (tmp_path / "leases.new").write_text("x")
    assert reopened(tmp_path).acts_at_ms("a") == 4_000
