"""The suite's settings with the host names of the environment, as in production."""

from controlplane.config.settings.base import ENV
from controlplane.config.settings.test import *  # noqa: F403

ALLOWED_HOSTS = [*ENV.allowed_hosts.split(","), "127.0.0.1"]
