"""A decision that was only recommended, as a snapshot holds it, and what people may say of it."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from controlplane.protocol.states import Verdict

ACTS: Mapping[str, Verdict] = {"approve": Verdict.APPROVED, "reject": Verdict.REJECTED, "hold": Verdict.HELD}


class Recommendation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Of the newest attempt, or of the fleet. `key` as `plan.Decision` has it; first recommended at `at_s` (server
    time). `approvers`: who approved it, each once; `verdict`: the newest word of anybody."""

    key: str
    at_s: float
    verdict: Verdict = Verdict.NONE
    approvers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where it stands. `over`: its job has ended; `newest_attempt`: it is about that one; `done_by`: the decision with
    which it was carried out all the same, "" for none. Of the fleet there is no job that ends."""

    verdict: Verdict
    done_by: str
    job: str = ""
    job_state: str = ""
    over: bool = False
    newest_attempt: bool = True


def acts_on(standing: Standing) -> dict[str, str]:
    """By act "" where it may be said, else why not, as `policy.capabilities`. Whether the policy still recommends it,
    the next pass finds out."""
    if standing.over:
        why = f"job {standing.job!r} has ended: {standing.job_state}"
    elif not standing.newest_attempt:
        why = "it was about an earlier attempt"
    elif standing.done_by:
        why = f"it was carried out by decision {standing.done_by}"
    else:
        why = ""
    acts = dict.fromkeys(ACTS, why)
    for act, verdict in ACTS.items():
        if not acts[act] and standing.verdict is verdict and act != "approve":
            acts[act] = f"it is {verdict} already"
    return acts
