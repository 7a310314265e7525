"""Enrolment: a join token puts this node's public key into the server's books, once.

What the server answers (how it calls this node, and its own public keys) is stored with mode
0600; it holds no secret. The join token is sent in a body only; it is never part of a URL or
a log line.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from agents import VERSION
from agents.errors import ConfigError, EnrolmentError
from agents.link.durable import fill, read_private, write_file
from agents.link.keys import NodeKey
from agents.link.server import Server
from controlplane.protocol.samples import DeviceInfo

_TIMEOUT_S = 15.0
_MAX_ANSWER_BYTES = 64 * 1024


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """What the server answered: `node_id` is how it calls this node, `server_keys` the public
    keys with which it signs, pinned here. `token_sha256` is of the join token that was used."""

    node_id: str
    server_keys: tuple[str, ...] = ()
    token_sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What an enrolment tells of the machine."""

    node_name: str
    boot_id: str
    machine_id: str
    segment: str
    devices: tuple[DeviceInfo, ...]


def load_credential(path: Path) -> Credential | None:
    """None: not enrolled. Raises ConfigError if others can read it."""
    data = read_private(path)
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=Credential)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is damaged ({error}): remove it and enrol again") from error


def store_credential(path: Path, credential: Credential, *, reserved: bool = False) -> None:
    """Durable, atomic, mode 0600. `reserved`: room for it was kept (`durable.reserve`)."""
    (fill if reserved else write_file)(path, msgspec.json.encode(credential))


def token_digest(join_token: str) -> str:
    """SHA-256 as the server stores it."""
    return hashlib.sha256(join_token.encode()).hexdigest()


def enrol(server: Server, *, join_token: str, key: NodeKey, old_key: NodeKey | None, facts: Facts) -> Credential:
    """Trade the token for a place in the fleet. `old_key`: the key this node was known by, which
    lets it take its own name again. Blocking. Raises EnrolmentError (`retry` if it may pass)."""
    status, data = _post(server, enrolment(join_token=join_token, key=key, old_key=old_key, said=facts))
    return enrolled(status, data, join_token=join_token)


def enrolment(*, join_token: str, key: NodeKey, old_key: NodeKey | None, said: Facts) -> bytes:
    """What is posted, in JSON: what `said` says of the machine, and a proof of its key."""
    statement = {
        "token_sha256": token_digest(join_token),
        "node_name": said.node_name,
        "public_key": key.public_key,
        "boot_id": said.boot_id,
    }
    body = {
        "join_token": join_token,
        "node_name": said.node_name,
        "agent_version": VERSION,
        "boot_id": said.boot_id,
        "machine_id": said.machine_id,
        "segment": said.segment,
        "devices": said.devices,
        "public_key": key.public_key,
        "proof": key.enrolment(**statement),
    }
    if old_key is not None:
        body |= {"old_key_proof": old_key.enrolment(**statement)}
    return msgspec.json.encode(body)


def enrolled(status: int, data: bytes, *, join_token: str) -> Credential:
    """What the server's answer to `enrolment` gives. Raises EnrolmentError (`retry` if it may pass)."""
    if not 200 <= status < 300:
        retry = status >= 500 or status == 429
        raise EnrolmentError(f"enrolment refused ({status}): {_detail(data)}", retry=retry)
    try:
        answer = msgspec.json.decode(data, type=Credential)
    except msgspec.DecodeError as error:
        raise EnrolmentError(f"the server's answer is no enrolment: {error}", retry=False) from error
    return Credential(node_id=answer.node_id, server_keys=answer.server_keys, token_sha256=token_digest(join_token))


def _post(server: Server, body: bytes) -> tuple[int, bytes]:
    # Imported here: an enrolled agent never needs an HTTP client.
    from http.client import HTTPConnection, HTTPException, HTTPSConnection

    parts = urlsplit(server.url)
    assert parts.hostname is not None, "checked by check_server_url"
    connection = HTTPConnection(parts.hostname, parts.port, timeout=_TIMEOUT_S)
    try:
        if (context := server.context()) is not None:
            connection = HTTPSConnection(parts.hostname, parts.port, timeout=_TIMEOUT_S, context=context)
        path = parts.path.rstrip("/") + "/agent/v1/enroll"
        connection.request("POST", path, body, {"Content-Type": "application/json", "Accept": "application/json"})
        answer = connection.getresponse()
        data = answer.read(_MAX_ANSWER_BYTES)
    except (OSError, HTTPException) as error:
        raise EnrolmentError(f"cannot reach {parts.hostname}:{parts.port}: {error}", retry=True) from error
    finally:
        connection.close()
    return answer.status, data


def _detail(data: bytes) -> str:
    try:
        problem = msgspec.json.decode(data)
    except msgspec.DecodeError:
        return "no reason given"
    detail = problem.get("detail") or problem.get("title") if isinstance(problem, dict) else None
    return str(detail or "no reason given")[:500]
