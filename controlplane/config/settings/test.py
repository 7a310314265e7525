"""The suite's profile: the embedded one in a directory of its own, or any database of the environment."""

from copy import deepcopy

from controlplane.config.settings.base import *  # noqa: F403
from controlplane.config.settings.base import DATABASES, SECRET_KEY

SECRET_KEY = SECRET_KEY or "a key for tests only, long enough to please the checks of Django 5"
STORE_KEY = b"a key for tests only, of 32 bytes or more"
ALLOWED_HOSTS = ["*"]
GRACE_S = 0.0
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
# Tests kill processes, never the machine: what SQLite has not yet written it still holds, and no commit waits for the
# disk, as with `controlplane.demo.private_postgres`. `benchmarks.settings` waits for it.
DATABASES = deepcopy(DATABASES)
_options = DATABASES["default"]["OPTIONS"]
if "init_command" in _options:
    _options["init_command"] = _options["init_command"].replace("synchronous=FULL", "synchronous=OFF")
