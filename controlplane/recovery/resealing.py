"""What rests sealed is sealed anew with the present HOLDFAST_SECRET_KEY; what is of before there
were seals is sealed for the first time, and taken out of the snapshots of decisions. Or all of it
is opened again, for a release that knows no seals. Called by `manage.py reseal`.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from django.db import transaction
from django.db.models import Model

from controlplane.changes.outbox import LIVE, STARTS
from controlplane.dispatch import statements
from controlplane.dispatch.models import Command
from controlplane.jobs import environment
from controlplane.jobs.models import Job
from controlplane.jobs.services import TERMINAL
from controlplane.recovery.models import Decision
from controlplane.recovery.snapshots import raw_of, raw_packed
from controlplane.runtime.errors import Conflict, NotFound
from controlplane.runtime.locks import lock_row

PAGE = 200
_FENCED = re.compile(r"a(\d{1,9})-e(\d{1,18})")
_ALTERED = (LookupError, TypeError, AttributeError, ValueError, msgspec.MsgspecError)


@dataclass(slots=True)
class Resealed:
    """Rows that were written anew, and those that could not be: `unreadable` open with no key of
    this server, `ended` are such of jobs that are over, `altered` are not as Holdfast writes them."""

    jobs: int = 0
    orders: int = 0
    snapshots: int = 0
    unreadable: int = 0
    ended: int = 0
    altered: int = 0


def reseal(*, opened: bool = False) -> Resealed:
    """All jobs, starts and snapshots, each row in a transaction of its own. `opened`: they rest in
    clear afterwards."""
    done = Resealed()
    _each(Job, lambda pk: _job(pk, done, opened), done)
    _each(Command, lambda pk: _order(pk, done, opened), done, kind=STARTS)
    _each(Decision, lambda pk: _snapshot(pk, done), done, job__isnull=False)
    return done


def adopt(job_id: str, env: Mapping[str, str]) -> tuple[int, int]:
    """Seal these as the values of the job's `env`, for rows whose keys and agents are gone, and take the attempt and
    epoch that its fence on the file system names, where they are newer than rows and agents' reports, for what was
    started already (as agents would report them); both numbers. Raises NotFound, Conflict (the job has other names)."""
    with transaction.atomic():
        job = lock_row(Job, job_id)
        if job is None:
            raise NotFound(f"no job {job_id!r}")
        if (job.spec["spec"].get("env") or {}).keys() != env.keys():
            raise Conflict("the env of the spec has other names than the job's; submit the job again")
        newest = job.attempts.order_by("-number").first()
        number, fenced = (newest.number, _fence(newest.checkpoint_dir)) if newest is not None else (0, (0, 0))
        # What agents report may be ahead of the fence already.
        known = max(number, job.ahead.get("attempt", 0)), max(job.epoch, job.ahead.get("epoch", 0))
        ahead = {"attempt": fenced[0], "epoch": max(fenced[1], known[1])} if fenced > known else {}
        spec = environment.sealed(environment.with_env(job.spec, env), job_id)
        Job.objects.filter(pk=job_id).update(spec=spec, ahead=job.ahead | ahead)
    return (ahead["attempt"], ahead["epoch"]) if ahead else known


def _fence(directory: str) -> tuple[int, int]:
    """(attempt, epoch) of the fence that ranks keep beside their checkpoints (trainer.checkpoint.fence); (0, 0): none
    that can be read from here, as in an object store."""
    try:
        names = os.listdir(Path(directory) / "FENCE") if "://" not in directory else []
    except OSError:
        return 0, 0
    found = (_FENCED.fullmatch(name) for name in names)
    return max(((int(match[1]), int(match[2])) for match in found if match), default=(0, 0))


def _each(model: type[Model], act: Callable[[str], None], done: Resealed, **which: object) -> None:
    for pk in list(model._default_manager.filter(**which).order_by("pk").values_list("pk", flat=True)):
        try:
            with transaction.atomic():
                act(pk)
        except _ALTERED:
            done.altered += 1


def _job(job_id: str, done: Resealed, opened: bool) -> None:
    job = lock_row(Job, job_id)
    if job is None or not job.spec["spec"].get("env"):
        return
    try:
        spec = environment.with_env(job.spec, environment.opened(job))
    except Conflict:
        done.unreadable += job.state not in TERMINAL
        done.ended += job.state in TERMINAL
        return
    Job.objects.filter(pk=job_id).update(spec=spec if opened else environment.sealed(spec, job_id))
    done.jobs += 1


def _order(command_id: str, done: Resealed, opened: bool) -> None:
    row = lock_row(Command, command_id)
    if row is None or not row.body["launch"].get("env"):
        return
    if not statements.opens(row):
        done.unreadable += row.state in LIVE
        done.ended += row.state not in LIVE
        return
    statements.reseal(row, opened=opened)
    row.save(update_fields=["body", "statement"])
    done.orders += 1


def _snapshot(decision_id: str, done: Resealed) -> None:
    """No policy reads a value: they are gone from it for good."""
    packed = bytes(Decision.objects.values_list("snapshot", flat=True).get(pk=decision_id))
    if not packed:
        return
    snapshot, shape = raw_of(packed)
    env = snapshot["job"]["spec"].get("env")
    if not env or set(env.values()) == {environment.MASK}:
        return
    snapshot["job"]["spec"]["env"] = dict.fromkeys(env, environment.MASK)
    Decision.objects.filter(pk=decision_id).update(snapshot=raw_packed(snapshot, shape))
    done.snapshots += 1
