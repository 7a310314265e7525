"""Authorities of the tests' own: certificates for TLS as a site's own authority makes them."""

import datetime as dt
import hashlib
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = dt.timedelta(days=1)


@dataclass
class Authority:
    """Signs certificates; `file` is its own, in PEM, `served` that of its server."""

    directory: Path
    name: str

    def __post_init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)])
        self.file = self._written(f"{self.name}.crt", self._signed(self.subject, self.key, self.key, authority=True))

    def issue(self, host: str) -> tuple[Path, Path]:
        """(certificate, key) for a host or an address, both in PEM; each time another one in the same files."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        made = self._written(f"{self.name}-{host}.crt", self._signed(subject, key, self.key, host=host))
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path = self.directory / f"{self.name}-{host}.key"
        path.touch(0o600)
        path.write_bytes(private)
        return made, path

    def context(self, host: str, *, asks_for: "Authority | None" = None) -> ssl.SSLContext:
        """Of a server called `host`, which lets in whom `asks_for` has signed."""
        made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=asks_for.file if asks_for else None)
        self.served, key = self.issue(host)
        made.load_cert_chain(self.served, key)
        made.verify_mode = ssl.CERT_REQUIRED if asks_for else ssl.CERT_NONE
        return made

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, by: ec.EllipticCurvePrivateKey, *,
        host: str = "", authority: bool = False,
    ) -> x509.Certificate:  # fmt: skip
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder(self.subject, subject, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if host:
            builder = builder.add_extension(x509.SubjectAlternativeName([_name(host)]), critical=False)
        return builder.sign(by, hashes.SHA256())

    def _written(self, name: str, certificate: x509.Certificate) -> Path:
        path = self.directory / name
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return path


def fingerprint(certificate: Path) -> str:
    """SHA-256 of the certificate in a PEM file, computed otherwise than the code under test does."""
    text = certificate.read_text(encoding="ascii")
    first = text[: text.index("-----END CERTIFICATE-----") + len("-----END CERTIFICATE-----")]
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(first)).hexdigest()


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
