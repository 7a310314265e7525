"""The GPU-second ledger as the API answers it (`protocol.rest.Ledger`). Reads rows; the core counts."""

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any, Literal

import msgspec
from django.conf import settings

from controlplane.fleet.models import Node, Reservation
from controlplane.jobs.models import Job
from controlplane.policy.ledger.account import Account, Key, account
from controlplane.policy.reserved import ANOTHER
from controlplane.protocol.ledger import CauseKind, TimeClass
from controlplane.recovery import ledger_pass
from controlplane.recovery.ledger_failures import failures
from controlplane.recovery.ledger_load import Scope, load
from controlplane.recovery.models import Decision, Incident
from controlplane.recovery.selectors import Only, of_all
from controlplane.runtime import events
from controlplane.runtime.clock import from_s, iso
from controlplane.runtime.pieces import batched

Json = dict[str, Any]
By = Literal["class", "cause", "job", "node"]
HOUR_S = 3600.0
A_QUERY = 500
FREE = "nobody"
"""Whose devices are that no job held."""
UNSEEN = (CauseKind.NONE.value, "unseen")
"""The row of what is not told in particular."""


def ledger(scope: Scope, *, by: By, since_s: float, until_s: float, limit: int, only: Only = of_all) -> Json:
    """All of the answer; `limit` rows at most, the largest first. Jobs that `only` leaves out, and what happened to
    them, are one row together."""
    seq, found = events.newest_seq(), judged(scope, since_s, until_s, by_node=by == "node")
    mark = ledger_pass.mark()
    amounts = _of_scope(found, scope)
    total = sum(amounts.values())
    rows = _rows(amounts, by, found, only)
    asked = [job for job in found.jobs if job.ettr is not None and not scope.node]
    asked_gpu_s = sum(job.asked_gpu_s for job in asked)
    return {
        "since": iso(from_s(found.since_s)),
        "until": iso(from_s(found.until_s)),
        "judged_until": None if mark is None else iso(from_s(mark.judged_s)),
        "known_since": None if mark is None or mark.began_s is None else iso(from_s(mark.began_s)),
        "by": by,
        "known_gpu_s": total,
        "restated_gpu_s": found.restated_gpu_s,
        "queued_gpu_s": sum(job.queued_gpu_s for job in found.jobs),
        "ettr": sum(job.productive_gpu_s for job in asked) / asked_gpu_s if asked_gpu_s else None,
        "failures": None if (of_jobs := failures(scope, found)) is None else msgspec.to_builtins(of_jobs),
        "price": settings.GPU_HOUR_PRICE,
        "currency": settings.GPU_HOUR_CURRENCY if settings.GPU_HOUR_PRICE is not None else None,
        "classes": [_class(of, amount, total) for of, amount in _by_class(amounts).items()],
        "rows": rows[:limit],
        "left_out": max(0, len(rows) - limit),
        "as_of_seq": seq,
    }


def judged(scope: Scope, since_s: float, until_s: float, *, by_node: bool = False) -> Account:
    """Amounts of the window as far as it is known and judged."""
    mark = ledger_pass.mark()
    if mark is None or mark.began_s is None:
        return Account(since_s=since_s, until_s=since_s, known_gpu_s=0.0, amounts={}, jobs=(), restated_gpu_s=0.0)
    last_s = min(until_s, mark.judged_s)
    first_s = min(last_s, max(since_s, mark.began_s))
    facts = load(scope, first_s, last_s, judged_s=mark.judged_s)
    return account(facts, first_s, last_s, by_node=by_node, node="" if by_node else scope.node)


def _of_scope(found: Account, scope: Scope) -> dict[Key, float]:
    return {
        key: amount
        for key, amount in found.amounts.items()
        if (scope.whole or key.job) and (not scope.node or key.node in ("", scope.node))
    }


def _by_class(amounts: dict[Key, float]) -> dict[TimeClass, float]:
    """In the sequence of the classes, with those that are none."""
    found = dict.fromkeys(TimeClass, 0.0)
    for key, amount in amounts.items():
        found[key.of] += amount
    return found


def _class(of: TimeClass, amount: float, total: float) -> Json:
    return {"of": of.value, "gpu_s": amount, "share": amount / total if total else 0.0, "money": _money(amount)}


def _money(gpu_s: float) -> float | None:
    price: float | None = settings.GPU_HOUR_PRICE
    return None if price is None else gpu_s / HOUR_S * price


