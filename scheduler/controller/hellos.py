"""What a leader makes of a hello: the refusals, the join entry and the welcome (3.5). Pure."""

from __future__ import annotations

from scheduler.controller.context import Lead
from scheduler.core.commands import NodeJoined
from scheduler.protocol.ids import NAME
from scheduler.protocol.messages import PROTOCOL_VERSION, Hello, Refused, Welcome


def check_hello(hello: Hello, lead: Lead, *, certificate_name: str | None) -> Refused | None:
    """Why the agent is not taken in; None when nothing speaks against it.

    `certificate_name` is the common name of its certificate, None on a port without TLS.
    """
    machine = lead.machine
    if not NAME.fullmatch(hello.name):
        return Refused(code="bad_hello", message="the node's name is not valid", is_final=True)
    if certificate_name is not None and certificate_name != f"agent:{hello.name}":
        return Refused(
            code="wrong_name",
            message=f"the certificate is for {certificate_name!r}, not agent:{hello.name}",
            is_final=True,
        )
    if hello.cluster_id != machine.cluster_id:
        return Refused(
            code="wrong_cluster",
            message=f"this is cluster {machine.cluster_id}, not {hello.cluster_id}",
            is_final=True,
        )
    if not hello.protocol_min <= PROTOCOL_VERSION <= hello.protocol_max:
        return Refused(
            code="unknown_protocol",
            message=f"this controller speaks protocol {PROTOCOL_VERSION}, the agent"
            f" {hello.protocol_min} to {hello.protocol_max}: upgrade the older one",
            is_final=True,
        )
    if hello.seen.incarnation > machine.incarnation:
        return Refused(
            code="stale_controller",
            message="the agent knows a later restore of this cluster than this controller",
        )
    if not hello.node_uuid or not hello.boot_id or not hello.store_id:
        return Refused(code="bad_hello", message="an identity is empty", is_final=True)
    return None


def knows_newer_leader(hello: Hello, lead: Lead) -> bool:
    """Whether the agent was shown a newer term: then this leader is deposed and does not know."""
    seen = hello.seen
    return seen.incarnation == lead.machine.incarnation and seen.term > lead.term


def join_entry(hello: Hello, *, is_old_session_heard: bool) -> NodeJoined:
    """The entry that takes the node in, or refuses it as a duplicate."""
    return NodeJoined(
        name=hello.name,
        node_uuid=hello.node_uuid,
        start_number=hello.start_number,
        nonce=hello.nonce,
        store_id=hello.store_id,
        boot_id=hello.boot_id,
        agent_version=hello.agent_version,
        capacity=hello.capacity,
        addresses=hello.addresses,
        labels=hello.labels,
        limits=hello.limits,
        is_old_session_heard=is_old_session_heard,
    )


def welcome(lead: Lead, session: int) -> Welcome:
    """The answer to an applied join."""
    machine = lead.machine
    return Welcome(
        session=session,
        cluster_id=machine.cluster_id,
        incarnation=machine.incarnation,
        term=lead.term,
        heartbeat_interval_ms=machine.setting_ms("heartbeat_interval"),
        heartbeat_timeout_ms=machine.setting_ms("heartbeat_timeout"),
        ack_timeout_ms=machine.setting_ms("ack_timeout"),
        lease_ms=machine.setting_ms("transient_timeout"),
        seen=lead.seen(),
        log_retention_ms=machine.setting_ms("log_retention"),
    )
