"""Devices kept free for a job."""

from controlplane.fleet.models import Device
from controlplane.fleet.services import publish_device
from controlplane.jobs.models import Job
from controlplane.scheduling.models import SpareReservation


def reserve_nodes(job: Job, node_ids: tuple[str, ...]) -> int:
    """Every unreserved device of these nodes; returns how many. A reservation of another
    job stays (one device has one, by constraint)."""
    made = 0
    for device in Device.objects.filter(node_id__in=node_ids, reservation=None).select_related("node"):
        SpareReservation.objects.create(job=job, device=device)
        sentence = f"{device.node.name} device {device.index} waits as spare for {job.name}."
        publish_device(device, "spare.reserved", sentence, job_id=job.id)
        made += 1
    return made


def take(device: Device, job: Job) -> None:
    """A rank of the job moves onto its own spare: the reservation is used up."""
    SpareReservation.objects.filter(device=device, job=job).delete()


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
    return len(rows)
