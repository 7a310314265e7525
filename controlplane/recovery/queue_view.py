"""Why jobs wait, as the API answers it (`protocol.rest.queue`): the plan that passes ask, made when asked."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from controlplane.access.rights import EVERYTHING, Rights
from controlplane.jobs.models import Job
from controlplane.jobs.seen import UNSEEN_ID
from controlplane.policy.queue.explain import Explanation, Named, explain, explained
from controlplane.policy.queue.place import Victim
from controlplane.policy.queue.rows import Entry, Pending
from controlplane.policy.queue.schedule import schedule
from controlplane.policy.queue.spared import Spared
from controlplane.policy.reserved_words import Kept
from controlplane.protocol.states import QUEUED_JOB
from controlplane.recovery import load_queue, stakes
from controlplane.recovery.unseen import PRIVATE, as_seen_by, as_seen_from
from controlplane.runtime.clock import from_s, iso, now_s

Json = dict[str, Any]


def job_queue(job: Job, rights: Rights = EVERYTHING) -> Json:
    """Its place, or that it has none; as the job's project may know of others, and as these rights do."""
    queue = load_queue.waiting()
    found = None
    if job.state in QUEUED_JOB and any(each.id == job.id for each in queue):
        queue, fleet = as_seen_by(rights, *as_seen_from(job.project, queue, load_queue.load_fleet(queue)))
        found = explain(queue, fleet, load_queue.config(), now_s(), job.id)
    return _outside(job, len(queue)) if found is None else _inside(found, _prices([found]), _unseen(queue))


def queue_page(
    rights: Rights, after: tuple[int, str] | None, limit: int
) -> tuple[list[Json], tuple[int, str] | None, int]:
    """Rows of the queue that these rights see, in line behind the row `after` (its place and its job), where the next
    page begins, and how many of them wait. A job that has left the queue meanwhile is followed by whoever has its
    place now."""
    waiting = load_queue.waiting()
    queue, fleet = as_seen_by(rights, waiting, load_queue.load_fleet(waiting))
    config, moment_s, unseen = load_queue.config(), now_s(), _unseen(queue)
    plan = schedule(queue, fleet, config, moment_s)
    entries = [entry for entry in plan.entries if entry.job.id not in unseen]
    first = _behind(entries, after)
    shown = entries[first : first + limit]
    found = explained(plan, shown, fleet, config, moment_s)
    prices = _prices(found)
    columns = ("project", "owner", "state")
    rows = Job.objects.filter(pk__in=[entry.job.id for entry in shown]).values("id", *columns)
    about = {row["id"]: row for row in rows}
    named = {entry.job.id: entry for entry in plan.entries}
    items = [
        _row(each, about[each.entry.job.id], named, _inside(each, prices, unseen))
        for each in found
        if each.entry.job.id in about
    ]
    more = first + limit < len(entries)
    return items, (shown[-1].place, shown[-1].job.id) if more else None, len(entries)


def _behind(entries: Sequence[Entry], after: tuple[int, str] | None) -> int:
    """The index of the first row behind that one."""
    if after is None:
        return 0
    place, job_id = after
    at = next((entry.place for entry in entries if entry.job.id == job_id), place - 1)
    return next((index for index, entry in enumerate(entries) if entry.place > at), len(entries))


def _row(found: Explanation, job: Json, named: Mapping[str, Entry], inside: Json) -> Json:
    entry, behind = found.entry, named.get(found.entry.behind)
    same = ("job_id", "priority", "place", "turn", "may_start", "sentence", "needs", "expected_at")
    lists = ("makes_room", "preempts", "outranks", "no_preemption")
    return {name: inside[name] for name in (*same, *lists)} | {
        "name": entry.job.name,
        "project": job["project"],
        "owner": job["owner"],
        "state": job["state"],
        "submitted_at": _at(entry.job.submitted_s),
        "devices": entry.job.demand.devices,
        "gpu_type": entry.job.demand.gpu_type,
        "behind": None if behind is None else _other(behind),
    }


def _other(entry: Entry) -> Json:
    job = entry.job
    return {"id": _id(job), "name": job.name, "priority": job.priority, "expected_end_at": None}


def _prices(found: Iterable[Explanation]) -> Mapping[str, float]:
    """What it was expected to cost those that yield, by job."""
    urgent = [each.entry.job.id for each in found if each.yields]
    return stakes.expected(urgent) if urgent else {}


def _unseen(queue: Iterable[Pending]) -> frozenset[str]:
    return frozenset(job.id for job in queue if job.name == PRIVATE)


def _inside(found: Explanation, prices: Mapping[str, float], unseen: Collection[str]) -> Json:
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
        "preempts": [*map(_preemption, found.preempts), *_yields(found, prices)],
        "expected_at": _at(entry.expected_s),
        "outranks": _named(found.outranks),
        "no_preemption": found.no_preemption,
        "spared": [_spared(job) for job in found.spared],
        "reserved": [reserved_devices(each) for each in found.reserved],
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
        "reserved": [],
    }


def reserved_devices(kept: Kept) -> Json:
    """As `protocol.rest.ReservedDevices`."""
    found = kept.reservation
    times = {"starts_at": _at(found.from_s), "ends_at": _at(found.until_s)}
    return {"id": found.id, "project": found.shown or found.project, "devices": kept.devices, **times}


def _preemption(victim: Victim) -> Json:
    names = ("name", "priority", "devices", "lost_gpu_s")
    return {name: getattr(victim, name) for name in names} | {"id": _id(victim), "asked": False}


def _yields(found: Explanation, prices: Mapping[str, float]) -> list[Json]:
    """With what it was expected to cost when they were asked."""
    return [
        {
            "id": _id(job),
            "name": job.name,
            "priority": job.priority,
            "devices": None,
            "lost_gpu_s": prices.get(job.id),
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


def _id(job: Named | Victim | Spared | Pending) -> str:
    return UNSEEN_ID if job.name == PRIVATE else job.id


def _named(jobs: Iterable[Named]) -> list[Json]:
    return [
        {"id": _id(job), "name": job.name, "priority": job.priority, "expected_end_at": _at(job.ends_s)} for job in jobs
    ]


def _at(moment_s: float | None) -> str | None:
    return None if moment_s is None else iso(from_s(moment_s))
