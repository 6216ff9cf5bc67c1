"""Who is trusted with a token: controllers of the own CA, and nobody else."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from scheduler.client import Context, Unreachable
from scheduler.client.client import Client
from scheduler.controller.certs import Issued, issue, make_ca
from scheduler.http.app import make_app
from scheduler.http.auth import AdminTokenAuth
from scheduler.http.forward import Forwarder
from scheduler.http.server import listen, serve
from tests.unit.http.asgi import call
from tests.unit.http.fake import FakeService

JOB = {"kind": "job", "tasks": {"main": {"command": ["true"]}}}


@asynccontextmanager
async def leader(certificate: Issued) -> AsyncIterator[tuple[str, FakeService]]:
    service = FakeService()
    app = make_app(service, AdminTokenAuth("secret"), forwarder=Forwarder(name="c1", tls=None))
    listener = listen("127.0.0.1", 0)
    async with serve(app, listener, cert=certificate.cert, key=certificate.key):
        yield f"https://127.0.0.1:{listener.getsockname()[1]}", service


def submit(url: str, ca: Path) -> int:
    with Client(Context((url,), token="secret", ca_file=str(ca), deadline_s=0.5)) as client:
        return int(client.submit(JOB)["job"]["id"])


async def test_a_controller_of_the_own_ca_is_trusted(tmp_path: Path) -> None:
    ca = make_ca(tmp_path)
    async with leader(issue(tmp_path, "controller:c1")) as (url, _):
        assert await asyncio.to_thread(submit, url, ca.cert) == 1


async def test_neither_a_strange_ca_nor_an_agent_gets_the_token(tmp_path: Path) -> None:
    ca, strange = make_ca(tmp_path), make_ca(tmp_path / "strange")
    async with leader(issue(tmp_path, "controller:c1")) as (url, service):
        with pytest.raises(Unreachable, match="not trusted"):
            await asyncio.to_thread(submit, url, strange.cert)
        assert service.asked == []
    async with leader(issue(tmp_path, "agent:a1")) as (url, service):
        with pytest.raises(Unreachable, match="of an agent"):
            await asyncio.to_thread(submit, url, ca.cert)
        assert service.asked == []


@pytest.mark.parametrize(("name", "status"), [("controller:c2", 201), ("agent:a1", 503)])
async def test_a_follower_forwards_to_controllers_alone(
    tmp_path: Path, name: str, status: int
) -> None:
    ca = make_ca(tmp_path)
    service = FakeService(is_leader=False, leader_name="c2")
    forwarder = Forwarder(name="c1", tls=ssl.create_default_context(cafile=str(ca.cert)))
    app = make_app(service, AdminTokenAuth("secret"), forwarder=forwarder)
    async with leader(issue(tmp_path, name)) as (service.leader_url, led):
        answer = await call(app, "POST", "/v1/jobs", body=JOB)
        await forwarder.close()
    assert answer.status == status, answer.body
    assert ("submit" in dict(led.asked)) == (status == 201)
