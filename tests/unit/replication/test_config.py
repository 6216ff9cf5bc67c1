from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from replication import contract
from replication.config import ReplicationConfig
from replication.errors import ConfigError


def make(**changes: Any) -> ReplicationConfig:
    fields: dict[str, Any] = {
        "name": "a",
        "cluster_id": "test",
        "incarnation": 1,
        "members": dict.fromkeys("abc", ("localhost", 1)),
        "listen": ("localhost", 1),
        "data_dir": Path("/nowhere"),
        "tls": None,
    }
    return ReplicationConfig(**{**fields, **changes})


def test_the_defaults_are_in_order() -> None:
    config = make()
    assert config.peers == ("b", "c")
    assert config.quorum == 2
    assert config.fallback_ms == 1_000


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"name": "z"}, "not among"),
        ({"members": dict.fromkeys("ab", ("localhost", 1))}, "2 members"),
        ({"members": dict.fromkeys(("a", "", "c"), ("localhost", 1))}, "empty name"),
        ({"election_timeout_min_ms": 1_000}, "below its maximum"),
        ({"append_period_ms": 200}, "three append periods"),
        ({"check_quorum_ms": 100}, "check_quorum_ms"),
        ({"proposal_deadline_ms": 1_500}, "two election"),
        ({"queue_entries_max": 0}, "queue_entries_max"),
        ({"keep_tail_entries": -1}, "keep_tail_entries"),
    ],
)
def test_settings_out_of_order_are_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        make(**changes)


def test_the_library_is_the_reviewed_one() -> None:
    contract.check_library()


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "VERSION", "0.3.18")
    with pytest.raises(contract.LibraryChanged, match=r"0\.3\.18"):
        contract.check_library()


def test_a_changed_source_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(contract.SOURCES, "SyncObj._onTick", "0" * 16)
    with pytest.raises(contract.LibraryChanged, match="_onTick"):
        contract.check_library()


def test_a_missing_attribute_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "ATTRIBUTES", ("_SyncObj__raftGone",))
    with pytest.raises(contract.LibraryChanged, match="raftGone"):
        contract.check_library()
