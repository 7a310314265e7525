"""The undisturbed run that a recovery is compared with.

When an incident opens, or a job has yielded (`recovery.resumptions`), the newest trusted checkpoint is pinned (hard
links, so retention cannot take it away). Once the incident is resolved, the trainer goes on from there by
itself, alone and undisturbed, in the sandbox and at low priority, up to the last step of the
certificate's window, or as far as it comes in `TRAIN_S`: the certificate says how many steps were
compared. Its losses must be those of the job. Without any checkpoint the run
starts at step 0, if that is near enough. Recoveries of a job that wait at the same time share a run
(`sharing`); where it does not settle one of them, that one gets a run of its own. Of a job's own program
nothing is pinned, loaded or run: its certificate says that the losses were not compared.
"""

import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import ClassVar

import msgspec
from django.conf import settings

from controlplane.checkpoints import places
from controlplane.checkpoints.keep import keep
from controlplane.checkpoints.models import Checkpoint
from controlplane.jobs.models import Job, StepRecord
from controlplane.jobs.numbers import GOOD_CHECKPOINTS, LOCAL_KIND, spec_of
from controlplane.jobs.services import TERMINAL
from controlplane.protocol import ids
from controlplane.protocol.launch import Resume, TrainerConfig
from controlplane.protocol.spec import Parallelism
from controlplane.recovery import course, sharing, training_data
from controlplane.recovery.course import Proved
from controlplane.recovery.models import Incident
from controlplane.recovery.reference import LOSSES, MAX_LOSSES_BYTES, Length, Losses, task_of
from controlplane.recovery.row_facts import config_of
from controlplane.runtime import windows
from controlplane.runtime.clock import from_s, now
from controlplane.runtime.logs import get
from controlplane.runtime.sandbox import service
from controlplane.runtime.sandbox.service import Sandboxed

GIVE_UP_S = 600.0
"""How long a certificate waits for its reference run once that has a place, and a run lasts: it comes up
at the lowest priority, on a machine that trains."""
TRAIN_S = 240.0
"""Of that it trains so long and tells what it has come to: of a large model that is a part of the steps."""
RUNNING = "running"
"""Mark of a run that was begun, in the incident's folder."""
SHARED = "shared"
"""Names the incident whose run is to judge this one too, in the incident's folder."""
FAILED = "failed"
"""Mark of a run that failed, in the incident's folder, with the reason where the server refused to start it or
ended it."""
MAX_REASON_BYTES = 4096
MAX_SHARING = 50
MAX_STEPS_ALONE = 600
MAX_RUNS = 2
"""At a time, of this process: incidents in a row must not fill the machine with proofs."""
STEPS_AFTER = 20
PATIENCE_S = 60.0

_log = get(__name__)


class _Places:
    """Of this process's runs: who has one and since when, and when one was free last (monotonic)."""

    running: ClassVar[dict[Sandboxed, float]] = {}
    free_s: ClassVar[float] = time.monotonic()


def folder(incident: Proved) -> Path:
    """Everything of one incident's reference run."""
    return Path(settings.REFERENCE_DIR) / "incidents" / incident.id


def pin(incident: Proved) -> None:
    """Keep the newest trusted checkpoint of the job; nothing if it is not on this machine."""
    rows = Checkpoint.objects.filter(job_id=incident.job_id, state__in=GOOD_CHECKPOINTS).exclude(kind=LOCAL_KIND)
    newest = rows.order_by("-step", "-epoch").first()
    if not settings.REFERENCE_RUNS or newest is None or places.is_remote(newest.path):
        return
    if not judges(newest.job) or why_no_data(newest.job):
        return
    try:
        keep(newest, folder(incident) / "checkpoint")
        (folder(incident) / "step").write_text(str(newest.step))
    except (OSError, places.Outside) as error:
        # Retention was quicker, or the disk is full, or it is no checkpoint of the job's any more:
        # the certificate will say that it has no reference.
        _log.info("checkpoint not pinned", incident=incident.id, error=str(error))


def judges(job: Job | None) -> bool:
    """The built-in trainer made its checkpoints and losses, and can make them again. Another program's
    checkpoints are code as far as is known here, and its losses nobody can repeat."""
    return job is not None and spec_of(job).spec.entrypoint is None


def why_no_data(job: Job) -> str:
    """Why the server may not train on what the job trains on, by the path alone; empty where it may."""
    return training_data.why_outside(spec_of(job).spec.training.data)


def read(incident: Proved) -> Losses | None:
    """The finished run, its own before one that it shares; None while there is none. It comes from the
    sandbox: numbers and nothing else."""
    lead = shared_with(incident)
    return _losses_in(folder(incident)) or (_losses_in(lead) if lead else None)


