"""Settings shared by every profile. Values of the environment come from `config.env` alone."""

import os
from importlib.util import find_spec
from pathlib import Path

from celery.schedules import crontab

from controlplane.config import env as _env
from controlplane.config import guards as _guards
from controlplane.runtime.address import parse_bind as _parse_bind
from controlplane.runtime.address import parse_networks as _parse_networks
from controlplane.runtime.tls_files import parse_paths as _parse_paths

ENV = _env.load()
PACKAGE_DIR = Path(__file__).resolve().parents[2]
STATE_DIR = ENV.state_dir.absolute()

# The demo lets its ranks' users through (controlplane/demo/users.py): its own processes and those started by hand
# beside it leave its directory so. In production no mark keeps one open.
_guards.close_directory(STATE_DIR, demo_may_open=True)

SECRET_KEY = ENV.secret_key.get_secret_value() if ENV.secret_key else ""
# Commands are signed with it. The embedded profile makes it once; production is given it.
SIGNING_KEY_FILE = (ENV.signing_key_file or STATE_DIR / "keys" / "signing_key").absolute()
SIGNING_KEY_MADE = True
# Earlier keys: they verify (sessions, audit rows) and sign nothing.
SECRET_KEY_FALLBACKS = [key for key in ENV.secret_key_fallbacks.get_secret_value().split(",") if key]
DEBUG = False
ALLOWED_HOSTS = [h for h in ENV.allowed_hosts.split(",") if h]
CSRF_TRUSTED_ORIGINS = [o for o in ENV.origins.split(",") if o]
TRUSTED_PROXIES = _parse_networks(ENV.trusted_proxies)
# What the proxy shows to agents: their proofs are bound to it. Read here too, so that a wrong file stops the start.
TLS_CERTIFICATES = _parse_paths(ENV.tls_certificate)
METRICS_FROM = _parse_networks(ENV.metrics_from)
METRICS_BIND = _parse_bind(ENV.metrics_bind)
ROOT_URLCONF = "controlplane.config.urls"
ASGI_APPLICATION = "controlplane.config.asgi.application"

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "controlplane.runtime",
    "controlplane.access",
    "controlplane.fleet",
    "controlplane.jobs",
    "controlplane.telemetry",
    "controlplane.checkpoints",
    "controlplane.dispatch",
    "controlplane.policies",
    "controlplane.recovery",
    "controlplane.scheduling",
    "controlplane.engines",
    "controlplane.live",
    "controlplane.sentinel",
    "controlplane.api",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "controlplane.config.static.CompressedFiles",
    "controlplane.runtime.requests.RequestIdMiddleware",
    *(["controlplane.api.middleware.ApiEdgeMiddleware"] if find_spec("controlplane.api") else []),
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [],
        "APP_DIRS": True,
        "OPTIONS": {"context_processors": ["django.template.context_processors.request"]},
    }
]
AUTHENTICATION_BACKENDS = [
    "django.contrib.auth.backends.ModelBackend",
    "controlplane.access.backends.OneTimePasswordBackend",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}}
]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": _env.database(ENV)}
USE_TZ = True
TIME_ZONE = "UTC"
STATIC_URL = "/static/"
STATIC_ROOT = STATE_DIR / "static"
STATIC_ROOT.mkdir(parents=True, exist_ok=True)
# The committed bundle is served from the package itself: nothing to collect.
WHITENOISE_USE_FINDERS = True
# Names of the bundle's parts say what is in them: who has one never asks again.
WHITENOISE_IMMUTABLE_FILE_TEST = r"^/static/ui/assets/"
X_FRAME_OPTIONS = "DENY"
SESSION_ENGINE = "controlplane.access.sessions"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_SAMESITE = "Lax"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
DATA_UPLOAD_MAX_MEMORY_SIZE = 1 << 20

