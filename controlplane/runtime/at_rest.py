"""What rests in the database and is for nobody who reads it alone: the values of a job's `env`,
and the orders that carry them to its nodes.

AES-256-GCM by a key that is derived from SECRET_KEY, bound to the place where the text rests: what
is moved to another row opens nowhere. What was sealed with one of SECRET_KEY_FALLBACKS opens too.
Called by `jobs.environment` and by the outbox.
"""

import os
from base64 import urlsafe_b64decode, urlsafe_b64encode

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from controlplane.protocol.spec_limits import SEALED_MARK
from controlplane.runtime import keys

TEXT_MARK = f"{SEALED_MARK}1:"
# No statement begins so: msgpack writes a struct as a map.
BYTES_MARK = b"\x00sealed1:"
_NONCE_BYTES = 12


class Unreadable(Exception):
    """Sealed with a key that this server has not, for another place, or altered."""


def seal_text(text: str, place: str) -> str:
    """`text` as it may rest at `place`."""
    return TEXT_MARK + urlsafe_b64encode(_sealed(text.encode(), place)).decode()


def open_text(kept: str, place: str) -> str:
    """What was sealed; text without the mark is of before there were seals, and is as it is.
    Raises Unreadable."""
    if not kept.startswith(TEXT_MARK):
        return kept
    try:
        data = urlsafe_b64decode(kept.removeprefix(TEXT_MARK).encode())
    except ValueError as error:
        raise Unreadable(place) from error
    return _opened(data, place).decode()


def seal_bytes(data: bytes, place: str) -> bytes:
    """As `seal_text`, for bytes that begin with no mark of ours."""
    return BYTES_MARK + _sealed(data, place)


def open_bytes(kept: bytes, place: str) -> bytes:
    """As `open_text`. Raises Unreadable."""
    return _opened(kept.removeprefix(BYTES_MARK), place) if kept.startswith(BYTES_MARK) else kept


def _sealed(data: bytes, place: str) -> bytes:
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(keys.rest_keys()[0]).encrypt(nonce, data, place.encode())


def _opened(data: bytes, place: str) -> bytes:
    for key in keys.rest_keys():
        try:
            return AESGCM(key).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], place.encode())
        except (InvalidTag, ValueError):
            continue
    raise Unreadable(place)
