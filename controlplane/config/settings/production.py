"""Several processes behind a proxy that terminates TLS; PostgreSQL and Redis are named by the environment."""

from django.core.exceptions import ImproperlyConfigured

from controlplane.config.settings.base import *  # noqa: F403
from controlplane.config.settings.base import ALLOWED_HOSTS, ENV, SECRET_KEY

if not SECRET_KEY:
    raise ImproperlyConfigured("HOLDFAST_SECRET_KEY is required in production (50 random characters or more)")
if not ALLOWED_HOSTS:
    raise ImproperlyConfigured("HOLDFAST_ALLOWED_HOSTS is required in production (comma-separated host names)")
if ENV.database_url is None:
    raise ImproperlyConfigured("HOLDFAST_DATABASE_URL is required in production (postgres://user:password@host/name)")
if ENV.signing_key_file is None:
    raise ImproperlyConfigured(
        "HOLDFAST_SIGNING_KEY_FILE is required in production (`manage.py create_signing_key` makes the file)"
    )
SIGNING_KEY_MADE = False

SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
SECURE_SSL_REDIRECT = True
# Probes and agents inside the cluster speak plain HTTP to the pod itself.
SECURE_REDIRECT_EXEMPT = [r"^healthz$", r"^readyz$", r"^metrics$"]
SECURE_HSTS_SECONDS = 31_536_000
SECURE_HSTS_INCLUDE_SUBDOMAINS = True
SECURE_HSTS_PRELOAD = True
SESSION_COOKIE_SECURE = True
CSRF_COOKIE_SECURE = True
