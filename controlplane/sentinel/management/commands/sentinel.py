"""`manage.py sentinel`: the detector process and the net under Celery."""

from typing import Any

from django.core.management.base import BaseCommand

from controlplane.sentinel.process import main


class Command(BaseCommand):
    """Runs until SIGTERM; a second one stands by."""

    help = "Run the sentinel."

    def handle(self, *args: Any, **options: Any) -> None:
        """Run."""
        main()