def _losses_in(place: Path) -> Losses | None:
    try:
        with (place / LOSSES).open("rb") as file:
            return msgspec.json.decode(file.read(MAX_LOSSES_BYTES), type=Losses)
    except (OSError, msgspec.DecodeError):
        return None


def shared_with(incident: Proved) -> Path | None:
    """The folder of the run that is to judge this incident too; None where its own is."""
    try:
        name = (folder(incident) / SHARED).read_text()
    except (OSError, ValueError):
        return None
    return folder(incident).parent / name if ids.is_id(name) else None


def is_by_shared(incident: Proved) -> bool:
    """What `read` gives is another incident's run."""
    return shared_with(incident) is not None and not (folder(incident) / LOSSES).exists()


def part(incident: Proved, *, settled: bool) -> None:
    """Where the shared run has ended, or its process has, and did not settle this incident, it gets one of
    its own."""
    lead = shared_with(incident)
    if lead is None or settled:
        return
    if (lead / LOSSES).exists() or (lead / FAILED).exists() or not _is_fresh(lead / RUNNING):
        (folder(incident) / SHARED).unlink(missing_ok=True)


def _is_fresh(mark: Path) -> bool:
    try:
        return time.time() - mark.stat().st_mtime <= GIVE_UP_S
    except OSError:
        return False


def comes(incident: Proved) -> bool:
    """A run is there, under way or possible."""
    if not settings.REFERENCE_RUNS or incident.job is None or (folder(incident) / FAILED).exists():
        return False
    if not judges(incident.job) or why_no_data(incident.job):
        return False
    # One that has begun goes on, however far the job has come since.
    begun = (folder(incident) / RUNNING).exists()
    return begun or _pinned(incident) is not None or incident.job.committed_step <= MAX_STEPS_ALONE


def is_put_off(incident: Proved) -> bool:
    """The run is made once the job has ended: its ranks need the cores until then."""
    job = incident.job
    return settings.REFERENCE_WHEN == "ended" and job is not None and job.state not in TERMINAL and comes(incident)


def is_queued(incident: Proved) -> bool:
    """Its run has not begun: those of other incidents have all the places, or one of them is to judge it too."""
    if not comes(incident) or (folder(incident) / RUNNING).exists():
        return False
    return shared_with(incident) is not None or len(_Places.running) >= MAX_RUNS


def waited_s(incident: Proved) -> float:
    """Seconds since its run has begun, or could have begun."""
    with contextlib.suppress(OSError):
        return windows.age_s(from_s((folder(incident) / RUNNING).stat().st_mtime))
    ages_s = [windows.age_s(incident.ended_at or now())]
    if settings.REFERENCE_WHEN == "ended" and incident.job is not None:
        ages_s.append(windows.age_s(incident.job.state_since))
    return min(*ages_s, time.monotonic() - _Places.free_s)


def why_missing(incident: Proved) -> str:
    """For people."""
    if not settings.REFERENCE_RUNS:
        return "reference runs are off here (HOLDFAST_REFERENCE_RUNS)"
    if incident.job is not None and not judges(incident.job):
        return "not judged: own program's checkpoints are not loaded by the server"
    if incident.job is not None and (why := why_no_data(incident.job)):
        return f"not judged: {why}"
    if refused := _refused(incident):
        return f"not judged: {refused}"
    if (folder(incident) / FAILED).exists():
        why = service.why_not_run(folder(incident))
        return f"the reference run failed ({why or 'see its log in the reference directory'})"
    if is_put_off(incident):
        return "the undisturbed run is made once the job has ended (HOLDFAST_REFERENCE_WHEN)"
    if is_queued(incident):
        return "the undisturbed run waits for those of other incidents"
    if comes(incident):
        return "the undisturbed run is being made"
    return "no checkpoint from before the fault is at hand to run from"


def _refused(incident: Proved) -> str:
    """Why the server did not start the run, or ended it; empty where it ended by itself, or there is none."""
    try:
        with (folder(incident) / FAILED).open(encoding="utf-8", errors="replace") as file:
            return file.read(MAX_REASON_BYTES)
    except OSError:
        return ""


