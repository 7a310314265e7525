"""Reading reservations."""

from controlplane.scheduling.models import SpareReservation


def reserved_nodes() -> dict[str, str]:
    """Node id to the job whose spare it is."""
    return dict(SpareReservation.objects.values_list("device__node_id", "job_id"))