def _rows(amounts: dict[Key, float], by: By, found: Account, only: Only) -> list[Json]:
    total = sum(amounts.values())
    waits = {(CauseKind.JOB.value, job.job) for job in found.jobs} if by == "job" else set()
    # Of a cause that many share, what it cost jobs that are not seen is in their row.
    held = {(CauseKind.JOB.value, key.job) for key in amounts if key.job} if by == "cause" else set()
    unseen = _unseen({_name(key, by) for key in amounts} | waits | held, only)
    sums = defaultdict[tuple[str, str], dict[str, float]](dict)
    for key, amount in amounts.items():
        name = _name(key, by)
        hidden = name in unseen or (by == "cause" and (CauseKind.JOB.value, key.job) in unseen)
        of = sums[UNSEEN if hidden else name]
        of[key.of.value] = of.get(key.of.value, 0.0) + amount
    jobs = {job.job: job for job in found.jobs}
    if by == "job":
        # Who waited and held nothing is there too.
        for job in found.jobs:
            name = (CauseKind.JOB.value, job.job)
            if job.queued_gpu_s and name not in unseen and name not in sums:
                sums[name] = {}
    labels, rows = _labels(sums.keys(), by) | _reserved(sums.keys(), only), []
    for (kind, name), classes in sums.items():
        amount, of_job = sum(classes.values()), jobs.get(name) if by == "job" else None
        rows.append(
            {
                "id": name, "kind": kind, "label": labels.get((kind, name), name), "gpu_s": amount,
                "share": amount / total if total else 0.0, "money": _money(amount), "classes": classes,
                "queued_gpu_s": None if of_job is None else of_job.queued_gpu_s,
                "ettr": None if of_job is None else of_job.ettr,
            }
        )  # fmt: skip
    return sorted(rows, key=lambda row: (-row["gpu_s"], row["kind"], row["id"]))


def _unseen(names: Collection[tuple[str, str]], only: Only) -> Collection[tuple[str, str]]:
    """Those that are a job which `only` leaves out, or happened to one."""
    found: set[tuple[str, str]] = set()
    for kind, model, path in (
        (CauseKind.JOB, Job, ""),
        (CauseKind.INCIDENT, Incident, "job__"),
        (CauseKind.DECISION, Decision, "job__"),
    ):
        allowed = only(f"{path}project", none_too=bool(path))
        ids = [name for of, name in names if of == kind.value] if allowed else []
        for some in batched(ids, A_QUERY):
            seen = set(model._default_manager.filter(allowed, pk__in=some).values_list("pk", flat=True))
            found |= {(kind.value, pk) for pk in some if pk not in seen}
    return found


def _name(key: Key, by: By) -> tuple[str, str]:
    match by:
        case "class":
            return CauseKind.NONE.value, key.of.value
        case "cause":
            return str(key.cause.kind), key.cause.id
        case "job":
            return (CauseKind.JOB.value, key.job) if key.job else (CauseKind.NONE.value, FREE)
        case "node":
            return CauseKind.NODE.value, key.node


def _reserved(names: Iterable[tuple[str, str]], only: Only) -> dict[tuple[str, str], str]:
    """For whom nodes were reserved; of projects that are not seen without their names."""
    ids = [name for kind, name in names if kind == CauseKind.RESERVATION]
    found = {(CauseKind.RESERVATION.value, pk): f"reserved for {ANOTHER}" for pk in ids}
    for some in batched(ids, A_QUERY):
        for pk, project in Reservation.objects.filter(only("project"), pk__in=some).values_list("pk", "project"):
            found[CauseKind.RESERVATION.value, pk] = f"reserved for project {project}"
    return found


def _labels(names: Iterable[tuple[str, str]], by: By) -> dict[tuple[str, str], str]:
    """As people call them; what is not there calls itself by its id."""
    ids = defaultdict[str, list[str]](list)
    for kind, name in names:
        ids[kind].append(name)
    found: dict[tuple[str, str], str] = {(CauseKind.NONE.value, ""): "productive or free: nothing to explain"}
    found[UNSEEN] = "jobs of projects that you do not see"
    if by == "job":
        found[CauseKind.NONE.value, FREE] = "held by no job"
    sources: tuple[tuple[CauseKind, Any, str], ...] = (
        (CauseKind.INCIDENT, Incident, "title"),
        (CauseKind.DECISION, Decision, "sentence"),
        (CauseKind.JOB, Job, "name"),
    )
    for kind, model, column in sources:
        for some in batched(ids[kind], A_QUERY):
            rows = model._default_manager.filter(pk__in=some).values_list("pk", column)
            found |= {(kind.value, pk): text for pk, text in rows}
    if by == "node":
        for some in batched(ids[CauseKind.NODE], A_QUERY):
            rows = Node.objects.filter(pk__in=some).values_list("pk", "name")
            found |= {(CauseKind.NODE.value, pk): name for pk, name in rows}
    return found
