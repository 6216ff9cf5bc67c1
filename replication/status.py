"""What a member answers when it is asked how the cluster is. Local; waits for nobody."""

from __future__ import annotations

import time

from replication.config import ReplicationConfig
from replication.core import ENTRIES_PER_MESSAGE_MAX, RaftCore
from replication.interface import ClusterStatus, Leadership, LogStatus, MemberStatus, Role
from replication.pump import Pump
from replication.snapshot import SnapshotEngine
from replication.transport import VITALS_PERIOD_S, Transport
from wal.log import WriteAheadLog


def empty_status(config: ReplicationConfig, leadership: Leadership) -> ClusterStatus:
    """The answer of a member that has not started."""
    return ClusterStatus(
        cluster_id=config.cluster_id,
        name=config.name,
        leadership=leadership,
        has_quorum=False,
        members=(),
        log=LogStatus(first_index=0, last_index=0, durable_index=0, size_bytes=0, snapshot_index=0),
        commit_index=0,
        applied_index=0,
        apply_lag_ms=0.0,
    )


class StatusDesk:
    """Puts the answer together from the parts of a started member. Event loop only."""

    def __init__(
        self,
        config: ReplicationConfig,
        transport: Transport,
        *,
        log: WriteAheadLog,
        core: RaftCore,
        pump: Pump,
        snapshots: SnapshotEngine,
    ) -> None:
        self._config = config
        self._transport = transport
        self._log = log
        self._core = core
        self._pump = pump
        self._snapshots = snapshots

    def answer(self, leadership: Leadership) -> ClusterStatus:
        """The whole status, as seen from here."""
        config, log, pump = self._config, self._log, self._pump
        return ClusterStatus(
            cluster_id=config.cluster_id,
            name=config.name,
            leadership=leadership,
            has_quorum=self._has_quorum(leadership),
            members=tuple(self._member(name, leadership) for name in sorted(config.members)),
            log=LogStatus(
                first_index=log.first_index,
                last_index=log.last_index,
                durable_index=log.durable_index,
                size_bytes=log.size_bytes,
                snapshot_index=self._snapshots.newest_index,
            ),
            commit_index=self._core.commit_index,
            applied_index=pump.applied_index,
            apply_lag_ms=pump.apply_lag_ms,
        )

    def _has_quorum(self, leadership: Leadership) -> bool:
        if self._pump.is_stopped:
            return False
        if leadership.role is not Role.LEADER:
            return leadership.leader is not None
        config, core = self._config, self._core
        limit_s = config.fallback_ms / 1000
        answering = sum(1 for peer in config.peers if core.contact_age_s(peer) < limit_s)
        return answering + 1 >= config.quorum

    def _member(self, name: str, leadership: Leadership) -> MemberStatus:
        if name == self._config.name:
            return MemberStatus(
                name=name,
                role=leadership.role,
                is_healthy=not self._pump.is_stopped,
                commit_index=self._core.commit_index,
                applied_index=self._pump.applied_index,
                lag_entries=self._lag(self._log.last_index, leadership),
                version=self._config.version,
            )
        vitals = self._transport.vitals.get(name)
        last_index = 0 if vitals is None else vitals.last_index
        if leadership.role is Role.LEADER:
            last_index = max(last_index, self._core.match_index(name))
        lag = self._lag(last_index, leadership)
        return MemberStatus(
            name=name,
            role=Role.LEADER if name == leadership.leader else Role.FOLLOWER,
            is_healthy=self._is_heard(name) and lag <= ENTRIES_PER_MESSAGE_MAX,
            commit_index=0 if vitals is None else vitals.commit_index,
            applied_index=0 if vitals is None else vitals.applied_index,
            lag_entries=lag,
            version=self._transport.versions.get(name),
        )

    def _is_heard(self, name: str) -> bool:
        heard_at = self._transport.heard_at.get(name)
        limit_s = max(self._config.election_timeout_max_ms / 1000, 3 * VITALS_PERIOD_S)
        return heard_at is not None and time.monotonic() - heard_at < limit_s

    def _lag(self, last_index: int, leadership: Leadership) -> int:
        """Entries that a member with `last_index` lacks of the leader's log, as far as known."""
        leader = leadership.leader
        if leader is None:
            return 0
        if leader == self._config.name:
            return max(0, self._log.last_index - last_index)
        vitals = self._transport.vitals.get(leader)
        return 0 if vitals is None else max(0, vitals.last_index - last_index)
