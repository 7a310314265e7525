"""Enrolment: a join token becomes this node's own credential, once.

The credential is stored with mode 0600 and sent in a header only; neither it nor the
token is ever part of a URL or a log line.
"""

import os
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from agents import VERSION
from agents.errors import ConfigError, EnrolmentError
from controlplane.protocol.samples import DeviceInfo

_TIMEOUT_S = 15.0
_MAX_ANSWER_BYTES = 64 * 1024
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class Credential(msgspec.Struct, frozen=True):
    """What the server gave this node; `node_id` is how it calls it, `server_keys` the public
    keys by which its commands are known."""

    node_id: str
    credential: str
    server_keys: tuple[str, ...] = ()


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


def load_credential(path: Path) -> Credential | None:
    """None: not enrolled. Raises ConfigError if others can read it."""
    try:
        mode = path.stat().st_mode
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    if mode & 0o077:
        raise ConfigError(f"{path} is readable by others: chmod 600 it, and rotate the credential")
    try:
        return msgspec.json.decode(data, type=Credential)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is damaged ({error}): remove it and enrol again") from error


def store_credential(path: Path, credential: Credential) -> None:
    """Durable, atomic, mode 0600."""
    fresh = path.with_suffix(".new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, msgspec.json.encode(credential))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(fresh, path)


def enrol(server: str, *, join_token: str, node_name: str, boot_id: str, devices: tuple[DeviceInfo, ...]) -> Credential:
    """Trade the token for a credential. Blocking. Raises EnrolmentError (`retry` if it may pass)."""
    # Imported here: an enrolled agent never needs an HTTP client.
    from http.client import HTTPConnection, HTTPException, HTTPSConnection

    parts = urlsplit(server)
    assert parts.hostname is not None, "checked by check_server_url"
    kind = HTTPSConnection if parts.scheme == "wss" else HTTPConnection
    connection = kind(parts.hostname, parts.port, timeout=_TIMEOUT_S)
    body = msgspec.json.encode(
        {
            "join_token": join_token,
            "node_name": node_name,
            "agent_version": VERSION,
            "boot_id": boot_id,
            "devices": devices,
        }
    )
    try:
        path = parts.path.rstrip("/") + "/agent/v1/enroll"
        connection.request("POST", path, body, {"Content-Type": "application/json", "Accept": "application/json"})
        answer = connection.getresponse()
        data = answer.read(_MAX_ANSWER_BYTES)
    except (OSError, HTTPException) as error:
        raise EnrolmentError(f"cannot reach {parts.hostname}:{parts.port}: {error}", retry=True) from error
    finally:
        connection.close()
    if not 200 <= answer.status < 300:
        retry = answer.status >= 500 or answer.status == 429
        raise EnrolmentError(f"enrolment refused ({answer.status}): {_detail(data)}", retry=retry)
    try:
        return msgspec.json.decode(data, type=Credential)
    except msgspec.DecodeError as error:
        raise EnrolmentError(f"the server's answer is no credential: {error}", retry=False) from error


def _detail(data: bytes) -> str:
    try:
        problem = msgspec.json.decode(data)
    except msgspec.DecodeError:
        return "no reason given"
    detail = problem.get("detail") or problem.get("title") if isinstance(problem, dict) else None
    return str(detail or "no reason given")[:500]
