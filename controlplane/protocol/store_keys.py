"""Which keys of the rendezvous store belong to a job: `/<job id>/<token>/...`.

The token is the job's own secret: HMAC-SHA256 of its id under the key that the control plane
and the store process share. The store serves a key only to who names its token, so a job can
neither read nor list nor write what belongs to another. Used by the control plane (it hands
a job its token), by ranks (they prefix their keys) and by the store (it checks). No torch.
"""

import base64
import hashlib
import hmac
import re
from pathlib import Path

CONTEXT = b"holdfast-store-v1\0"
MIN_KEY_BYTES = 32
STORE_ITSELF, METRICS_KEY = "the-store", "metrics"
"""What the store says of itself lies under a job of this name: where its figures are."""
TOKEN_CHARS = 43
_TOKEN = re.compile(r"(?<=/)[A-Za-z0-9_-]{43}(?=/|$)")


class WeakStoreKey(ValueError):
    """The shared key is missing, or too short to be one."""


def read_store_key(path: Path) -> bytes:
    """The shared key, as its file has it without white space at its ends. Raises WeakStoreKey
    (absent, unreadable, or under MIN_KEY_BYTES) with how to mend it."""
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise WeakStoreKey(f"the store key cannot be read: {error}; {_how(path)}") from error
    if len(key) < MIN_KEY_BYTES:
        raise WeakStoreKey(f"{path} has {len(key)} bytes, a store key has {MIN_KEY_BYTES} or more; {_how(path)}")
    return key


def store_token(key: bytes, job_id: str) -> str:
    """The secret of one job: TOKEN_CHARS characters of base64url."""
    digest = hmac.digest(key, CONTEXT + job_id.encode(), hashlib.sha256)
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


def store_prefix(job_id: str, token: str) -> str:
    """What every key of the job begins with, without the store's own leading slash."""
    return f"{job_id}/{token}"


def without_tokens(text: str) -> str:
    """For logs and reports: torch names whole keys in its errors."""
    return _TOKEN.sub("***", text)


def _how(path: Path) -> str:
    return f"make one with: umask 077; openssl rand -hex 32 > {path}"
