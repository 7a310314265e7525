"""A span of time as a query gives it: the last `window_s` seconds before `until`, or from `since` to `until`."""

from datetime import datetime

from controlplane.api.problems import Kind, Problem
from controlplane.protocol import rest
from controlplane.runtime.clock import now_s

DAY_S = 86_400.0


def ends_s(
    since: datetime | None, until: datetime | None, window_s: float | None, *, default_s: float, most_s: float
) -> tuple[float, float]:
    """Its two ends in Unix seconds: of `default_s` where neither `since` nor `window_s` is given, now where `until` is
    not. Raises Problem for a span that is none, or of more than `most_s` seconds."""
    until_s = now_s() if until is None else until.timestamp()
    if until_s < most_s:
        raise _refused("until", "nothing was read so long ago", "ask for a later instant")
    if since is None:
        return until_s - (window_s or default_s), until_s
    if window_s is not None:
        raise _refused("window_s", "it says what `since` says too", "give one of the two")
    since_s = since.timestamp()
    if since_s >= until_s:
        raise _refused("since", "it is not before `until`", "ask for an earlier instant")
    if until_s - since_s > most_s:
        most = f"{most_s / DAY_S:.0f} days"
        raise _refused("since", f"more than {most} before `until`", f"ask for at most {most} at once")
    return since_s, until_s


def _refused(name: str, message: str, fix: str) -> Problem:
    fault = rest.FieldError(f"/query/{name}", message, fix)
    return Problem(Kind.INVALID, "A parameter is not valid.", errors=[fault])