def start(incident: Proved, *, until_step: int) -> None:
    """Begin the run once, for all incidents of the job that wait and that it can judge; who comes second
    finds the first one's mark."""
    job = incident.job
    if job is None or is_put_off(incident) or not _wants_a_run(incident) or len(_Places.running) >= MAX_RUNS:
        return
    attempt = job.attempts.order_by("number").first()
    if attempt is None:
        return
    waiting: dict[str, Proved] = {incident.id: incident} | {row.id: row for row in _others(incident)}
    ranges = [
        sharing.StepRange(
            incident_id=row.id,
            from_step=resume.step if (resume := _pinned(row)) else 0,
            until_step=until_step if row is incident else _last_step(row) + 1,
        )
        for row in waiting.values()
    ]
    group = sharing.together(ranges)
    lead = waiting[group[0].incident_id]
    place = folder(lead)
    place.mkdir(parents=True, exist_ok=True)
    if not _claim(place / RUNNING):
        return
    config = config_of(job, attempt)
    pinned = _pinned(lead)
    if pinned is not None:
        # From a checkpoint every layout trains alike, and one rank is the cheapest.
        config = msgspec.structs.replace(config, resume=pinned, parallelism=Parallelism())
    training = msgspec.structs.replace(config.training, step_delay_s=0.0)
    config = msgspec.structs.replace(config, training=training)
    until = max(one.until_step for one in group)
    process = _start(config, place, until)
    if process is None:
        return
    _Places.running[process] = time.monotonic()
    for one in group[1:]:
        (folder(waiting[one.incident_id]) / SHARED).write_text(lead.id)
    _log.info("reference run started", incident=lead.id, pid=process.pid, until_step=until, judges=len(group))


def _last_step(incident: Proved) -> int:
    assert incident.certificate is not None, "only those that were certified once wait for a run"
    return int(incident.certificate["step"])


def _wants_a_run(incident: Proved) -> bool:
    """None was made or begun, one is possible, and there is enough for it to judge."""
    place = folder(incident)
    if not comes(incident) or (place / LOSSES).exists() or shared_with(incident) is not None:
        return False
    return not _is_fresh(place / RUNNING) and _reaches_beyond(incident)


def _others(incident: Proved) -> list[Incident]:
    """Those of the job that wait for a run as well, from a checkpoint."""
    rows = Incident.objects.filter(job_id=incident.job_id, certificate_due_at__isnull=False).exclude(pk=incident.pk)
    waiting = [row for row in rows.select_related("job").order_by("opened_at", "id")[:MAX_SHARING] if row.certificate]
    return [row for row in waiting if _pinned(row) is not None and _wants_a_run(row)]


def _start(config: TrainerConfig, place: Path, until_step: int) -> Sandboxed | None:
    """In the sandbox, which sees the pinned checkpoint and the data. None, and the mark of a failed
    run, where it cannot be started."""
    with contextlib.ExitStack() as held:
        try:
            task = task_of(config, place, held, length=Length(wall_s=GIVE_UP_S, steps=until_step, train_s=TRAIN_S))
            return service.start(task)
        except (OSError, places.Outside) as error:
            _log.warning("reference run not started", place=str(place), error=str(error))
            why = str(error) if isinstance(error, places.Outside) else ""
            (place / FAILED).write_text(why, encoding="utf-8", errors="replace")
            return None


def reap() -> None:
    """Collect ended runs of this process; one that lasts too long is ended by its limit. A failed one
    leaves its mark."""
    for process, since_s in list(_Places.running.items()):
        code, late = process.poll(), time.monotonic() - since_s > GIVE_UP_S
        if code is None and late:
            process.end()
            code = process.poll()
        if code is None:
            continue
        del _Places.running[process]
        _Places.free_s = time.monotonic()
        if code != 0:
            late = late or code == service.OUT_OF_TIME
            text = f"the undisturbed run did not end within {GIVE_UP_S:.0f} s" if late else ""
            (process.place / FAILED).write_text(text, encoding="utf-8")
            _log.warning("reference run failed", place=str(process.place), why=text or service.ended(code))


def clear(incident: Proved) -> None:
    """The certificate is final: the pinned checkpoint is not needed any more."""
    shutil.rmtree(folder(incident) / "checkpoint", ignore_errors=True)


def _reaches_beyond(incident: Proved) -> bool:
    """Enough steps were committed after the recovery for the comparison to say something
    about it; a job that ended, or takes minutes a step, is not waited for."""
    after = StepRecord.objects.filter(course.ended(incident).after(), job_id=incident.job_id).count()
    return after >= STEPS_AFTER or windows.age_s(incident.ended_at or now()) >= PATIENCE_S


def _pinned(incident: Proved) -> Resume | None:
    directory = folder(incident) / "checkpoint"
    try:
        step = int((folder(incident) / "step").read_text())
    except (OSError, ValueError):
        return None
    return Resume(str(directory), step) if directory.is_dir() else None


def _claim(mark: Path) -> bool:
    """True for the one that may start. A mark older than any run lasts belongs to a process
    that died."""
    with contextlib.suppress(OSError):
        # One look tells that it is there and old: between two, another process may have made it.
        if time.time() - mark.stat().st_mtime > GIVE_UP_S:
            mark.unlink()
    try:
        os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return False
    return True
