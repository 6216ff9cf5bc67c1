"""docs/protocol.md says what the code does: each message's number, fields in order, exact bytes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from scheduler.protocol import framing, messages
from scheduler.protocol.digest import inventory_digest
from scheduler.protocol.messages import (
    AgentMessage,
    Capacity,
    ControllerMessage,
    FinishFacts,
    Goodbye,
    Heartbeat,
    HeartbeatAck,
    Hello,
    Inventory,
    Kill,
    NotLeader,
    Report,
    Reports,
    ReportsCommitted,
    Seen,
    Start,
    StartFacts,
    StreamFacts,
    Verdict,
    Verdicts,
    Welcome,
    Work,
    encode_message,
)

DOCUMENT = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text(encoding="utf-8")
TOKEN = "0123abcd0000.0000000000000007.000000"
SEEN = Seen(incarnation="0123abcd0000", term=3, index=9)
START = StartFacts(started_at_ms=1_700_000_000_000, pid=4242, start_ticks=5, boot_id="b")
FINISH = FinishFacts(
    cause="exit_nonzero",
    ended_at_ms=1_700_000_001_000,
    start=START,
    exit_code=3,
    stdout=StreamFacts(size_bytes=4, sha256="ab"),
)

#: The messages whose exact frames stand in the document.
VECTORS: dict[str, messages.Message] = {
    "hello": Hello(
        protocol_min=1,
        protocol_max=1,
        cluster_id="c",
        name="a1",
        node_uuid="u",
        start_number=2,
        nonce="n",
        store_id="s",
        boot_id="b",
        agent_version="1.0",
        capacity=Capacity(cpu_millis=8_000, memory_bytes=1 << 30),
        seen=SEEN,
        sent_boottime_ms=1_000,
    ),
    "welcome": Welcome(
        session=5,
        cluster_id="c",
        incarnation="0123abcd0000",
        term=3,
        heartbeat_interval_ms=10_000,
        heartbeat_timeout_ms=30_000,
        ack_timeout_ms=2_000,
        lease_ms=300_000,
        seen=SEEN,
    ),
    "not-leader": NotLeader(leader="c2", address="10.0.0.2:7101", term=3),
    "inventory": Inventory(
        session=5, items=(Report(kind="started", token=TOKEN, start=START),), is_last=True
    ),
    "verdicts": Verdicts(
        session=5,
        verdicts=(Verdict(token=TOKEN, verdict="keep"),),
        is_last=True,
        seen=SEEN,
        lease_ms=300_000,
        hello_boottime_ms=1_000,
    ),
    "start": Start(
        order_sequence=1,
        session=5,
        seen=SEEN,
        token=TOKEN,
        work=Work(attempt="42/main/0#1", argv=("sleep", "1")),
    ),
    "kill": Kill(
        order_sequence=2,
        session=5,
        seen=SEEN,
        token=TOKEN,
        by="user:ana",
        why="typo",
        cause="user_cancel",
        grace_ms=10_000,
    ),
    "reports": Reports(reports=(Report(kind="finished", token=TOKEN, sequence=8, finish=FINISH),)),
    "reports-committed": ReportsCommitted(sequences=(8,), index=10),
    "heartbeat": Heartbeat(
        sequence=1,
        sent_boottime_ms=2_000,
        report_sequence=8,
        order_sequence=2,
        digest=inventory_digest([TOKEN]),
    ),
    "heartbeat-ack": HeartbeatAck(sequence=1, sent_boottime_ms=2_000, seen=SEEN, lease_ms=300_000),
    "goodbye": Goodbye(mode="reconnect"),
}
STRUCTS = (Capacity, Seen, StreamFacts, StartFacts, FinishFacts, Report, Work, Verdict)


def kinds() -> list[Any]:
    return [*AgentMessage.__args__, *ControllerMessage.__args__]  # type: ignore[attr-defined]


def table_row(first: str) -> list[str]:
    """Cells of the table row that begins with `first`; the last is the list of fields."""
    found = re.search(rf"^\| {re.escape(first)} \|(.*)\|$", DOCUMENT, re.MULTILINE)
    assert found is not None, f"docs/protocol.md has no row for {first}"
    return [cell.strip() for cell in found[1].split("|")]


def fields_of(cell: str) -> tuple[str, ...]:
    return tuple(name.strip(" `") for name in cell.split(","))


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_every_message_is_described_with_its_number_and_fields(kind: Any) -> None:
    name, *_, fields = table_row(str(kind.__struct_config__.tag))
    assert name == f"`{kind.__name__}`"
    assert fields_of(fields) == kind.__struct_fields__


@pytest.mark.parametrize("kind", STRUCTS, ids=lambda kind: kind.__name__)
def test_every_value_is_described_with_its_fields(kind: Any) -> None:
    assert fields_of(table_row(f"`{kind.__name__}`")[-1]) == kind.__struct_fields__


@pytest.mark.parametrize("name", VECTORS)
def test_the_vectors_are_the_bytes_that_are_sent(name: str) -> None:
    found = re.search(rf"^{name}:\n((?:    [0-9a-f ]+\n)+)", DOCUMENT, re.MULTILINE)
    assert found is not None, f"docs/protocol.md has no vector {name}"
    frame = framing.encode_frame(encode_message(VECTORS[name]))
    assert bytes.fromhex(found[1]) == frame, f"the document should have {frame.hex()}"


def test_the_digests_example_is_true() -> None:
    assert f"`{inventory_digest([])}`" in DOCUMENT
    assert f"`{inventory_digest([TOKEN])}`" in DOCUMENT
