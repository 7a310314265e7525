"""Engines as calls, see `sdk.resources`."""

from typing import Any

from controlplane.protocol import rest
from controlplane.sdk import calls
from controlplane.sdk.calls import Page
from controlplane.sdk.resources import _Group


class Engines(_Group):
    """What gives the nodes, its pools of pilots, and what is wanted of it."""

    def list(self) -> Any:
        """Iterates over every Engine."""
        return self._pages(calls.get("/engines", Page[rest.Engine]))

    def resize(self, pool_id: str, size: int, reason: str) -> Any:
        """So many pilots of the pool run at a time."""
        body = {"size": size, "reason": reason}
        return self._run(calls.post(calls.one("pools", pool_id, ":resize"), body, rest.Accepted))
