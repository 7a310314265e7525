"""Secrets: made here, shown once, stored as SHA-256 only (they are 256 random bits, so
a slow hash would add nothing)."""

import hashlib
import secrets

SECRET_BYTES = 32


def new_secret(prefix: str) -> str:
    """`prefix` + 256 random bits, for one showing."""
    return f"{prefix}{secrets.token_urlsafe(SECRET_BYTES)}"


def digest(secret: str) -> str:
    """What is stored."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
