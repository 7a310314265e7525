"""The environment, typed. The only place of the server that reads it.

`load()` returns the whole effective configuration; unknown HOLDFAST_ keys are warned
about, because a misspelt setting that is silently ignored is worse than a crash later.
Keys of the other programs (`HOLDFAST_AGENT_*`, `HOLDFAST_TRAINER_*`, `HOLDFAST_TEST_*`)
are theirs.
"""

import atexit
import contextlib
import os
import shutil
import sys
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from controlplane.config.guards import close_database
from controlplane.protocol.ledger import CHARGED, charged_classes

PREFIX = "HOLDFAST_"
FOREIGN_PREFIXES = ("HOLDFAST_AGENT_", "HOLDFAST_TRAINER_", "HOLDFAST_TEST_", "HOLDFAST_CLI_")
FOREIGN_KEYS = frozenset({"HOLDFAST_URL", "HOLDFAST_TOKEN", "HOLDFAST_DEMO_NODE_STATE"})

OBJECT_STORES = ("s3", "gs", "gcs")
STORE_PREFIXES = ("AWS_", "GOOGLE_", "GCSFS_", "FSSPEC_")
STORE_KEYS = frozenset(
    {"STORAGE_EMULATOR_HOST", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"}
)
STORE_FILES = {
    "AWS_CONFIG_FILE": "~/.aws/config",
    "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials",
    "GOOGLE_APPLICATION_CREDENTIALS": "~/.config/gcloud/application_default_credentials.json",
}
NO_ROOTS = ("/", "/proc", "/sys", "/dev", "/etc", "/boot", "/run")

MEMORY, MEMORY_BYTES = "/dev/shm", 1 << 30  # noqa: S108 - of test runs alone, in a new directory

Profile = Literal["embedded", "production", "test"]


NO_PROFILE = (
    "HOLDFAST_PROFILE is not set, so nothing says which installation this is for; nothing was done.\n"
    "In production run it with the settings of the services: holdfast-server manage.py ... (docs/install.md).\n"
    "For SQLite on this machine alone set HOLDFAST_PROFILE=embedded."
)


class Env(BaseSettings):
    """Every HOLDFAST_ key of the server with its default (see docs/settings.md)."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", frozen=True)

    profile: Profile | None = None
    state_dir: Path = Path("var")
    database_url: SecretStr | None = None
    redis_url: SecretStr = SecretStr("redis://127.0.0.1:6379/0")
    secret_key: SecretStr | None = None
    signing_key_file: Path | None = None
    secret_key_fallbacks: SecretStr = SecretStr("")
    allowed_hosts: str = ""
    origins: str = ""
    trusted_proxies: str = ""
    tls_certificate: str = ""
    metrics_from: str = "127.0.0.0/8,::1/128"
    metrics_bind: str = "127.0.0.1"
    hsts_s: int = Field(default=31_536_000, ge=0)
    hsts_include_subdomains: bool = False
    hsts_preload: bool = False
    bind: str = "127.0.0.1:8420"
    allow_remote_embedded: bool = False
    demo: bool = False
    demo_control: Path | None = None
    store_address: str = "127.0.0.1:29400"
    store_key_file: Path | None = None
    checkpoint_root: Path | None = None
    checkpoint_roots: str = ""
    data_roots: str = ""
    reference_dir: Path | None = None
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    reference_runs: Literal["auto", "on", "off"] = "auto"
    reference_nice: int = Field(default=10, ge=0, le=19)
    reference_when: Literal["resolved", "ended"] = "resolved"
    recompute_s: float = Field(default=300.0, ge=0.0, le=3600.0)
    sandbox: Literal["best", "require"] = "best"
    sandbox_user: str = "nobody"
    sandbox_memory_gib: float | None = Field(default=None, gt=0.0)
    sandbox_disk_gib: float = Field(default=1.0, gt=0.0)
    grace_s: float = Field(default=10.0, ge=0.0)
    sentinel_shards: int = Field(default=1, ge=1, le=64)
    frame_interval_s: float = Field(default=1.0, gt=0.0)
    sample_interval_s: float = Field(default=1.0, gt=0.0)
    outer_timeout_s: float = Field(default=60.0, gt=0.0)
    chunk_s: float = Field(default=600.0, ge=10.0)
    retention_days: float = Field(default=30.0, gt=0.0)
    event_retention_days: float = Field(default=365.0, ge=0.0)
    step_retention_days: float = Field(default=30.0, ge=0.0)
    ledger_retention_days: float = Field(default=400.0, ge=0.0)
    gpu_hour_price: float | None = Field(default=None, gt=0.0, le=1e6)
    gpu_hour_currency: str = Field(default="USD", pattern=r"^[A-Z]{3}$")
    bill_classes: str = CHARGED
    bill_incidents: bool = False
    bill_closes_after_days: float = Field(default=3.0, ge=0.0, le=27.0)
    checkpoint_old_s: float = Field(default=3600.0, gt=0.0)
    engine: Literal["resident", "slurm"] = "resident"
    engine_poll_s: float = Field(default=30.0, ge=5.0, le=600.0)
    engine_timeout_s: float = Field(default=5.0, ge=1.0, le=10.0)
    engine_server: str = Field(default="", pattern=r"^(https?://[A-Za-z0-9.:\[\]_/-]{1,180})?$")
    node_key_days: float = Field(default=30.0, gt=0.0)
    pool_max: int = Field(default=8, ge=1)

    @field_validator("bill_classes")
    @classmethod
    def _are_classes(cls, text: str) -> str:
        charged_classes(text)
        return text

    def masked(self) -> dict[str, Any]:
        """The effective configuration for the log, secrets hidden."""
        return {name: str(value) for name, value in self.model_dump().items()}


@cache
def load() -> Env:
    """Read and check the environment once. Raises pydantic's ValidationError naming the key."""
    env = Env()
    if "state_dir" not in env.model_fields_set and os.environ.get("DJANGO_SETTINGS_MODULE", "").endswith(".test"):
        # Test runs side by side must not share a database file.
        directory = tempfile.mkdtemp(prefix="holdfast-test-", dir=_memory())
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        env = env.model_copy(update={"state_dir": Path(directory)})
    for key in unknown_keys(os.environ.keys()):
        warnings.warn(f"{key} is no setting of Holdfast and is ignored; is it misspelt?", stacklevel=2)
    return env


def _memory() -> str | None:
    """Where a test's rows lie in memory: they outlive no machine, so no write of theirs waits for a disk."""
    with contextlib.suppress(OSError):
        if shutil.disk_usage(MEMORY).free >= MEMORY_BYTES and os.access(MEMORY, os.W_OK):
            return MEMORY
    return None


def unknown_keys(keys: Any) -> list[str]:
    """HOLDFAST_ keys that nobody reads, sorted."""
    known = {PREFIX + name.upper() for name in Env.model_fields} | FOREIGN_KEYS
    return sorted(k for k in keys if k.startswith(PREFIX) and k not in known and not k.startswith(FOREIGN_PREFIXES))


def choose_settings_module(default: Profile | None = None) -> str:
    """Set DJANGO_SETTINGS_MODULE from HOLDFAST_PROFILE unless it is set; return it. Where neither is
    set and there is no `default` the process ends: a command that was started without its settings
    must not make an SQLite database beside the one in use."""
    profile = os.environ.get(PREFIX + "PROFILE") or default
    if profile is None and not os.environ.get("DJANGO_SETTINGS_MODULE"):
        raise SystemExit(NO_PROFILE)
    return os.environ.setdefault("DJANGO_SETTINGS_MODULE", f"controlplane.config.settings.{profile}")


def start_or_say_why() -> None:
    """Choose the settings and read them, before anything else is done. Where they are wrong the
    process ends with status 1 and one line that names the key; values may be secrets and stay out."""
    choose_settings_module()
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured

    try:
        settings.INSTALLED_APPS  # noqa: B018 - the first look reads them all
    except ValidationError as error:
        faults = (f"{PREFIX}{'.'.join(map(str, fault['loc'])).upper()}: {fault['msg']}" for fault in error.errors())
        sys.exit(f"{'; '.join(faults)}. Holdfast does not start; docs/settings.md lists what each key takes")
    except (ImproperlyConfigured, ValueError, OSError) as error:
        sys.exit(f"{error}. Holdfast does not start")


def database(env: Env) -> dict[str, Any]:
    """Django's DATABASES["default"] from HOLDFAST_DATABASE_URL; SQLite in the state directory if unset."""
    if env.database_url is None:
        return sqlite(env.state_dir / "holdfast.sqlite3")
    url = urlsplit(env.database_url.get_secret_value())
    if url.scheme == "sqlite":
        return sqlite(Path(unquote(url.path)))
    if url.scheme not in ("postgres", "postgresql"):
        raise ValueError(f"HOLDFAST_DATABASE_URL: scheme {url.scheme!r} is not sqlite or postgres")
    query = dict(parse_qsl(url.query))
    timeouts = "-c statement_timeout=15000 -c lock_timeout=5000 -c idle_in_transaction_session_timeout=30000"
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(url.path.lstrip("/")),
        "USER": unquote(url.username or ""),
        "PASSWORD": unquote(url.password or ""),
        "HOST": query.pop("host", unquote(url.hostname or "")),
        "PORT": str(url.port or ""),
        # Persistent connections leak under ASGI (Django's own advice): a pool instead.
        "CONN_MAX_AGE": 0,
        "OPTIONS": {"pool": {"min_size": 1, "max_size": env.pool_max, "timeout": 5}, "options": timeouts, **query},
    }


