"""One controller's API over a fake service."""

from __future__ import annotations

import pytest
from starlette.types import ASGIApp

from scheduler.http.app import make_app
from scheduler.http.auth import AdminTokenAuth
from scheduler.http.forward import Forwarder

from .fake import FakeService


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def app(service: FakeService) -> ASGIApp:
    return make_app(service, AdminTokenAuth("secret"), forwarder=Forwarder(name="c1", tls=None))
