"""The cluster's certificates: identity by common name, only of our own CA."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from scheduler.controller.certs import (
    client_context,
    common_name,
    issue,
    make_ca,
    make_token_file,
    read_token_file,
    server_context,
)


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[str, str]:
    """Names that server and client saw, through memory. Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        server.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server),
    ]
    done = [False, False]
    for _ in range(20):
        for number in (1, 0):
            try:
                ends[number].do_handshake()
                done[number] = True
            except ssl.SSLWantReadError:
                pass
        if all(done):
            break
    assert all(done)
    return common_name(ends[0].getpeercert()), common_name(ends[1].getpeercert())


def test_members_know_each_other_by_common_name(tmp_path: Path) -> None:
    ca = make_ca(tmp_path)
    one = issue(tmp_path, "controller:c1")
    two = issue(tmp_path, "agent:a1", into=tmp_path / "agents")
    assert one.cert.name == "controller-c1.pem"
    assert two.key.parent.name == "agents"
    assert oct(one.key.stat().st_mode & 0o777) == "0o600"
    names = handshake(
        server_context(ca=ca.cert, cert=one.cert, key=one.key),
        client_context(ca=ca.cert, cert=two.cert, key=two.key),
    )
    assert names == ("agent:a1", "controller:c1")


def test_a_certificate_of_another_ca_does_not_get_in(tmp_path: Path) -> None:
    ca, other = make_ca(tmp_path / "ours"), make_ca(tmp_path / "theirs")
    one = issue(tmp_path / "ours", "controller:c1")
    stranger = issue(tmp_path / "theirs", "agent:a1")
    assert other.cert != ca.cert
    with pytest.raises(ssl.SSLError):
        handshake(
            server_context(ca=ca.cert, cert=one.cert, key=one.key),
            client_context(ca=ca.cert, cert=stranger.cert, key=stranger.key),
        )


def test_a_host_name_checking_client_is_served(tmp_path: Path) -> None:
    ca = make_ca(tmp_path)
    one = issue(tmp_path, "controller:c1")
    context = ssl.create_default_context(cafile=str(ca.cert))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context(ca=ca.cert, cert=one.cert, key=one.key, wants_client=False)
    ends = [
        server.wrap_bio(to_server, to_client, server_side=True),
        context.wrap_bio(to_client, to_server, server_hostname="127.0.0.1"),
    ]
    for _ in range(10):
        for end in reversed(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
    assert ends[1].getpeercert()


def test_making_a_ca_again_keeps_it(tmp_path: Path) -> None:
    first = make_ca(tmp_path).cert.read_bytes()
    assert make_ca(tmp_path).cert.read_bytes() == first


def test_a_token_is_drawn_once_and_private(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "token"
    token = make_token_file(file)
    assert len(token) > 40
    assert make_token_file(file) == token == read_token_file(file)
    assert oct(file.stat().st_mode & 0o777) == "0o600"
    file.write_text("\n")
    with pytest.raises(ValueError, match="empty"):
        read_token_file(file)
