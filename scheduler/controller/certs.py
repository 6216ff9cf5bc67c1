"""The cluster's own certificates: a CA, one certificate per member, and TLS contexts from them.

A certificate's common name is the member's identity: `controller:NAME` or `agent:NAME`. It is what
a peer is judged by; the subject alternative names only serve clients that check host names.
Everything here blocks on small files: call it at start, not from a running loop.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import secrets
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

#: Specification 7.3: certificates of members last 90 days.
MEMBER_DAYS: Final = 90
CA_DAYS: Final = 3650
#: Hosts that overlap in time may have clocks that differ: a new certificate is valid since then.
BACKDATE: Final = datetime.timedelta(hours=1)
LOCAL_HOSTS: Final = ("127.0.0.1", "localhost")
CONTROLLER: Final = "controller"
AGENT: Final = "agent"
TOKEN_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Issued:
    """Files of one identity, PEM; the key's mode is 0600."""

    cert: Path
    key: Path


def make_ca(directory: Path, *, name: str = "pertinax") -> Issued:
    """Create `ca.pem` and `ca.key` in `directory`, or return those that are there already."""
    issued = Issued(directory / "ca.pem", directory / "ca.key")
    if issued.cert.exists() and issued.key.exists():
        return issued
    directory.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} CA")])
    certificate = (
        _builder(subject, subject, key.public_key(), days=CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(is_ca=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    _write(issued, certificate, key)
    return issued


def issue(
    directory: Path,
    common_name: str,
    *,
    into: Path | None = None,
    hosts: Iterable[str] = LOCAL_HOSTS,
    days: int = MEMBER_DAYS,
) -> Issued:
    """A new key and certificate for `common_name` (`controller:c1`).

    Signed by the CA in `directory`; written into `into` (default: `directory`) as `NAME.pem` and
    `NAME.key`, replacing older ones.
    """
    authority = x509.load_pem_x509_certificate((directory / "ca.pem").read_bytes())
    authority_key = serialization.load_pem_private_key((directory / "ca.key").read_bytes(), None)
    assert isinstance(authority_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        _builder(subject, authority.subject, key.public_key(), days=days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(is_ca=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName(_alternatives(hosts)), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )
    folder = into if into is not None else directory
    folder.mkdir(parents=True, exist_ok=True)
    file_name = common_name.replace(":", "-")
    issued = Issued(folder / f"{file_name}.pem", folder / f"{file_name}.key")
    _write(issued, certificate, key)
    return issued


def make_token_file(path: Path) -> str:
    """The token in `path`, drawn and written with mode 0600 when the file is not there yet."""
    if path.exists():
        return read_token_file(path)
    token = secrets.token_urlsafe(TOKEN_BYTES)
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_private(path, token.encode() + b"\n")
    return token


def read_token_file(path: Path) -> str:
    """The token in `path`. Raises OSError, and ValueError for an empty file."""
    token = path.read_text(encoding="utf-8").strip()
    if not token:
        raise ValueError(f"{path} is empty: it must hold a token")
    return token


def server_context(*, ca: Path, cert: Path, key: Path, wants_client: bool = True) -> ssl.SSLContext:
    """TLS 1.3 for a port of ours; with `wants_client` only certificates of our CA get through."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(cert, key)
    context.load_verify_locations(ca)
    context.verify_mode = ssl.CERT_REQUIRED if wants_client else ssl.CERT_NONE
    return context


def client_context(
    *, ca: Path, cert: Path | None = None, key: Path | None = None
) -> ssl.SSLContext:
    """TLS 1.3 towards a member; its common name is checked by the caller, not its host name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(ca)
    if cert is not None:
        context.load_cert_chain(cert, key)
    return context


def common_name(peer_certificate: dict[str, Any] | None) -> str:
    """The common name in what `SSLObject.getpeercert()` returned; empty when there is none."""
    for rdn in (peer_certificate or {}).get("subject", ()):
        for name, value in rdn:
            if name == "commonName":
                return str(value)
    return ""


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, *, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATE)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _key_usage(*, is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        encipher_only=False,
        decipher_only=False,
    )


def _alternatives(hosts: Iterable[str]) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = []
    for host in dict.fromkeys(hosts):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    return names


def _write(issued: Issued, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    # The key first: a certificate without its key would look like a finished identity.
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    _write_private(issued.key, pem)
    issued.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _write_private(path: Path, data: bytes) -> None:
    """Replace `path` by `data`, never readable by others at any moment."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