def sqlite(path: Path) -> dict[str, Any]:
    """One file in WAL mode. synchronous=FULL, as an acknowledged event must survive a power cut;
    BEGIN IMMEDIATE, as a deferred transaction that upgrades fails at once instead of waiting. On a loaded machine
    a writer can wait its turn for many seconds without a fault: 20 s."""
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    close_database(path)
    return {
        "ENGINE": "controlplane.runtime.sqlite",
        "NAME": str(path),
        "OPTIONS": {
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            # What was deleted, or sealed since, is in no copy of the file.
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON;"
            " PRAGMA secure_delete=ON;",
        },
        "TEST": {"NAME": str(path.with_name("test-" + path.name))},
    }


def checkpoint_roots(env: Env, default: Path) -> tuple[str, ...]:
    """Directories and addresses below which jobs may keep checkpoints: `default`, and those of
    HOLDFAST_CHECKPOINT_ROOTS. Raises ValueError for one that would open the machine or the server."""
    state = env.state_dir.absolute()
    found = [str(default)]
    for text in filter(None, (part.strip() for part in env.checkpoint_roots.split(","))):
        place = text.rstrip("/")
        if "://" in place:
            scheme, _, prefix = place.partition("://")
            if scheme not in OBJECT_STORES or not prefix or ".." in prefix.split("/"):
                raise ValueError(f"HOLDFAST_CHECKPOINT_ROOTS: {text!r} is no s3://bucket/prefix or gs://bucket/prefix")
        else:
            _check_root("HOLDFAST_CHECKPOINT_ROOTS", text, state, what="checkpoints")
        found.append(place)
    return tuple(dict.fromkeys(found))


