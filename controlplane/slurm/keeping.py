"""What is kept of a run in its folder once its control plane is gone: the job, then what the next allocation starts
from, then the incidents. Each by itself: a server that does not answer any more takes none of the others along. Job and
rows come first and wait for no answer, as little time is left where Slurm takes the nodes back.

Called by `guest`, when its job's time is over.
"""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from controlplane.config.guards import private_file
from controlplane.policy.facts import TERMINAL_JOB
from controlplane.protocol.plain import shown
from controlplane.sdk import Client
from controlplane.sdk.errors import SdkError
from controlplane.slurm import continuing

INCIDENTS = "incidents.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Allocation `id` with its folder. `checkpoints`: the root below which the job saves. `database`: the rows; None:
    of a control plane that stands already, and keeps them itself."""

    id: str
    directory: Path
    checkpoints: Path
    database: Path | None


def keep(client: Client, last: Any, run: Run, say: Callable[[str], None]) -> None:
    """`last`: the job as it was seen last, and is kept already."""
    job = last
    if job.state not in TERMINAL_JOB and run.database is not None:
        with _part("Its rows could not be kept, so that no other allocation can continue it", say):
            _leave_rows(run, run.database, job, say)
    with _part("The server does not say how the job stands; what is kept is how it was seen last", say):
        job = client.jobs.get(last.id)
        keep_job(job, run, say)
    for each in job.attempts:
        if each.certificate is not None:
            say(f"Attempt {each.number} resumed at step {each.resume_step}; certificate {each.certificate.state}.")
    with _part(f"{INCIDENTS} could not be kept", say):
        found = [client.incidents.get(each.id) for each in client.jobs.incidents(job.id)]
        _write(run.directory / INCIDENTS, found)
        for incident in found:
            state = incident.certificate.state if incident.certificate is not None else "none"
            say(f"Incident: {shown(incident.title)}; {incident.state}, certificate {state}.")


def keep_job(job: Any, run: Run, say: Callable[[str], None]) -> None:
    """By it allocations that wait behind this one know whether the job has ended. What a run that continued another
    began with goes first then: where nothing more can be written, that is nothing to continue, and no job is trained
    once more."""
    if job.state in TERMINAL_JOB:
        with _part(f"{continuing.NOTE} stays, though the job has ended", say):
            for name in (continuing.NOTE, continuing.ROWS):
                (run.directory / name).unlink(missing_ok=True)
    with _part(f"{continuing.JOB} could not be kept", say):
        _write(run.directory / continuing.JOB, job)


def _leave_rows(run: Run, database: Path, job: Any, say: Callable[[str], None]) -> None:
    """For the next allocation. Raises OSError, sqlite3.Error."""
    step, path = continuing.newest(continuing.saved(database, job.id))
    left = continuing.Left(
        job=job.id, name=job.name, committed_step=job.committed_step, step=step, path=path,
        checkpoints=str(run.checkpoints),
    )  # fmt: skip
    continuing.leave(database, run.directory, left)
    if step is not None:
        say(f"To continue it: the same `holdfast slurm submit` with --continue {run.id}.")


def _write(path: Path, value: Any) -> None:
    """Whole or not at all."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    private_file(path.with_name(f".{path.name}"), text).replace(path)


@contextlib.contextmanager
def _part(otherwise: str, say: Callable[[str], None]) -> Iterator[None]:
    try:
        yield
    except (SdkError, OSError, sqlite3.Error) as error:
        say(f"{otherwise}: {error}")
