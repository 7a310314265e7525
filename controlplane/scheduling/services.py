"""Devices kept free for a job."""

from collections.abc import Sequence

from controlplane.fleet.models import Device
from controlplane.fleet.publish import refresh_nodes
from controlplane.fleet.services import publish_device
from controlplane.jobs.models import Job
from controlplane.runtime.pieces import batched
from controlplane.scheduling.models import SpareReservation

DEVICES_A_QUERY = 500


def reserve_nodes(job: Job, node_ids: tuple[str, ...]) -> int:
    """Every unreserved device of these nodes; returns how many. A reservation of another
    job stays (one device has one, by constraint). Who follows nodes hears what is kept on them."""
    made = list[str]()
    for device in Device.objects.filter(node_id__in=node_ids, reservation=None).select_related("node"):
        SpareReservation.objects.create(job=job, device=device)
        sentence = f"{device.node.name} device {device.index} waits as spare for {job.name}."
        publish_device(device, "spare.reserved", sentence, job_id=job.id)
        made.append(device.node_id)
    refresh_nodes(sorted(set(made)))
    return len(made)


def take(devices: Sequence[str], job: Job) -> None:
    """Ranks of the job move onto these devices (ids): where one was its own spare, the reservation is used up."""
    mine = set(SpareReservation.objects.filter(job=job).values_list("device_id", flat=True))
    for some in batched([device for device in devices if device in mine], DEVICES_A_QUERY):
        SpareReservation.objects.filter(job=job, device_id__in=some).delete()


def release_nodes(job: Job, node_ids: tuple[str, ...]) -> int:
    """The job's spares on these nodes are no use to it; returns how many devices they were."""
    return _release(list(SpareReservation.objects.filter(job=job, device__node_id__in=node_ids)))


def release_all(job: Job) -> int:
    """The job needs no spares any more."""
    return _release(list(SpareReservation.objects.filter(job=job).select_related("device__node")))


def _release(rows: list[SpareReservation]) -> int:
    for row in rows:
        row.delete()
        sentence = f"{row.device.node.name} device {row.device.index} is free again."
        publish_device(row.device, "spare.released", sentence, job_id=row.job_id)
    refresh_nodes(sorted({row.device.node_id for row in rows}))
    return len(rows)
