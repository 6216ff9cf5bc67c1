"""TLS between members: mutual, 1.3, and the certificate's common name is the member."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from replication.config import TlsFiles


@dataclass(frozen=True, slots=True)
class TlsContexts:
    """Both sides' contexts; `reload` serves renewed files to new connections."""

    files: TlsFiles
    server: ssl.SSLContext
    client: ssl.SSLContext

    @classmethod
    def load(cls, files: TlsFiles) -> TlsContexts:
        """Raises OSError and ssl.SSLError for files that are missing or do not fit."""
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # Members are known by the name in their certificate, not by an address.
        client.check_hostname = False
        contexts = cls(files, server, client)
        for context in (server, client):
            context.verify_mode = ssl.CERT_REQUIRED
            context.minimum_version = ssl.TLSVersion.TLSv1_3
        contexts.reload()
        return contexts

    def reload(self) -> None:
        """Read certificate, key and authority again. Raises as `load`."""
        for context in (self.server, self.client):
            context.load_verify_locations(self.files.ca)
            context.load_cert_chain(self.files.cert, self.files.key)


def peer_names(certificate: dict[str, object]) -> tuple[set[str], set[str]]:
    """Common names and organizational units of a verified certificate's subject."""
    names: set[str] = set()
    units: set[str] = set()
    subject = certificate.get("subject", ())
    assert isinstance(subject, tuple)
    for relative in subject:
        for key, value in relative:
            if key == "commonName":
                names.add(value)
            elif key == "organizationalUnitName":
                units.add(value)
    return names, units
