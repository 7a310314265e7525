"""What every process of the server does before it opens a file, and what production refuses.

Called by the settings and by the entry points (manage.py, asgi, celery, serve, the demo).
"""

import contextlib
import os
from pathlib import Path

UMASK = 0o077
"""What a process of ours makes, only its own user reads: database, logs, references."""
MIN_SECRET_CHARS = 50
MIN_SECRET_DISTINCT = 10
_KNOWN_SECRETS = ("django-insecure-", "changeme", "change-me", "secret-key", "your-secret")


def close_files() -> None:
    """Files made from now on are for this process's user alone."""
    os.umask(UMASK)


PASS_ONLY = 0o011
"""Others may go through a directory whose contents they cannot list."""
MADE_BY_DEMO = "made-by-holdfast-demo"
"""A file in each directory of a demo, which lets its ranks' users through: whoever starts there later, by hand and
without its settings, shuts nobody out."""


def close_directory(path: Path, *, demo_may_open: bool = False) -> None:
    """A directory of mode 0700, made or made so. One that belongs to somebody else stays as it
    is: whoever made it for us decided. Where `MADE_BY_DEMO` lies and others were let through, they still are if
    `demo_may_open`."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    kept = demo_may_open and (path / MADE_BY_DEMO).exists()
    with contextlib.suppress(PermissionError):
        path.chmod(0o700 | (path.stat().st_mode & PASS_ONLY if kept else 0))


def private_file(path: Path, text: str) -> Path:
    """A file of mode 0600 with this text, also where one is that others could read."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    return path


def close_database(path: Path) -> None:
    """An SQLite file of mode 0600, made so before SQLite makes it; its -wal and -shm, which take
    their mode from it, and those an older version left readable."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    for name in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
        with contextlib.suppress(FileNotFoundError, PermissionError):
            name.chmod(0o600)


def weakness_of_secret(key: str) -> str | None:
    """Why this is no secret key for production; None if it may be one."""
    if len(key) < MIN_SECRET_CHARS:
        return f"it has {len(key)} characters; {MIN_SECRET_CHARS} are needed"
    if any(word in key.lower() for word in _KNOWN_SECRETS):
        return "it is a default or an example"
    if len(set(key)) < MIN_SECRET_DISTINCT:
        return f"it has {len(set(key))} different characters; {MIN_SECRET_DISTINCT} are needed"
    if any(key == (key[:period] * len(key))[: len(key)] for period in range(1, len(key) // 2 + 1)):
        return "it repeats itself"
    return None
