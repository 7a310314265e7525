"""Why a job waits, as the API answers it (`protocol.rest.JobQueue`): the plan that passes ask, made when asked."""

from collections.abc import Collection, Iterable
from typing import Any

from controlplane.jobs.models import Job
from controlplane.jobs.seen import UNSEEN_ID
from controlplane.policy.queue.explain import Explanation, Named, explain
from controlplane.policy.queue.place import Victim
from controlplane.policy.queue.spared import Spared
from controlplane.protocol.states import QUEUED_JOB
from controlplane.recovery import load_queue, stakes
from controlplane.recovery.unseen import PRIVATE, as_seen_from
from controlplane.runtime.clock import from_s, iso, now_s

Json = dict[str, Any]


def job_queue(job: Job) -> Json:
    """Its place, or that it has none."""
    queue = load_queue.waiting()
    found = None
    if job.state in QUEUED_JOB and any(each.id == job.id for each in queue):
        queue, fleet = as_seen_from(job.project, queue, load_queue.load_fleet(queue))
        found = explain(queue, fleet, load_queue.config(), now_s(), job.id)
    return (
        _outside(job, len(queue))
        if found is None
        else _inside(found, {each.id for each in queue if each.name == PRIVATE})
    )


def _inside(found: Explanation, unseen: Collection[str]) -> Json:
    entry = found.entry
    return {
        "job_id": entry.job.id,
        "priority": entry.job.priority,
        "place": entry.place,
        "waiting": found.waiting,
        "turn": str(entry.turn),
        "may_start": entry.may_start,
        "sentence": found.sentence,
        "needs": found.needs,
        "devices_free": found.devices_free,
        "nodes_free": found.nodes_free,
        "behind": UNSEEN_ID if entry.behind in unseen else entry.behind or None,
        "ahead": _named(found.ahead),
        "ahead_count": found.ahead_count,
        "makes_room": _named(found.frees),
        "preempts": [*map(_preemption, found.preempts), *_yields(found)],
        "expected_at": _at(entry.expected_s),
        "outranks": _named(found.outranks),
        "no_preemption": found.no_preemption,
        "spared": [_spared(job) for job in found.spared],
    }


def _outside(job: Job, waiting: int) -> Json:
    state = "being cancelled" if job.cancel_requested and job.state in QUEUED_JOB else job.state
    return {
        "job_id": job.id,
        "priority": job.priority,
        "place": None,
        "waiting": waiting,
        "turn": "",
        "may_start": False,
        "sentence": f"It is not in the queue: it is {state}.",
        "needs": "",
        "devices_free": None,
        "nodes_free": None,
        "behind": None,
        "ahead": [],
        "ahead_count": 0,
        "makes_room": [],
        "preempts": [],
        "expected_at": None,
        "outranks": [],
        "no_preemption": "",
        "spared": [],
    }


def _preemption(victim: Victim) -> Json:
    names = ("name", "priority", "devices", "lost_gpu_s")
    return {name: getattr(victim, name) for name in names} | {"id": _id(victim), "asked": False}


def _yields(found: Explanation) -> list[Json]:
    """With what it was expected to cost when they were asked."""
    lost = stakes.expected(found.entry.job.id)
    return [
        {
            "id": _id(job),
            "name": job.name,
            "priority": job.priority,
            "devices": None,
            "lost_gpu_s": lost.get(job.id),
            "asked": True,
        }
        for job in found.yields
    ]


def _spared(job: Spared) -> Json:
    return {
        "id": _id(job),
        "name": job.name,
        "priority": job.priority,
        "why": job.why,
        "until_at": _at(job.until_s),
    }


def _id(job: Named | Victim | Spared) -> str:
    return UNSEEN_ID if job.name == PRIVATE else job.id


def _named(jobs: Iterable[Named]) -> list[Json]:
    return [
        {"id": _id(job), "name": job.name, "priority": job.priority, "expected_end_at": _at(job.ends_s)} for job in jobs
    ]


def _at(moment_s: float | None) -> str | None:
    return None if moment_s is None else iso(from_s(moment_s))
