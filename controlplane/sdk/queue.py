"""The queue and the fleet's capacity as calls, see `sdk.resources`."""

from typing import Any

from controlplane.protocol import rest
from controlplane.sdk import calls
from controlplane.sdk.calls import Page
from controlplane.sdk.resources import _Group


class Queue(_Group):
    """Jobs that wait for devices, and what the devices are in use for."""

    def list(self, *, limit: int | None = None) -> Any:
        """Iterates over every WaitingJob, the first to start first; `limit` rows a page."""
        return self._pages(calls.get("/queue", Page[rest.WaitingJob], limit=limit))

    def page(self, **params: Any) -> Any:
        """One Page of WaitingJobs; `limit`, `cursor`."""
        return self._run(calls.get("/queue", Page[rest.WaitingJob], **params))

    def capacity(self) -> Any:
        """Capacity: each device once, by type and segment, which jobs end when, and who yields to whom."""
        return self._run(calls.get("/capacity", rest.Capacity))
