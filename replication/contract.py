"""What this project relies on inside PySyncObj, checked before it is used.

The library has no supported interface for its journal, its sending or its elections, so an upgrade
is a reviewed event: the version, every private name, and the source of each private method that is
overridden or called are pinned. After a review, `python -m replication.contract` prints the table.
"""

from __future__ import annotations

import hashlib
import inspect
from typing import Final

from pysyncobj import SyncObj, journal, node, transport
from pysyncobj.version import VERSION

from replication.errors import ReplicationError

LIBRARY_VERSION: Final = "0.3.17"

#: Attributes that core.py reads or writes; the constructor must make them.
ATTRIBUTES: Final = (
    "_SyncObj__connectedNodes",
    "_SyncObj__lastResponseTime",
    "_SyncObj__newAppendEntriesTime",
    "_SyncObj__raftCommitIndex",
    "_SyncObj__raftCurrentTerm",
    "_SyncObj__raftElectionDeadline",
    "_SyncObj__raftLastApplied",
    "_SyncObj__raftLeader",
    "_SyncObj__raftMatchIndex",
    "_SyncObj__raftNextIndex",
    "_SyncObj__raftState",
    "_SyncObj__transferInProgress",
    "_SyncObj__votedForNodeId",
)

#: Sources (class and method) to the first 16 hexadecimal digits of their SHA-256.
SOURCES: Final[dict[str, str]] = {
    "SyncObj.__init__": "09df12cd7fd7d727",
    "SyncObj._SyncObj__applyLogEntries": "073db677773b5a2d",
    "SyncObj._SyncObj__connectedToAnyone": "acd40e9e3ac6c4cc",
    "SyncObj._SyncObj__deleteEntriesFrom": "3b23c411bb903d36",
    "SyncObj._SyncObj__doApplyCommand": "1ea7aa506e950d0a",
    "SyncObj._SyncObj__generateRaftTimeout": "92ed37d3620e781a",
    "SyncObj._SyncObj__getCurrentLogIndex": "e5af22ca246686bd",
    "SyncObj._SyncObj__getCurrentLogTerm": "1cb8867e6a13d397",
    "SyncObj._SyncObj__getEntries": "e29c4b33293b2101",
    "SyncObj._SyncObj__loadDumpFile": "ec66e83905de703b",
    "SyncObj._SyncObj__onBecomeLeader": "5a3fd97bc17dc1cf",
    "SyncObj._SyncObj__onLeaderChanged": "53b7685e1d897887",
    "SyncObj._SyncObj__onMessageReceived": "ddfe34b6c0282179",
    "SyncObj._SyncObj__onNodeConnected": "2655afb481b4c69b",
    "SyncObj._SyncObj__onNodeDisconnected": "a81c0475ba2218cc",
    "SyncObj._SyncObj__parseChangeClusterRequest": "b2d5d695b12e592f",
    "SyncObj._SyncObj__sendAppendEntries": "9cb9073128c392fa",
    "SyncObj._SyncObj__sendNextNodeIdx": "68aaeefc267b8896",
    "SyncObj._SyncObj__setCurrentTerm": "0ad5bf456ac06bd3",
    "SyncObj._SyncObj__setState": "2c1f239f7bd79b39",
    "SyncObj._SyncObj__tryLogCompaction": "c2f8a0ec14cc7312",
    "SyncObj._checkCommandsToApply": "a386a8079361d204",
    "SyncObj._onTick": "cc9eb08232d005ba",
    "SyncObj.transferLeadership": "c3ac67963962d9aa",
    "Journal.add": "0e090e17aaad526e",
    "Node.__init__": "75c14f4dbadea003",
    "Transport.__init__": "f9672d42247cf45e",
}

OWNERS: Final[dict[str, type]] = {
    "SyncObj": SyncObj,
    "Journal": journal.Journal,
    "Node": node.Node,
    "Transport": transport.Transport,
}

#: Overridden, called, or relied on to be called in this way.
METHODS: Final = (
    "SyncObj.__init__",
    "SyncObj._SyncObj__applyLogEntries",
    "SyncObj._SyncObj__connectedToAnyone",
    "SyncObj._SyncObj__deleteEntriesFrom",
    "SyncObj._SyncObj__doApplyCommand",
    "SyncObj._SyncObj__generateRaftTimeout",
    "SyncObj._SyncObj__getCurrentLogIndex",
    "SyncObj._SyncObj__getCurrentLogTerm",
    "SyncObj._SyncObj__getEntries",
    "SyncObj._SyncObj__loadDumpFile",
    "SyncObj._SyncObj__onBecomeLeader",
    "SyncObj._SyncObj__onLeaderChanged",
    "SyncObj._SyncObj__onMessageReceived",
    "SyncObj._SyncObj__onNodeConnected",
    "SyncObj._SyncObj__onNodeDisconnected",
    "SyncObj._SyncObj__parseChangeClusterRequest",
    "SyncObj._SyncObj__sendAppendEntries",
    "SyncObj._SyncObj__sendNextNodeIdx",
    "SyncObj._SyncObj__setCurrentTerm",
    "SyncObj._SyncObj__setState",
    "SyncObj._SyncObj__tryLogCompaction",
    "SyncObj._checkCommandsToApply",
    "SyncObj._onTick",
    "SyncObj.transferLeadership",
    "Journal.add",
    "Node.__init__",
    "Transport.__init__",
)


class LibraryChanged(ReplicationError):
    """PySyncObj is not the reviewed one."""

    code = "library_changed"


def source_hash(name: str) -> str:
    """Digest of a method's source. Raises LibraryChanged when there is none."""
    owner, method = name.split(".", 1)
    function = vars(OWNERS[owner]).get(method)
    if function is None:
        raise LibraryChanged(f"pysyncobj has no {name}")
    return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()[:16]


def check_library() -> None:
    """Raise LibraryChanged unless version and sources are the reviewed ones."""
    if VERSION != LIBRARY_VERSION:
        raise LibraryChanged(f"pysyncobj is {VERSION}; reviewed was {LIBRARY_VERSION}")
    source = inspect.getsource(vars(SyncObj)["__init__"])
    for attribute in ATTRIBUTES:
        if f"self.{attribute.removeprefix('_SyncObj')}" not in source:
            raise LibraryChanged(f"pysyncobj's constructor makes no {attribute}")
    for name in METHODS:
        if source_hash(name) != SOURCES.get(name):
            raise LibraryChanged(f"the source of pysyncobj's {name} is not the reviewed one")


def main() -> None:
    """Print the table for SOURCES."""
    for name in METHODS:
        print(f'    "{name}": "{source_hash(name)}",')  # noqa: T201


if __name__ == "__main__":
    main()
