"""Replays as the API answers them (`protocol.rest.policy`)."""

from typing import Any

from controlplane.jobs.models import Job
from controlplane.policy.plan import Decision
from controlplane.recovery.replay import Differs, Page
from controlplane.runtime.clock import iso

DIFFERS = "differs"


def page(found: Page) -> dict[str, Any]:
    """`rest.PolicyReplay`, less where the next page begins and what a candidate changes."""
    ids = {each.job_id for each in found.differs if each.job_id is not None}
    names = dict(Job.objects.filter(pk__in=ids).values_list("id", "name"))
    return {
        "replayed": found.replayed,
        "equal": found.equal,
        "differences": [_difference(each, names) for each in found.differs],
        "left_out": dict(found.left_out),
    }


def _difference(each: Differs, names: dict[str, str]) -> dict[str, Any]:
    change = each.change
    row = {
        "decision_id": each.decision_id,
        "job_id": each.job_id,
        "job_name": names.get(each.job_id or ""),
        "at": iso(each.at),
        "fields": list(each.fields),
    }
    if change is None:
        assert each.before is not None, "what was made again was recorded"
        recorded = {name: each.before[name] for name in ("rule", "choice", "mode", "sentence", "cost_gpu_s")}
        after = _decision(each.again) if each.again is not None else None
        return row | {"kind": DIFFERS, "key": each.before["key"], "before": recorded, "after": after}
    named = change.before or change.after
    assert named is not None, "one of the two was decided"
    sides = {"before": change.before, "after": change.after}
    shown = {side: _decision(made) if made is not None else None for side, made in sides.items()}
    return row | {"kind": str(change.kind), "key": named.key, **shown}


def _decision(made: Decision) -> dict[str, Any]:
    return {
        "rule": made.rule,
        "choice": made.choice,
        "mode": str(made.mode),
        "sentence": made.sentence,
        "cost_gpu_s": made.cost_gpu_s,
    }
