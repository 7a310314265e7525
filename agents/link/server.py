"""Where the control plane is, and by what its agents know it: TLS off loopback, its certificate
checked against its host name and the authorities of this machine, or against one that is pinned.

A certificate of the agent's own is for a proxy that asks for one, beside the node's key, never
instead of it. The files are read anew with each connection, so that they can be renewed.
What certificate a connection showed goes into the node's proof where the server asks for it.
"""

import hashlib
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from agents.errors import ConfigError

_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """`url` is ws:// or wss://. `ca_file`: PEM of the only authorities that count; None: those of
    the machine. `certificate` and `key`: PEM, shown to a proxy that asks; None: none."""

    url: str
    ca_file: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def context(self) -> ssl.SSLContext | None:
        """None for ws://. Raises ssl.SSLError or OSError where a file is none of its kind."""
        if urlsplit(self.url).scheme != "wss":
            return None
        made = ssl.create_default_context(cafile=self.ca_file)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.ca_file is not None:
            # What is pinned counts as it is, also where another has signed it.
            made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if self.certificate is not None:
            made.load_cert_chain(self.certificate, self.key)
        return made

    def check(self, *, insecure_dev: bool) -> None:
        """Raises ConfigError, for an address that is unsafe off loopback and for files that are none."""
        check_server_url(self.url, insecure_dev=insecure_dev)
        files = [path for path in (self.ca_file, self.certificate, self.key) if path is not None]
        if files and urlsplit(self.url).scheme != "wss":
            raise ConfigError("--tls-ca-file, --tls-certificate and --tls-key are for wss://")
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("--tls-certificate and --tls-key go together")
        try:
            if self.key is not None and os.stat(self.key).st_mode & 0o077:
                raise ConfigError(f"--tls-key {self.key} is open to others: chmod 600 it")
            self.context()
        except (OSError, ssl.SSLError) as error:
            names = ", ".join(map(str, files))
            raise ConfigError(f"{names}: no certificate and key in PEM that go together ({error})") from error


def certificate_shown(tls: ssl.SSLObject | None) -> str:
    """SHA-256 of the certificate (DER) by which the server identified itself on this connection; ""
    without TLS."""
    der = None if tls is None else tls.getpeercert(binary_form=True)
    return "" if der is None else hashlib.sha256(der).hexdigest()


def check_server_url(server: str, *, insecure_dev: bool) -> None:
    """Raises ConfigError for a URL that is none of ws, wss, or unsafe off loopback."""
    parts = urlsplit(server)
    if parts.scheme not in ("ws", "wss") or not parts.hostname:
        raise ConfigError(f"--server must be ws://host:port or wss://host:port, not {server!r}")
    if parts.username or parts.password or parts.query:
        raise ConfigError("--server must carry no credentials and no query; use --join-token-file")
    if parts.scheme == "ws" and parts.hostname not in _LOOPBACK and not insecure_dev:
        raise ConfigError(
            f"plain ws:// to {parts.hostname} would send the credential in clear text: use wss://, or --insecure-dev"
        )
