"""Strangers, wrong certificates and garbage: they close their own connection and nothing else."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from replication.messages import (
    FRAME_BYTES_MAX,
    PROTOCOL_VERSION,
    AppendEntries,
    BadMessage,
    Hello,
    PreVote,
    Vote,
    decode,
    decode_hello,
    encode,
)
from replication.node import RaftLog, found_member
from tests.unit.replication.certificates import Authority
from tests.unit.replication.members import PATIENCE_S, Ledger, Members, until

pytestmark = pytest.mark.timeout(240)

HELLO = Hello(PROTOCOL_VERSION, "test", 1, "b", 7, "raft", "1")


def frame(message: object) -> bytes:
    body = encode(message)  # type: ignore[arg-type]
    return len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x90",
        b"\x91\x63",
        encode(Vote(3))[:-1],
        encode(Vote(3)) + b"\x00",
        b"\x92\x05\xff",
        b"\x92\x05\xa1x",
        b"\x91" * 100_000,
        b"\x81\xa1a\x01",
    ],
)
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    with pytest.raises(BadMessage):
        decode(data)
    with pytest.raises(BadMessage):
        decode_hello(data)


def test_messages_survive_the_wire() -> None:
    for message in (
        AppendEntries(1, 2, 3, 4, 5, True, [(b"x", 4, 1)]),
        PreVote(1, 2, 3, 4),
        HELLO,
    ):
        assert decode(encode(message)) == message


def test_a_newer_versions_extra_fields_are_ignored() -> None:
    assert decode(b"\x93\x05\x07\xa5extra") == Vote(7)


async def exchange(log: RaftLog, *chunks: bytes) -> bytes:
    """What a stranger gets back until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", log.port)
    try:
        for chunk in chunks:
            writer.write(chunk)
        async with asyncio.timeout(PATIENCE_S):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_strangers_harm_only_their_own_connection(tmp_path: Path) -> None:
    members = Members(tmp_path)
    members.found()
    await members.start()
    try:
        await members.propose(b"x")
        log = members.logs["a"]
        assert await exchange(log, b"GET / HTTP/1.1\r\n\r\n") == b""
        assert await exchange(log, (FRAME_BYTES_MAX + 1).to_bytes(4, "big")) == b""
        assert await exchange(log, frame(Vote(1))) == b""
        for wrong in (
            {"cluster_id": "other"},
            {"incarnation": 2},
            {"member": "z"},
            {"protocol": 99},
            {"channel": "x"},
        ):
            hello = Hello(**{**HELLO_FIELDS, **wrong})  # type: ignore[arg-type]
            assert await exchange(log, frame(hello)) == b"", wrong
        last = await members.propose(b"y")
        await members.until_all_applied(last.index)
    finally:
        await members.stop()


HELLO_FIELDS: dict[str, object] = {
    "protocol": PROTOCOL_VERSION,
    "cluster_id": "test",
    "incarnation": 1,
    "member": "b",
    "epoch": 7,
    "channel": "raft",
    "version": "1",
}


async def test_a_greeting_is_followed_by_ours(tmp_path: Path) -> None:
    members = Members(tmp_path)
    members.found()
    await members.start("a")
    try:
        port = members.logs["a"].port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(frame(HELLO))
        async with asyncio.timeout(PATIENCE_S):
            size = int.from_bytes(await reader.readexactly(4), "big")
            answer = decode_hello(await reader.readexactly(size))
        assert (answer.member, answer.version) == ("a", "1.2.3")
        writer.write(b"\x00\x00\x00\x01\xc1")
        async with asyncio.timeout(PATIENCE_S):
            await reader.read()
        writer.close()
    finally:
        await members.stop()


async def test_a_member_with_anothers_certificate_is_not_let_in(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    tls = {name: authority.issue(name) for name in "abc"}
    foreign = Authority(tmp_path / "foreign").issue("b")
    members = Members(tmp_path, tls=tls)
    members.found()
    await members.start("a", "c")
    try:
        await members.leader()
        log = members.logs["a"]

        def context(cert: Path, key: Path) -> ssl.SSLContext:
            made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            made.check_hostname = False
            made.load_verify_locations(authority.path)
            made.load_cert_chain(cert, key)
            return made

        for files in (tls["c"], foreign):
            # The certificate is for c, or of another authority, but the greeting says b.
            try:
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", log.port, ssl=context(files.cert, files.key)
                )
                writer.write(frame(HELLO))
                async with asyncio.timeout(PATIENCE_S):
                    assert await reader.read() == b""
                writer.close()
            except (ConnectionError, ssl.SSLError):
                continue
        assert "b" not in log._transport.versions
    finally:
        await members.stop()


async def test_an_agents_certificate_is_not_a_controllers(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    tls = {
        name: replace(authority.issue(name, unit="controller"), peer_unit="controller")
        for name in "ac"
    }
    tls["b"] = replace(authority.issue("b", unit="agent"), peer_unit="controller")
    members = Members(tmp_path, tls=tls)
    members.found()
    await members.start()
    try:
        await until(lambda: "c" in members.logs["a"]._transport.versions, "a and c meet")
        await members.leader()
        assert "b" not in members.logs["a"]._transport.versions
        assert "b" not in members.logs["c"]._transport.versions
    finally:
        await members.stop()


async def test_a_restarted_peer_replaces_its_session(tmp_path: Path) -> None:
    members = Members(tmp_path)
    members.found()
    await members.start()
    try:
        await members.propose(b"x")
        for _ in range(3):
            follower = next(n for n, log in members.logs.items() if not log.is_leader)
            await members.stop(follower)
            await members.start(follower)
            last = await members.propose(b"y")
            await members.until_all_applied(last.index)
    finally:
        await members.stop()


async def test_a_taken_address_is_reported(tmp_path: Path) -> None:
    members = Members(tmp_path)
    members.found()
    await members.start("a")
    try:
        config = replace(members.config("b"), listen=members.addresses["a"])
        found_member(config)
        with pytest.raises(OSError, match="in use"):
            await RaftLog(config, Ledger()).start()
    finally:
        await members.stop()
