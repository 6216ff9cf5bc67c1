"""Mutual TLS 1.3 with the controllers: our certificate is `agent:NAME`, theirs `controller:…`."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from agent.config import TlsFiles
from agent.errors import ConnectFailed

CONTROLLER_PREFIX: Final = "controller:"


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """A context from the files as they are now: certificates are renewed while we run.

    Blocking reads of small files. Raises ConnectFailed.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # A controller is known by the name in its certificate (check_peer), not by where it is dialled.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(files.ca)
        context.load_cert_chain(files.cert, files.key)
    except (OSError, ssl.SSLError) as error:
        raise ConnectFailed(f"certificates: {error}") from None
    return context


def check_peer(transport: asyncio.BaseTransport) -> None:
    """Raise ConnectFailed unless the other end is a controller of our CA."""
    name = common_name(transport.get_extra_info("peercert"))
    if not name.startswith(CONTROLLER_PREFIX):
        raise ConnectFailed(f"the peer's certificate names {name!r}, which is no controller")


def common_name(certificate: object) -> str:
    """The common name of a certificate as `getpeercert` tells it; empty without one."""
    if not isinstance(certificate, dict):
        return ""
    for part in certificate.get("subject", ()):
        for key, value in part:
            if key == "commonName":
                return str(value)
    return ""
