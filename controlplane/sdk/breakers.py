"""Breakers as calls, see `sdk.resources`."""

from typing import Any

from controlplane.protocol import rest
from controlplane.sdk import calls
from controlplane.sdk.calls import Page
from controlplane.sdk.resources import _Group


class Breakers(_Group):
    """What holds automation until a person lets it go on."""

    def list(self) -> Any:
        """Iterates, newest first, those that are closed too."""
        return self._pages(calls.get("/breakers", Page[rest.Breaker]))

    def close(self, breaker_id: str, reason: str) -> Any:
        """Automation goes on, and counts anew."""
        return self._run(calls.post(calls.one("breakers", breaker_id, ":close"), {"reason": reason}, rest.Accepted))
