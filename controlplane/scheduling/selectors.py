"""Reading reservations."""

from typing import Any

from controlplane.jobs.models import Job
from controlplane.scheduling.models import SpareReservation


def spares_of(job: Job) -> list[dict[str, Any]]:
    """Devices kept free for the job, as the job's page lists them."""
    rows = SpareReservation.objects.filter(job=job).select_related("device__node").order_by("device__node__name")
    return [
        {"node_id": row.device.node_id, "node_name": row.device.node.name, "device_index": row.device.index}
        for row in rows.order_by("device__node__name", "device__index")
    ]


def reserved_nodes() -> dict[str, str]:
    """Node id to the job whose spare it is."""
    return dict(SpareReservation.objects.values_list("device__node_id", "job_id"))
