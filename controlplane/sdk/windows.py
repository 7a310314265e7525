"""Known ends of nodes as calls, see `sdk.resources`."""

from collections.abc import Sequence
from typing import Any, Unpack

from controlplane.protocol import rest
from controlplane.sdk import calls
from controlplane.sdk.calls import AsRead, Page
from controlplane.sdk.resources import _Group


class Windows(_Group):
    """When nodes are known to leave: maintenance windows, and notices of their providers. Instants as ISO-8601."""

    def list(self, *, node_id: str | None = None, holds: bool = False) -> Any:
        """Iterates, newest first; `holds`: only those that are not over."""
        wanted = {"node_id": node_id, "holds": "true" if holds else None}
        return self._pages(calls.get("/windows", Page[rest.Window], **wanted))

    def maintain(self, node_id: str, starts_at: str, ends_at: str, reason: str) -> Any:
        """The node is empty when the window starts, and takes work again when it is over."""
        body = {"starts_at": starts_at, "ends_at": ends_at, "reason": reason}
        return self._run(calls.post(calls.one("nodes", node_id, ":maintain"), body, rest.Accepted))

    def set(
        self, starts_at: str, ends_at: str, reason: str, *, nodes: Sequence[str] = (), segment: str | None = None
    ) -> Any:
        """The same over nodes by id, or over those that are in a segment now."""
        over = {"segment": segment} if segment is not None else {"nodes": [*nodes]}
        body = {"starts_at": starts_at, "ends_at": ends_at, "reason": reason} | over
        return self._run(calls.post("/windows", body, rest.Accepted))

    def get(self, window_id: str) -> Any:
        """One of them, as a OneWindow."""
        return self._run(calls.get(calls.one("windows", window_id), rest.OneWindow))

    def cancel(self, window_id: str, reason: str, **read: Unpack[AsRead]) -> Any:
        """The node stays."""
        path = calls.one("windows", window_id, ":cancel")
        return self._run(calls.post(path, {"reason": reason}, rest.Accepted, **read))
