"""Writes rows of pauses (`recovery.resumptions` says what): each once, by compare-and-set."""

from datetime import datetime
from typing import Any

from controlplane.recovery.resumption_models import Resumption


def add(row: Resumption) -> bool:
    """Whether it is this one that is kept: each pause is noted once."""
    Resumption.objects.bulk_create([row], ignore_conflicts=True)
    return Resumption.objects.filter(pk=row.pk).exists()


def resumed(row: Resumption, **columns: Any) -> None:
    """A later attempt trains, as these columns say."""
    Resumption.objects.filter(pk=row.pk, recovered_at=None).update(**columns)


def claim(row: Resumption, again_at: datetime) -> bool:
    """Whether the caller is the one who judges it now."""
    return bool(
        Resumption.objects.filter(pk=row.pk, certificate_due_at=row.certificate_due_at).update(
            certificate_due_at=again_at
        )
    )


def judged(row: Resumption, certificate: dict[str, Any], again_at: datetime | None) -> None:
    """What is known of it; None: for good."""
    Resumption.objects.filter(pk=row.pk).update(certificate=certificate, certificate_due_at=again_at)


def remove(row: Resumption) -> None:
    """Its job has ended without it."""
    row.delete()
