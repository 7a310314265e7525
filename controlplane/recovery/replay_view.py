"""Replays as the API answers them (`protocol.rest.policy`)."""

from typing import Any

import msgspec

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
        "policies": {version: config.content for version, config in found.policies.items()},
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
    return row | {"kind": str(change.kind), "key": named.key, **shown, **_case(each)}


def _case(each: Differs) -> dict[str, Any]:
    why = each.case if isinstance(each.case, str) else ""
    case = None if isinstance(each.case, str) else msgspec.to_builtins(each.case)
    row = {"assumed": each.assumed, "case": case, "no_case": why, "own": each.own, "other": each.other}
    return row | {"incident_id": each.incident_id}


def _decision(made: Decision) -> dict[str, Any]:
    return {
        "rule": made.rule,
        "choice": made.choice,
        "mode": str(made.mode),
        "sentence": made.sentence,
        "cost_gpu_s": made.cost_gpu_s,
    }
