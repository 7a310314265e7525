"""Reservations of nodes for projects as calls, see `sdk.resources`."""

from collections.abc import Sequence
from typing import Any, Unpack

from controlplane.protocol import rest
from controlplane.sdk import calls
from controlplane.sdk.calls import AsRead, Page
from controlplane.sdk.resources import _Group


class Reservations(_Group):
    """Which nodes are a project's own, from when until when. Instants as ISO-8601."""

    def list(self, *, project: str | None = None, node_id: str | None = None, holds: bool = False) -> Any:
        """Iterates, newest first; `holds`: only those that are not over."""
        wanted = {"project": project, "node_id": node_id, "holds": "true" if holds else None}
        return self._pages(calls.get("/reservations", Page[rest.Reservation], **wanted))

    def set(
        self,
        project: str,
        times: tuple[str, str],
        reason: str,
        *,
        nodes: Sequence[str] = (),
        segment: str | None = None,
    ) -> Any:
        """Nodes by id, or those that are in a segment now, are the project's own from one moment until the other."""
        over = {"segment": segment} if segment is not None else {"nodes": [*nodes]}
        body = {"project": project, "starts_at": times[0], "ends_at": times[1], "reason": reason} | over
        return self._run(calls.post("/reservations", body, rest.Accepted))

    def get(self, reservation_id: str) -> Any:
        """One of them, as a OneReservation."""
        return self._run(calls.get(calls.one("reservations", reservation_id), rest.OneReservation))

    def cancel(self, reservation_id: str, reason: str, **read: Unpack[AsRead]) -> Any:
        """Its nodes are everybody's again."""
        path = calls.one("reservations", reservation_id, ":cancel")
        return self._run(calls.post(path, {"reason": reason}, rest.Accepted, **read))
