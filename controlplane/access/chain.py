"""What ties audit rows together: canonical bytes, the keyed digest of a row, the link to the
row before. Called by `access.audit`, `access.sealing` and `access.verification`; touches no row.

    mac    HMAC-SHA256(key, canonical content), made by the process that appends the row
    hash   HMAC-SHA256(key, seq, id, mac, prev_hash), made when the row is sealed into the chain

The key is derived from the server's secret, so that who can write to the database but does not
hold the secret can neither add a row that verifies nor close the chain after taking one out.
docs/adr/0021 says why a row is sealed after its transaction and not inside it.
"""

import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC
from itertools import count
from typing import Any, Protocol

from django.conf import settings

GENESIS = "0" * 64
VERSION = "holdfast-audit-v1"
CONTENT = (
    "actor", "action", "subject", "reason", "request_id", "origin", "decision_id", "data", "before", "after",
)  # fmt: skip


class Row(Protocol):
    """What is digested; a row of `access.models.AuditEntry`, of today or as a migration sees it."""

    id: Any
    at: Any
    seq: int | None
    prev_hash: str
    hash: str
    mac: str


def keys() -> list[bytes]:
    """The key in use, then those of earlier secrets (SECRET_KEY_FALLBACKS), which only verify."""
    secrets = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
    return [hmac.new(secret.encode(), b"holdfast audit chain v1", hashlib.sha256).digest() for secret in secrets]


def canonical(row: Row) -> bytes:
    """Every column of the content as bytes that do not depend on the database: sorted keys,
    ASCII, the time in microseconds UTC."""
    content: dict[str, Any] = {name: getattr(row, name) for name in CONTENT}
    at = row.at.astimezone(UTC).isoformat(timespec="microseconds")
    body = {"version": VERSION, "at": at, **content}
    return json.dumps(body, sort_keys=True, ensure_ascii=True, separators=(",", ":")).encode()


def row_mac(row: Row, key: bytes) -> str:
    """Proof that a holder of the key wrote this content."""
    return hmac.new(key, canonical(row), hashlib.sha256).hexdigest()


def link(row: Row, key: bytes) -> str:
    """The row's place: after the row of `prev_hash`, with its number, its id and its content."""
    text = f"{VERSION}\n{row.seq}\n{row.id}\n{row.mac}\n{row.prev_hash}".encode()
    return hmac.new(key, text, hashlib.sha256).hexdigest()


def anchor_mac(seq: int, digest: str, key: bytes) -> str:
    """Proof that the chain before and including `seq` was taken away by Holdfast itself."""
    return hmac.new(key, f"{VERSION}\nanchor\n{seq}\n{digest}".encode(), hashlib.sha256).hexdigest()


def verdict_mac(words: Sequence[object], key: bytes) -> str:
    """Proof that a holder of the key found this when it walked along the chain."""
    text = json.dumps([VERSION, "verdict", *words], ensure_ascii=True)
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def close(
    rows: Sequence[Row], head: tuple[int, str], key: bytes, *, numbers: Iterable[int] | None = None
) -> tuple[int, str]:
    """Number and link `rows`, in order, after `head` (seq, hash), with `numbers` or the next ones.
    Returns the new head. The rows are changed in memory; the caller stores them."""
    seq, digest = head
    for row, number in zip(rows, numbers or count(seq + 1), strict=False):
        seq = number
        row.seq, row.prev_hash = seq, digest
        row.hash = digest = link(row, key)
    return seq, digest


def as_document(row: Row) -> Mapping[str, Any]:
    """One line of an export: all that is digested, and the digests."""
    content = json.loads(canonical(row))
    return {"seq": row.seq, "id": row.id, **content, "mac": row.mac, "prev_hash": row.prev_hash, "hash": row.hash}
