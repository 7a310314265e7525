"""Prefixed ULIDs: sortable by creation, never database integers (`job_01J...`).

Pure: time and randomness are arguments; `controlplane.runtime.ids` supplies them.
"""

import re

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PATTERN = re.compile(r"^[a-z]{2,4}_[0-9A-HJKMNP-TV-Z]{26}$")


def make_id(prefix: str, time_ms: int, entropy: bytes) -> str:
    """`prefix`_ + 26 Crockford base-32 digits of 48 bits of time and 80 of `entropy` (10 bytes)."""
    assert len(entropy) == 10, "a ULID takes 10 bytes of entropy"
    number = (time_ms << 80) | int.from_bytes(entropy, "big")
    digits = [_ALPHABET[(number >> shift) & 31] for shift in range(125, -1, -5)]
    return f"{prefix}_{''.join(digits)}"


def is_id(text: str, prefix: str | None = None) -> bool:
    """True for a well-formed id, of kind `prefix` if given."""
    return bool(_PATTERN.fullmatch(text)) and (prefix is None or text.startswith(prefix + "_"))
