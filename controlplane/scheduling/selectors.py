"""Reading reservations."""

from controlplane.runtime.prepared import Prepared
from controlplane.scheduling.models import SpareReservation

_RESERVED = Prepared(lambda: SpareReservation.objects.values_list("device__node_id", "job_id"))


def reserved_nodes() -> dict[str, str]:
    """Node id to the job whose spare it is."""
    return dict(_RESERVED())
