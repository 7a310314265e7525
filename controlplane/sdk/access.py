"""API tokens and the audit log as calls, see `sdk.resources`."""

from typing import Any

import msgspec

from controlplane.protocol import rest
from controlplane.sdk import calls
from controlplane.sdk.calls import Page
from controlplane.sdk.resources import _Group


class Tokens(_Group):
    """API tokens."""

    def list(self, *, everybody: bool | None = None) -> Any:
        """Iterates over mine; an administrator may ask for those of `everybody`."""
        return self._pages(calls.get("/tokens", Page[rest.Token], everybody=everybody))

    def create(self, name: str, *, scope: str = "read", expires_in_s: float | None = None, project: str = "") -> Any:
        """Token whose `token` is told this once; good in `project` alone, if one is named."""
        body = {"name": name, "scope": scope, "expires_in_s": expires_in_s, "project": project}
        return self._run(calls.post("/tokens", body, rest.Token))

    def revoke(self, token_id: str) -> Any:
        """At once and for good."""
        return self._run(calls.post(calls.one("tokens", token_id, ":revoke"), {}, rest.Accepted))


class Audit(_Group):
    """The audit log; for administrators."""

    def list(self, **filters: Any) -> Any:
        """Iterates over entries, newest first. `filters`: actor, action (`login.*`), subject,
        request_id, decision_id, since and until (ISO-8601 with an offset)."""
        return self._pages(calls.get("/audit", Page[rest.AuditEntry], **filters))

    def export(self, *, after_seq: int = 0, limit: int = 1000, **filters: Any) -> Any:
        """Up to `limit` sealed rows after `after_seq` in the order of the chain, as a list of mappings with their
        digests; fewer than `limit`: there are no more. `filters`: as `list`."""
        call = calls.get("/audit/export", dict[str, Any], after_seq=after_seq, limit=limit, **filters)
        return self._run(msgspec.structs.replace(call, lines=True))

    def state(self) -> Any:
        """AuditState: up to which row the log was verified, when, and what was found."""
        return self._run(calls.get("/audit/state", rest.AuditState))
