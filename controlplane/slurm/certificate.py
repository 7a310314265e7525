"""A certificate for one allocation's control plane: signed by its own key, pinned by its agents, good for one host."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from controlplane.config.guards import private_file

VALID_FOR = timedelta(days=400)
"""Longer than any allocation; its key goes with the allocation."""
AHEAD = timedelta(days=1)
"""Clocks of nodes differ."""


def make(host: str, *, certificate: Path, key: Path) -> None:
    """Write both as PEM, mode 0600. `host`: a name or an address, as agents dial it."""
    made, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "holdfast in an allocation")])
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(made.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - AHEAD)
        .not_valid_after(now + VALID_FOR)
        .add_extension(x509.SubjectAlternativeName([_named(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(made, hashes.SHA256())
    )
    private_file(certificate, signed.public_bytes(Encoding.PEM).decode())
    private_file(key, made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode())


def _named(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
