"""`manage.py print_config`: the configuration in effect, and where each value is from.

For people and their diffs; touches neither database nor Redis, and shows no secret.
"""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from controlplane.runtime.effective import effective


class Command(BaseCommand):
    """One line a key: `KEY=value`, then `# environment`, `# default` or `# computed`."""

    help = "Print the effective configuration with secrets hidden and the source of each value."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        """Print it, in the order of docs/settings.md."""
        for key, value, source in effective(settings):
            self.stdout.write(f"{key}={value}  # {source}")
