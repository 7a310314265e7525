"""The GPU-second ledger as calls, see `sdk.resources`."""

from typing import Any

from controlplane.protocol import rest
from controlplane.sdk import calls
from controlplane.sdk.resources import _Group


class Ledger(_Group):
    """Where the seconds of devices went."""

    def get(
        self,
        *,
        by: str | None = None,
        window_s: float | None = None,
        since: str | None = None,
        until: str | None = None,
        job: str | None = None,
        project: str | None = None,
        node: str | None = None,
        limit: int | None = None,
    ) -> Any:
        """Of the fleet, a job, project or node, the last `window_s` (a week), or `since` to `until` (ISO-8601)."""
        wanted = {"by": by, "window_s": window_s, "since": since, "until": until, "job": job, "project": project}
        return self._run(calls.get("/ledger", rest.Ledger, **wanted, node=node, limit=limit))