def data_roots(env: Env) -> tuple[str, ...]:
    """Directories below which the server may open jobs' training data, those of HOLDFAST_DATA_ROOTS.
    Raises ValueError for one that would open the machine or the server."""
    state = env.state_dir.absolute()
    found = list(filter(None, (part.strip() for part in env.data_roots.split(os.pathsep))))
    for text in found:
        _check_root("HOLDFAST_DATA_ROOTS", text, state, what="training data")
        if Path(text).is_relative_to(state):
            raise ValueError(f"HOLDFAST_DATA_ROOTS: {text!r} lies in the state directory {state}")
    return tuple(dict.fromkeys(text.rstrip("/") for text in found))


def _check_root(key: str, text: str, state: Path, *, what: str) -> None:
    place = text.rstrip("/")
    if not os.path.isabs(text) or os.path.normpath(text) != place:
        raise ValueError(f"{key}: {text!r} is no absolute path without '..'")
    if Path("/", *Path(place).parts[1:2]) in map(Path, NO_ROOTS) or state.is_relative_to(place):
        raise ValueError(
            f"{key}: {text!r} is of the system, or holds the state directory {state}; name a directory for {what} alone"
        )


def store_access() -> tuple[dict[str, str], tuple[str, ...]]:
    """How the drivers of object stores find their credentials: variables, and files that these or
    the drivers' defaults name. For a process that gets nothing else of this environment."""
    kept = {key: value for key, value in os.environ.items() if key.startswith(STORE_PREFIXES) or key in STORE_KEYS}
    for key, place in STORE_FILES.items():
        if key not in kept and Path(place).expanduser().exists():
            kept[key] = str(Path(place).expanduser())
    files = (kept[key] for key in (*STORE_FILES, "AWS_WEB_IDENTITY_TOKEN_FILE", "SSL_CERT_FILE") if key in kept)
    return kept, tuple(files)


def share_metrics() -> Path:
    """A new directory in which this process and those that it forks count together. The client library
    of Prometheus asks the environment for it when it is imported: call this before anything counts."""
    directory = tempfile.mkdtemp(prefix="holdfast-metrics-")
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = directory
    return Path(directory)


def broker_url(redis_url: str) -> str:
    """redis-py says unix://path?db=n, kombu redis+socket://path?virtual_host=n."""
    if not redis_url.startswith("unix://"):
        return redis_url
    return "redis+socket://" + redis_url.removeprefix("unix://").replace("?db=", "?virtual_host=")
