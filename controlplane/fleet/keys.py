"""Checks signatures of nodes. Called once a session, an enrolment or a rotation, never per frame."""

from datetime import datetime

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from controlplane.fleet.models import Node
from controlplane.protocol.handshake import KEY_BYTES, decode_bytes, encode_bytes

# For peers that name no node of ours, so that they cost as much time as others. Its private half
# is dropped at once.
_NOBODY = encode_bytes(Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))


def is_public_key(text: str) -> bool:
    """32 bytes in base64url."""
    try:
        decode_bytes(text, KEY_BYTES)
    except ValueError:
        return False
    return True


def verifies(public_key: str, signature: bytes, statement: bytes) -> bool:
    """Whether that key has signed it. False for a key that is none."""
    try:
        Ed25519PublicKey.from_public_bytes(decode_bytes(public_key, KEY_BYTES)).verify(signature, statement)
    except (InvalidSignature, ValueError):
        return False
    return True


def key_that_signed(node: Node | None, signature: bytes, statement: bytes, moment: datetime) -> str:
    """Which of the node's keys has signed it: the present one, or the one before during its
    overlap; "" for none. The work is the same whether there is such a node or not."""
    present, former = "", ""
    if node is not None:
        present = node.public_key or ""
        if node.old_key_until is not None and node.old_key_until > moment:
            former = node.old_public_key
    by_present = verifies(present or _NOBODY, signature, statement)
    by_former = verifies(former or _NOBODY, signature, statement)
    if present and by_present:
        return present
    return former if former and by_former else ""
