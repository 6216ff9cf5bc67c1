"""`cluster status` (specification 6.3), answered by one controller from what it knows itself."""

from __future__ import annotations

from typing import Any

from replication.interface import ClusterStatus
from scheduler.controller.state_machine import ClusterMachine
from scheduler.core import queries


def cluster_view(status: ClusterStatus, machine: ClusterMachine) -> dict[str, Any]:
    """The JSON-ready view; `quorum` is false when there is none."""
    state = machine.state
    return {
        "cluster_id": state.cluster_id or status.cluster_id,
        "incarnation": state.incarnation,
        "asked": status.name,
        "leader": status.leadership.leader,
        "term": status.leadership.term,
        "quorum": status.has_quorum,
        "members": [
            {
                "name": member.name,
                "role": member.role.value,
                "healthy": member.is_healthy,
                "commit_index": member.commit_index,
                "applied_index": member.applied_index,
                "lag_entries": member.lag_entries,
                "version": member.version,
            }
            for member in status.members
        ],
        "log": {
            "first_index": status.log.first_index,
            "last_index": status.log.last_index,
            "bytes": status.log.size_bytes,
            "snapshot_index": status.log.snapshot_index,
        },
        "registry": queries.registry_view(state),
        "jobs_by_phase": queries.jobs_by_phase(state),
        "nodes": {
            "known": len(state.nodes),
            "online": sum(1 for _ in machine.online_nodes()),
        },
    }
