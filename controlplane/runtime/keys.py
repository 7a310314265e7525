"""The server's keys: Ed25519 pairs that sign commands, and secrets derived for Redis.

Whoever decides signs (dispatch.enqueue_all: worker, sentinel, web for acts of people); who
only carries needs no key. The signing keys are a file: made once in the state directory by
the embedded profile, named by HOLDFAST_SIGNING_KEY_FILE in production. Agents pin the
public halves of both keys when they enrol; a rotation makes the next key the current one,
so an agent that pinned the old pair can verify the new.

What travels through Redis, and what rests in the database and is a secret, is sealed with keys
derived from SECRET_KEY, one for each use.
No key is ever logged, sent, or put into the database.
"""

import os
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from controlplane.protocol.signing import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    from_text,
    key_id,
    signed_broadcast,
    signed_command,
    signed_end,
    signed_keys,
    to_text,
)

SEAL_KEY_BYTES = 32
_MAX_FILE_BYTES = 4096
_lock = threading.Lock()
_held: "dict[Path, Keys]" = {}


class KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file: two private keys, base64url of 32 bytes each, and the public half of the one
    that was current before ("": none was)."""

    current: str
    next: str
    previous: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """`public`: base64url, the current one first, then the next. `signature`: of that set, by
    the current key. `previous`: known for what it has signed, pinned by nobody any more."""

    signer: Ed25519PrivateKey
    key_id: str
    public: tuple[str, ...]
    signature: str
    previous: str


def sign_command(statement: bytes) -> tuple[str, bytes]:
    """(id of the current key, its signature of an encoded `CommandStatement`)."""
    key, sign = command_signer()
    return key, sign(statement)


def command_signer() -> tuple[str, Callable[[bytes], bytes]]:
    """(id of the current key, what signs one encoded `CommandStatement` after the other with it)."""
    held = current()
    return held.key_id, lambda statement: held.signer.sign(signed_command(statement))


def is_ours(statement: bytes, signature: bytes, signed_by: str) -> bool:
    """A key of ours has signed this command: a present one, or the one before."""
    return _is_ours(signed_command(statement), signature, signed_by)


def broadcast_signer() -> tuple[str, Callable[[bytes], bytes]]:
    """(id of the current key, what signs with it the same command to many nodes)."""
    held = current()
    return held.key_id, lambda said: held.signer.sign(signed_broadcast(said))


def is_our_broadcast(said: bytes, signature: bytes, signed_by: str) -> bool:
    """As `is_ours`, of the same command to many nodes."""
    return _is_ours(signed_broadcast(said), signature, signed_by)


def _is_ours(said: bytes, signature: bytes, signed_by: str) -> bool:
    held = current()
    public = next((key for key in (*held.public, held.previous) if key and key_id(key) == signed_by), None)
    return public is not None and _verifies(public, signature, said)


def sign_end(job_id: str, attempt: int, end: str) -> str:
    """The current key's signature of a job's end, for nodes to keep."""
    return to_text(current().signer.sign(signed_end(job_id, attempt, end)))


def is_our_end(signature: str, job_id: str, attempt: int, end: str) -> bool:
    """A key of ours, a present one or the one before, has signed that the job ended so."""
    held = current()
    try:
        given = from_text(signature, SIGNATURE_BYTES)
    except ValueError:
        return False
    said = signed_end(job_id, attempt, end)
    return any(_verifies(public, given, said) for public in (*held.public, held.previous) if public)


def _verifies(public: str, signature: bytes, said: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(from_text(public, KEY_BYTES)).verify(signature, said)
    except InvalidSignature:
        return False
    return True


def server_public_keys() -> tuple[str, ...]:
    """What an agent pins: base64url, current, then next."""
    return current().public


def server_keys_signature() -> str:
    """The current key's signature of the set, for agents that have pinned another."""
    return current().signature


def current() -> Keys:
    """The keys of the file as it is now, or was when it was last there. Raises
    ImproperlyConfigured."""
    path: Path = settings.SIGNING_KEY_FILE
    try:
        changed_ns = path.stat().st_mtime_ns
    except FileNotFoundError:
        if path in _held:
            return _held[path]
        if not settings.SIGNING_KEY_MADE:
            raise ImproperlyConfigured(
                f"there is no signing key in {path} (HOLDFAST_SIGNING_KEY_FILE): no command can be given without it;"
                " make one with `manage.py create_signing_key`, readable by the server's user alone"
            ) from None
        write_new(path)
        changed_ns = path.stat().st_mtime_ns
    with _lock:
        _held[path] = _load(path, changed_ns)
        return _held[path]


@cache
def _load(path: Path, changed_ns: int) -> Keys:
    """One entry for each state of the file."""
    kept = read_file(path)
    pair = [Ed25519PrivateKey.from_private_bytes(_bytes(path, text)) for text in (kept.current, kept.next)]
    public = tuple(to_text(key.public_key().public_bytes_raw()) for key in pair)
    signature = to_text(pair[0].sign(signed_keys(public)))
    return Keys(signer=pair[0], key_id=key_id(public[0]), public=public, signature=signature, previous=kept.previous)


def read_file(path: Path) -> KeyFile:
    """Raises ImproperlyConfigured where it is damaged, or readable by others."""
    mode = path.stat().st_mode
    if mode & 0o037:
        raise ImproperlyConfigured(f"{path} holds the signing keys and is open to others: chmod 600 it")
    try:
        return msgspec.json.decode(path.read_bytes()[:_MAX_FILE_BYTES], type=KeyFile)
    except msgspec.DecodeError as error:
        raise ImproperlyConfigured(f"{path} holds no signing keys ({error}): restore it from your backup") from error


def write_new(path: Path) -> bool:
    """Make two keys and keep them, mode 0600, unless the file is there (False)."""
    return _write(path, KeyFile(current=_fresh(), next=_fresh()), replace=False)


def rotate(path: Path) -> tuple[str, ...]:
    """The next key becomes the current one, beside a fresh next one; the public keys."""
    kept = read_file(path)
    before = _load(path, path.stat().st_mtime_ns).public[0]
    _write(path, KeyFile(current=kept.next, next=_fresh(), previous=before), replace=True)
    return _load(path, path.stat().st_mtime_ns).public


def _write(path: Path, content: KeyFile, *, replace: bool) -> bool:
    """Whole or not at all, whoever else writes at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(content))
            file.flush()
            os.fsync(file.fileno())
        if replace:
            os.replace(fresh, path)
            return True
        try:
            os.link(fresh, path)
        except FileExistsError:
            return False
        return True
    finally:
        fresh.unlink(missing_ok=True)


def _fresh() -> str:
    return to_text(secrets.token_bytes(KEY_BYTES))


def _bytes(path: Path, text: str) -> bytes:
    try:
        return from_text(text, KEY_BYTES)
    except ValueError as error:
        raise ImproperlyConfigured(f"{path} holds a key that is none ({error}): restore it") from error


def seal_key(purpose: str) -> bytes:
    """A secret of 32 bytes for one use of Redis, the same in all processes of this server."""
    return _derived(settings.SECRET_KEY, f"holdfast-redis-v1:{purpose}")


def rest_keys() -> tuple[bytes, ...]:
    """Secrets of 32 bytes for what rests sealed in the database: with the first is sealed, the
    others are of the earlier secret keys."""
    return tuple(
        _derived(secret, "holdfast-rest-v1") for secret in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    )


@cache
def _derived(secret: str, use: str) -> bytes:
    derivation = HKDF(algorithm=SHA256(), length=SEAL_KEY_BYTES, salt=None, info=use.encode())
    return derivation.derive(secret.encode())
