"""Decisions that were only recommended: for the snapshot, and as people are shown them."""

from collections import defaultdict
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet

from controlplane.fleet.models import Node
from controlplane.jobs.models import Attempt, Job
from controlplane.jobs.numbers import spec_of
from controlplane.policies import selectors as policies
from controlplane.policy.config import PolicyConfig
from controlplane.policy.consent import approvers_needed
from controlplane.policy.facts import TERMINAL_JOB
from controlplane.policy.recommendation import ACTS, Recommendation, Standing, acts_on
from controlplane.policy.titles import list_of, number_of
from controlplane.protocol.states import IncidentState, Mode, Verdict
from controlplane.recovery.models import Decision
from controlplane.runtime import beats
from controlplane.runtime.clock import iso
from controlplane.runtime.prepared import TEXT, Prepared

MOST = 50
"""Of an attempt, the newest."""
_SHOWN = ("who", "verdict", "reason", "at")
NO_RECOMMENDATION = "it is no recommendation: nobody is asked"


def _of_attempt(job: Any, begins: Any) -> QuerySet[Decision]:
    rows = Decision.objects.filter(job=job, mode=Mode.RECOMMEND, key__startswith=begins).order_by("-id")
    return rows.only(*_READ)[:MOST]


_READ = ("key", "at", "verdict", "verdicts")
_OF_ATTEMPT = Prepared(_of_attempt, job=TEXT, begins=TEXT)


def of_attempt(job: Job, attempt: Attempt | None) -> tuple[Recommendation, ...]:
    """Of the newest attempt. A countdown counts only while one and the same sentinel leads: nobody could object to what
    was recommended by a control plane that was away."""
    number = attempt.number if attempt is not None else 0
    return _facts(_OF_ATTEMPT(job=job.id, begins=f"{number}:"))


def of_fleet(most: int) -> tuple[Recommendation, ...]:
    """About the fleet, the newest, but of incidents that are over."""
    rows = Decision.objects.filter(job=None, mode=Mode.RECOMMEND).exclude(incident__state=IncidentState.RESOLVED)
    return _facts(list(rows.only(*_READ).order_by("-id")[:most]))


def _facts(found: list[Decision]) -> tuple[Recommendation, ...]:
    since = beats.led_since() if found else None
    return tuple(
        Recommendation(
            key=row.key,
            at_s=_counted_from(row, since).timestamp(),
            verdict=Verdict(row.verdict),
            approvers=tuple(approvals_of(row).values()),
        )
        for row in found
    )


def approvals_of(row: Decision) -> dict[str, str]:
    """Who approved it since it was last rejected or held, by the account, which is one person with however many tokens:
    how that is written. What an earlier version kept named the account alone."""
    found: dict[str, str] = {}
    for word in row.verdicts:
        if word["verdict"] != Verdict.APPROVED:
            found.clear()
        else:
            found.setdefault(word.get("person", word["who"]), word["who"])
    return found


def shown(row: Decision) -> dict[str, Any]:
    """What one decision's answer says of people's words, beside its summary."""
    if row.mode != Mode.RECOMMEND:
        acts = dict.fromkeys(ACTS, NO_RECOMMENDATION)
        return {
            "verdicts": [],
            "approvals_needed": 0,
            "acts_at": None,
            "reach": reach_of(row),
            "capabilities": acts,
        }
    needed = approvers_needed(row.cost_gpu_s, _policy_of(row))
    return {
        "verdicts": [{name: word[name] for name in _SHOWN} for word in row.verdicts],
        "approvals_needed": max(0, needed - len(approvals_of(row))),
        "acts_at": _acts_at(row),
        "reach": reach_of(row),
        "capabilities": acts_on(standing_of(row)),
    }


def standing_of(row: Decision) -> Standing:
    """For what may be done with it."""
    job = row.job
    done = Decision.objects.filter(job=job, key=row.key, mode=Mode.ENFORCE).values_list("id", flat=True).first()
    if job is None:
        return Standing(verdict=Verdict(row.verdict), done_by=done or "")
    newest = job.attempts.order_by("-number").values_list("number", flat=True).first() or 0
    return Standing(
        verdict=Verdict(row.verdict),
        job=job.name,
        job_state=job.state,
        over=job.state in TERMINAL_JOB,
        newest_attempt=row.key.startswith(f"{newest}:"),
        done_by=done or "",
    )


def _acts_at(row: Decision) -> str | None:
    job = row.job
    if row.verdict or (job is not None and job.state in TERMINAL_JOB):
        return None
    after_s = spec_of(job).spec.resiliency.act_after_s if job is not None else policies.of_fleet().fleet_act_after_s
    if after_s <= 0.0 or acts_on(standing_of(row))["approve"]:
        return None
    return iso(_counted_from(row, beats.led_since()) + timedelta(seconds=after_s))


def _policy_of(row: Decision) -> PolicyConfig:
    return policies.of_fleet() if row.job is None else policies.of_job(row.job.pk)


def _counted_from(row: Decision, led_since: datetime | None) -> datetime:
    return row.at if led_since is None else max(row.at, led_since)


def reach_of(row: Decision) -> list[str]:
    """What it would do, in words that follow on "would", from its actions: to replicas, nodes and devices."""
    by: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for action in row.actions:
        by[action["action"]].append(action)
    found = [f"end every process of attempt {action['number']}" for action in by["end_attempt"]]
    found += [f"place attempt {action['number']}" for action in by["place_attempt"]]
    names = _names({action["node_id"] for kind in _OF_NODES for action in by[kind]})
    for kind, word in (("stop_replica", "end"), ("start_replica", "start")):
        replicas = sorted({action["replica"] for action in by[kind]})
        found += [f"{word} {list_of([str(replica) for replica in replicas], 'replica')}"] if replicas else []
    found += [f"continue with {number_of(len(action['view']['members']), 'replica')}" for action in by["announce_view"]]
    found += [f"make node {names[action['node_id']]} {action['to']}" for action in by["set_node_state"]]
    found += [
        f"{word} device {action['device_index']} of node {names[action['node_id']]}"
        for kind, word in (("bar_device", "start nothing more on"), ("reset_device", "reset"))
        for action in by[kind]
    ]
    return found + (["have the ranks save"] if by["request_checkpoint"] else [])


_OF_NODES = ("set_node_state", "bar_device", "reset_device")


def _names(node_ids: Collection[str]) -> dict[str, str]:
    known = dict(Node.objects.filter(id__in=node_ids).values_list("id", "name"))
    return {node_id: known.get(node_id, node_id) for node_id in node_ids}
