"""Several processes behind a proxy that terminates TLS; PostgreSQL and Redis are named by the environment."""

from django.core.exceptions import ImproperlyConfigured

from controlplane.config.guards import close_directory, weakness_of_secret
from controlplane.config.settings.base import *  # noqa: F403
from controlplane.config.settings.base import ALLOWED_HOSTS, ENV, SECRET_KEY, STATE_DIR, STORE_KEY_FILE
from controlplane.protocol.store_keys import WeakStoreKey, read_store_key

close_directory(STATE_DIR)
_HOW = "`openssl rand -base64 48` makes one"
if not SECRET_KEY:
    raise ImproperlyConfigured(f"HOLDFAST_SECRET_KEY is required in production; {_HOW}")
if _weakness := weakness_of_secret(SECRET_KEY):
    raise ImproperlyConfigured(f"HOLDFAST_SECRET_KEY can be guessed: {_weakness}. Holdfast does not start; {_HOW}")
if not ALLOWED_HOSTS:
    raise ImproperlyConfigured("HOLDFAST_ALLOWED_HOSTS is required in production (comma-separated host names)")
if any("*" in host for host in ALLOWED_HOSTS):
    raise ImproperlyConfigured("HOLDFAST_ALLOWED_HOSTS: '*' lets anybody choose the name; list the host names")
if ENV.database_url is None:
    raise ImproperlyConfigured("HOLDFAST_DATABASE_URL is required in production (postgres://user:password@host/name)")
try:
    STORE_KEY = read_store_key(STORE_KEY_FILE)
except WeakStoreKey as error:
    raise ImproperlyConfigured(f"HOLDFAST_STORE_KEY_FILE: {error}") from error
if ENV.signing_key_file is None:
    raise ImproperlyConfigured(
        "HOLDFAST_SIGNING_KEY_FILE is required in production (`manage.py create_signing_key` makes the file)"
    )
SIGNING_KEY_MADE = False

SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
SECURE_SSL_REDIRECT = True
# Probes and agents inside the cluster speak plain HTTP to the pod itself.
SECURE_REDIRECT_EXEMPT = [r"^healthz$", r"^readyz$", r"^metrics$"]
# What goes beyond this host's own name is its owner's decision: preloading cannot be taken back soon.
SECURE_HSTS_SECONDS = ENV.hsts_s
SECURE_HSTS_INCLUDE_SUBDOMAINS = ENV.hsts_include_subdomains
SECURE_HSTS_PRELOAD = ENV.hsts_preload
SILENCED_SYSTEM_CHECKS = ["security.W004", "security.W005", "security.W021"]
SESSION_COOKIE_SECURE = True
CSRF_COOKIE_SECURE = True
