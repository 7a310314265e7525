"""Writes the row of a closed bill, once: whoever is first."""

from controlplane.recovery.bill_models import Bill


def close(row: Bill) -> None:
    """Two passes at once close a month of a project once."""
    Bill.objects.bulk_create([row], ignore_conflicts=True)
