"""Projects as calls, see `sdk.resources`."""

from typing import Any, Unpack

from controlplane.protocol import rest
from controlplane.sdk import calls
from controlplane.sdk.calls import AsRead, Page
from controlplane.sdk.resources import _Group


class Projects(_Group):
    """Projects: their quotas, what they use now, and who is in them. Settings are those of `rest.Project`: description,
    quota_gpus, borrow_limit_gpus, lend_limit_gpus, weight, max_priority, visibility."""

    def list(self, *, limit: int | None = None) -> Any:
        """Iterates over every Project that is seen, by name."""
        return self._pages(calls.get("/projects", Page[rest.Project], limit=limit))

    def get(self, name: str) -> Any:
        """ProjectDetail, with its members."""
        return self._run(calls.get(calls.one("projects", name), rest.ProjectDetail))

    def bill(self, name: str, month: str | None = None, *, limit: int | None = None) -> Any:
        """What it pays for a month ("2026-10" in UTC; None: this one), as a Bill; `limit` jobs, the largest first."""
        return self._run(calls.get(calls.one("projects", name, "/bill"), rest.Bill, month=month, limit=limit))

    def create(self, name: str, reason: str, **settings: Any) -> Any:
        """Project; private and without a limit unless its settings say otherwise."""
        return self._run(calls.post("/projects", {"name": name, "reason": reason, **settings}, rest.Project))

    def set(self, name: str, reason: str, *, if_match: str | None = None, **settings: Any) -> Any:
        """Give these settings other values; what is not named stays. `if_match`: the `etag` of the project as it was
        read; ChangedError where it is another one by now."""
        return self._act(name, "set", {"reason": reason, **settings}, {"if_match": if_match})

    def set_member(self, name: str, account: str, role: str, reason: str, **read: Unpack[AsRead]) -> Any:
        """From now on the account is viewer, submitter, operator or admin there."""
        return self._act(name, "set-member", {"account": account, "role": role, "reason": reason}, read)

    def remove_member(self, name: str, account: str, reason: str, **read: Unpack[AsRead]) -> Any:
        """Take the account out; its jobs stay."""
        return self._act(name, "remove-member", {"account": account, "reason": reason}, read)

    def _act(self, name: str, act: str, body: dict[str, Any], read: AsRead) -> Any:
        return self._run(calls.post(calls.one("projects", name, f":{act}"), body, rest.Accepted, **read))
