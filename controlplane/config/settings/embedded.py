"""One machine, loopback only: SQLite and a private Redis. The secret key is made once and kept."""

import os
import secrets
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

from controlplane.config.settings.base import *  # noqa: F403
from controlplane.config.settings.base import ENV, SECRET_KEY, STATE_DIR, STORE_KEY_FILE
from controlplane.protocol.store_keys import read_store_key


def _kept_secret(path: Path) -> str:
    """Read the key, or make it with mode 0600; the loser of a race reads the winner's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_text().strip()
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_urlsafe(50))
    return path.read_text().strip()


SECRET_KEY = SECRET_KEY or _kept_secret(STATE_DIR / "secret_key")
_kept_secret(STORE_KEY_FILE)
STORE_KEY = read_store_key(STORE_KEY_FILE)
REQUIRE_LOOPBACK = not ENV.allow_remote_embedded
if REQUIRE_LOOPBACK and ENV.bind.rpartition(":")[0].strip("[]") not in ("127.0.0.1", "::1", "localhost"):
    raise ImproperlyConfigured(
        f"HOLDFAST_BIND={ENV.bind}: the embedded profile has no TLS and listens on loopback only; use the production"
        " profile, or set HOLDFAST_ALLOW_REMOTE_EMBEDDED=true if you know who can reach it"
    )
ALLOWED_HOSTS = [h for h in ENV.allowed_hosts.split(",") if h] or (
    ["127.0.0.1", "localhost", "[::1]"] if REQUIRE_LOOPBACK else ["*"]
)
