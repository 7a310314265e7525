"""The suite's settings over a database that writes as in production: every commit waits for the disk."""

from controlplane.config.settings import base
from controlplane.config.settings.test import *  # noqa: F403

DATABASES = base.DATABASES
