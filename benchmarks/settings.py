"""The suite's settings over a database that writes as in production: every commit waits for the disk."""

from controlplane.config.settings.base import DATABASES as DURABLE
from controlplane.config.settings.test import *  # noqa: F403

DATABASES = DURABLE