REDIS_URL = ENV.redis_url.get_secret_value()
HOLDFAST_DEMO = ENV.demo
# The demo supervisor watches <HOLDFAST_DEMO_DIR>/requests; HOLDFAST_DEMO_CONTROL names that folder.
HOLDFAST_DEMO_DIR = ENV.demo_control.parent if ENV.demo_control else None
STORE_ADDRESS = ENV.store_address
STORE_KEY_FILE = (ENV.store_key_file or STATE_DIR / "store_key").absolute()
CHECKPOINT_ROOT = (ENV.checkpoint_root or STATE_DIR / "checkpoints").absolute()
CHECKPOINT_ROOTS = _env.checkpoint_roots(ENV, CHECKPOINT_ROOT)
# Of local tiers, which lie on the nodes: None, where nobody has named any root, leaves them to the nodes' policies.
LOCAL_ROOTS = CHECKPOINT_ROOTS if ENV.checkpoint_roots.strip(" ,") else None
DATA_ROOTS = _env.data_roots(ENV)
SANDBOX = ENV.sandbox
STORE_ENVIRONMENT, STORE_FILES = _env.store_access()
SANDBOX_USER = ENV.sandbox_user
# Half of the machine, unless somebody says otherwise: a restore test holds a whole model in memory.
SANDBOX_MEMORY_BYTES = (
    int(ENV.sandbox_memory_gib * (1 << 30))
    if ENV.sandbox_memory_gib
    else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
)
SANDBOX_DISK_BYTES = int(ENV.sandbox_disk_gib * (1 << 30))
REFERENCE_DIR = (ENV.reference_dir or STATE_DIR / "references").absolute()
# Reference runs need the trainer (torch) on the machine that certifies.
REFERENCE_NICE = ENV.reference_nice
REFERENCE_WHEN = ENV.reference_when
REFERENCE_RUNS = ENV.reference_runs == "on" or (ENV.reference_runs == "auto" and find_spec("torch") is not None)
# Of a replica that computes steps of a recovery again at the job's end; 0: none does.
RECOMPUTE_S = ENV.recompute_s
GRACE_S = ENV.grace_s
SENTINEL_SHARDS = ENV.sentinel_shards
FRAME_INTERVAL_S = ENV.frame_interval_s
SAMPLE_INTERVAL_S = ENV.sample_interval_s
OUTER_TIMEOUT_S = ENV.outer_timeout_s
CHUNK_S = ENV.chunk_s
RETENTION_DAYS = ENV.retention_days
EVENT_RETENTION_DAYS = ENV.event_retention_days
STEP_RETENTION_DAYS = ENV.step_retention_days
LEDGER_RETENTION_DAYS = ENV.ledger_retention_days
GPU_HOUR_PRICE = ENV.gpu_hour_price
GPU_HOUR_CURRENCY = ENV.gpu_hour_currency
BILL_CLASSES = ENV.bill_classes
BILL_INCIDENTS = ENV.bill_incidents
BILL_CLOSES_AFTER_DAYS = ENV.bill_closes_after_days
CHECKPOINT_OLD_S = ENV.checkpoint_old_s
ENGINE, ENGINE_SERVER = ENV.engine, ENV.engine_server
ENGINE_POLL_S, ENGINE_TIMEOUT_S = ENV.engine_poll_s, ENV.engine_timeout_s
NODE_KEY_DAYS = ENV.node_key_days
BIND = ENV.bind
REQUIRE_LOOPBACK = False

CELERY_BROKER_URL = _env.broker_url(REDIS_URL)
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_TASK_TIME_LIMIT = 60
CELERY_TASK_SOFT_TIME_LIMIT = 45
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
# Gossip and remote control both off hangs a worker for good after a broker kill: keep this on.
CELERY_WORKER_ENABLE_REMOTE_CONTROL = True
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = True
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 120,
    "unacked_restore_throttle": 1,
    "socket_timeout": 5,
    "socket_connect_timeout": 1,
    "socket_keepalive": True,
    "max_retries": 1,
    "interval_start": 0,
    "interval_max": 0.2,
}
CELERY_TASK_PUBLISH_RETRY = False
CELERY_TASK_DEFAULT_QUEUE = "holdfast"
CELERY_BEAT_SCHEDULE_FILENAME = str(STATE_DIR / "celerybeat-schedule")
CELERY_BEAT_SCHEDULE = {
    "tick": {"task": "controlplane.sentinel.tasks.tick", "schedule": 1.0, "options": {"expires": 2}},
    "canary": {"task": "controlplane.sentinel.tasks.canary", "schedule": 5.0, "options": {"expires": 10}},
    "ledger": {"task": "controlplane.sentinel.tasks.ledger", "schedule": 5.0, "options": {"expires": 5}},
    "shadow": {"task": "controlplane.sentinel.tasks.shadow", "schedule": 10.0, "options": {"expires": 10}},
    "opinions": {"task": "controlplane.sentinel.tasks.opinions", "schedule": 10.0, "options": {"expires": 10}},
    **(
        {"engine": {"task": "controlplane.sentinel.tasks.engine", "schedule": 5.0, "options": {"expires": 5}}}
        if ENGINE != "resident"
        else {}
    ),
    "retention": {"task": "controlplane.sentinel.tasks.retention", "schedule": crontab(minute="17")},
}

LOGGING_CONFIG = None
LOG_LEVEL = ENV.log_level
