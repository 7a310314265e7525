"""Policy documents as calls, see `sdk.resources`."""

from typing import Any, Unpack

from controlplane.protocol import rest
from controlplane.sdk import calls
from controlplane.sdk.calls import AsRead, Page
from controlplane.sdk.resources import _Group


class Policy(_Group):
    """Policy documents: of the fleet, with `project` of a project, or with `job_id` of a job."""

    def get(self, *, project: str | None = None, job_id: str | None = None) -> Any:
        """What is in force, as a Policy."""
        return self._run(calls.get("/policy", rest.Policy, project=project, job_id=job_id))

    def xids(self) -> Any:
        """What follows each XID, and who says so, as an XidTable."""
        return self._run(calls.get("/policy/xids", rest.XidTable))

    def versions(self, *, project: str | None = None, job_id: str | None = None, limit: int | None = None) -> Any:
        """Iterates over every PolicyVersion, newest first."""
        return self._pages(
            calls.get("/policy/versions", Page[rest.PolicyVersion], project=project, job_id=job_id, limit=limit)
        )

    def diff(self, before: int, after: int, *, project: str | None = None, job_id: str | None = None) -> Any:
        """What differs between two numbers (0: the defaults), as a PolicyDiff."""
        return self._run(
            calls.get("/policy/diff", rest.PolicyDiff, before=before, after=after, project=project, job_id=job_id)
        )

    def recorded(self, version: str) -> Any:
        """The policy behind a decision's `policy_version`, as a RecordedPolicy."""
        return self._run(calls.get(calls.one("policy/recorded", version), rest.RecordedPolicy))

    def put(
        self, text: str, *, reason: str, parent: int | None = None, project: str = "", job_id: str = "",
        **read: Unpack[AsRead],
    ) -> Any:  # fmt: skip
        """Make YAML or JSON `text` the policy, as a PolicyVersion. `parent`: the `number` that you have read, or
        `if_match`: its `etag`. SdkError of status 409 or 412 where it is not the newest, of 422 with every fault."""
        body = {"text": text, "reason": reason, "project": project, "job_id": job_id} | _known(parent)
        return self._run(calls.post("/policy:put", body, rest.PolicyVersion, **read))

    def replay(
        self,
        *,
        since_s: float,
        text: str | None = None,
        project: str = "",
        job_id: str = "",
        cursor: str = "",
        limit: int = 500,
    ) -> Any:
        """One page of the journal made again, as a PolicyReplay: by the policies that decided, or by the document
        `text`. `cursor`: its `next`."""
        body = {
            "since_s": since_s,
            "text": text,
            "project": project,
            "job_id": job_id,
            "cursor": cursor,
            "limit": limit,
        }
        return self._run(calls.post("/policy:replay", body, rest.PolicyReplay))

    def rollback(
        self, to: int, *, reason: str, parent: int | None = None, project: str = "", job_id: str = "",
        **read: Unpack[AsRead],
    ) -> Any:  # fmt: skip
        """Bring version `to` back (0: the defaults), as a new PolicyVersion. `parent` and `if_match` as in `put`."""
        body = {"to": to, "reason": reason, "project": project, "job_id": job_id} | _known(parent)
        return self._run(calls.post("/policy:rollback", body, rest.PolicyVersion, **read))

    def shadow(self, *, run: int = 0) -> Any:
        """The policy beside the live one (0: the one that runs, else the newest), as a CurrentShadow, whose `shadow`
        is None where there has been none."""
        return self._run(calls.get("/policy/shadow", rest.CurrentShadow, run=run))

    def start_shadow(self, text: str, *, reason: str, bar: dict[str, float] | None = None) -> Any:
        """Let YAML or JSON `text` decide beside the live policy, as a Shadow. `bar`: fields of a ShadowBar that differ
        from the defaults. SdkError of status 409 where one runs already, of 422 with every fault."""
        body = {"text": text, "reason": reason, "bar": bar or {}}
        return self._run(calls.post("/policy/shadow:start", body, rest.Shadow))

    def promote_shadow(self, run: int, *, parent: int, reason: str) -> Any:
        """Make it the policy, as the Shadow that watches it. SdkError of status 409 below its bar, with reasons."""
        body = {"run": run, "parent": parent, "reason": reason}
        return self._run(calls.post("/policy/shadow:promote", body, rest.Shadow))

    def stop_shadow(self, run: int, *, reason: str) -> Any:
        """End it, as a Shadow; the live policy is as it was."""
        return self._run(calls.post("/policy/shadow:stop", {"run": run, "reason": reason}, rest.Shadow))


def _known(parent: int | None) -> dict[str, Any]:
    return {} if parent is None else {"parent": parent}
