"""The configuration in effect, as anybody may read it: each value with its source, and no secret.

Called by `manage.py print_config` and the API; touches neither database nor Redis.
"""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr

GIB = 1 << 30
HIDDEN = "(set, hidden)"
NOT_SET = "(not set)"


def effective(chosen: Any) -> list[tuple[str, str, str]]:
    """(key, value, source) of every setting of the server; `chosen` is Django's settings."""
    env, computed = chosen.ENV, _computed(chosen)
    rows = []
    for name in type(env).model_fields:
        value, source = getattr(env, name), "environment" if name in env.model_fields_set else "default"
        if name in computed and source == "default":
            value, source = computed[name], "computed"
        rows.append((env.model_config["env_prefix"] + name.upper(), shown(value, leads=name.endswith("_url")), source))
    return rows


def shown(value: Any, *, leads: bool = False) -> str:
    """A value as anybody may read it: of a secret, that there is one; of one that is an address
    (`leads`), where it leads, without user, password and parameters."""
    if isinstance(value, SecretStr):
        secret = value.get_secret_value()
        address = urlsplit(secret) if leads else None
        if address is not None and address.scheme and address.hostname:
            port = f":{address.port}" if address.port else ""
            return f"{address.scheme}://{address.hostname}{port}{address.path}"
        return HIDDEN if secret else NOT_SET
    return NOT_SET if value is None or value == "" else str(value)


def _computed(chosen: Any) -> dict[str, Any]:
    """What the settings make of a key that nobody gave."""
    database = chosen.DATABASES["default"]
    return {
        "state_dir": chosen.STATE_DIR,
        "database_url": f"sqlite://{Path(database['NAME'])}",
        "secret_key": SecretStr(chosen.SECRET_KEY),
        "signing_key_file": chosen.SIGNING_KEY_FILE,
        "allowed_hosts": ",".join(chosen.ALLOWED_HOSTS),
        "store_key_file": chosen.STORE_KEY_FILE,
        "checkpoint_root": chosen.CHECKPOINT_ROOT,
        "checkpoint_roots": ",".join(chosen.CHECKPOINT_ROOTS),
        "reference_dir": chosen.REFERENCE_DIR,
        "reference_runs": "on" if chosen.REFERENCE_RUNS else "off",
        "sandbox_memory_gib": f"{chosen.SANDBOX_MEMORY_BYTES / GIB:.1f}",
    }
