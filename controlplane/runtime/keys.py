"""The server's own signing key: made once, kept in a file of mode 0600, shown to nobody.

Called by whoever tells agents which keys to pin. The private key never leaves this module.
"""

import os
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from django.conf import settings

from controlplane.protocol.handshake import encode_bytes, server_keys_statement


def server_public_keys() -> tuple[str, ...]:
    """Base64url Ed25519 public keys with which this server signs: the current one, then the next."""
    return (encode_bytes(_key().public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)),)


def server_keys_signature() -> bytes:
    """By the current key, over the whole set."""
    return _key().sign(server_keys_statement(server_public_keys()))


@cache
def _key() -> Ed25519PrivateKey:
    path = Path(settings.STATE_DIR) / "signing_key"
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    draft = path.with_name(f"signing_key.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, fresh)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    try:
        # Fails where a key is there already: the loser of a race reads the winner's.
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        os.unlink(draft)
    key = load_pem_private_key(path.read_bytes(), password=None)
    assert isinstance(key, Ed25519PrivateKey), "the file was made here"
    return key
