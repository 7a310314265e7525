"""What a run leaves so that the next allocation can continue it, and how that one takes it up.

A run that ends before its job leaves a copy of its rows (`rows.sqlite3`) and a note (`continue.json`, written last) in
its folder. The next allocation's control plane starts on that copy, as a server does after its backup was restored:
jobs, attempts, checkpoints, incidents and certificates are there, the job waits, and the nodes are gone. Which
checkpoint it resumes from is the policy's own choice, and its ranks compare every byte before they train on it.

No credential outlives the allocation: tokens, passwords, sessions and public keys are taken out of the copy, and what
was sealed or signed with the allocation's own keys (values of `env`, the audit log's chain) is worth nothing without
them. Called by `guest`, and by `holdfast slurm submit --continue` for its checks.
"""

import contextlib
import os
import re
import shutil
import sqlite3
from pathlib import Path

import msgspec

from controlplane.checkpoints.verify import MARKER, MAX_MARKER_BYTES, Marker
from controlplane.config.guards import private_file
from controlplane.policy.checkpoints import TRUSTED
from controlplane.policy.facts import TERMINAL_JOB
from controlplane.protocol.spec import JobSpec
from controlplane.protocol.spec_lint import lint
from controlplane.protocol.spec_text import SpecTextError, parse_yaml
from controlplane.slurm.plan import PlanError

FORMAT = 1
ROWS, NOTE, TAKEN, SPEC, JOB = "rows.sqlite3", "continue.json", "continued-by", "job.yaml", "job.json"
MAX_NOTE_BYTES = 1 << 16
MAX_JOB_BYTES = 16 << 20
MAX_LISTED = 10
RUN = re.compile(r"[0-9]{1,10}")
EMPTIED = (
    "access_idempotencykey", "access_onetimepassword", "access_apitoken", "access_jointoken", "access_signingate",
    "django_session", "access_auditentry", "access_auditanchor", "access_auditverdict", "telemetry_telemetrychunk",
)  # fmt: skip
"""Tables that the copy has no rows of: credentials; the audit log, which only the allocation's own key can verify; and
the readings of devices, most of the bytes."""
BLANKED = (
    "UPDATE auth_user SET password = '!'",
    "UPDATE fleet_node SET public_key = NULL, old_public_key = '', session_id = ''",
)


class Left(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The note. `job`: its id in the rows, `name` for people. `step` and `path`: of the newest checkpoint that may be
    resumed from; None and "": there is none. `checkpoints`: the root below which the job saves."""

    format: int = FORMAT
    job: str
    name: str
    committed_step: int
    step: int | None
    path: str
    checkpoints: str


class Over(msgspec.Struct, frozen=True):
    """The job of that run has ended: there is nothing to continue."""

    state: str
    committed_step: int
    state_reason: str = ""


def leave(database: Path, folder: Path, left: Left) -> None:
    """Put a copy of the rows and the note into `folder`. `database` may be in use. Raises OSError, sqlite3.Error."""
    draft = database.with_name("rows.draft")
    try:
        _copy(database, draft)
        with contextlib.closing(sqlite3.connect(draft, isolation_level=None)) as rows:
            _scrub(rows)
        _put(draft, folder / ROWS)
    finally:
        draft.unlink(missing_ok=True)
    private_file(folder / NOTE, msgspec.json.format(msgspec.json.encode(left), indent=2).decode())


def _copy(database: Path, draft: Path) -> None:
    """As `.backup` of sqlite3 does it, in one piece, while others write."""
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    with (
        contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as there,
        contextlib.closing(sqlite3.connect(draft)) as here,
    ):
        there.backup(here, pages=-1)


def _scrub(rows: sqlite3.Connection) -> None:
    """Nothing that was deleted stays in the file either: it is written again from the start."""
    rows.execute("PRAGMA foreign_keys = OFF")
    rows.execute("PRAGMA journal_mode = DELETE")
    rows.execute("BEGIN")
    for table in EMPTIED:
        rows.execute(f"DELETE FROM {table}")  # noqa: S608 - names of ours
    for statement in BLANKED:
        rows.execute(statement)
    rows.execute("COMMIT")
    rows.execute("VACUUM")


def _put(source: Path, target: Path) -> None:
    """Whole or not at all, mode 0600."""
    fresh = target.with_name(f".{target.name}")
    fresh.unlink(missing_ok=True)
    with source.open("rb") as given, os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as to:
        shutil.copyfileobj(given, to, 1 << 20)
        to.flush()
        os.fsync(to.fileno())
    fresh.replace(target)


def find(directory: Path, run: str, spec: bytes, *, chained: bool = False, by: str = "") -> Left | Over:
    """What run `run` in `directory` has left for a job of this spec, checked for the allocation `by` ("": it is only
    asked). `chained`: one of several that were submitted together, which may begin at step 0. Raises PlanError."""
    folder = _folder(directory, run)
    over = _over(folder)
    if over is not None:
        return over
    left = _note(folder, run)
    taken = _word(folder / TAKEN)
    if taken and taken != by:
        raise PlanError(f"run {run} was continued already, by job {taken}", f"continue that one: --continue {taken}")
    _same_spec(folder, spec)
    if left.step is None:
        if not chained:
            raise PlanError(
                f"run {run} has saved nothing that could be resumed from: it would begin at step 0",
                "submit the job again, without --continue",
            )
    elif fault := _fault(left):
        raise PlanError(
            f"the checkpoint of step {left.step} of run {run} cannot be resumed from: {fault}",
            f"see {left.path}: restore it, or submit the job again without --continue",
        )
    return left


def ended_itself(directory: Path, run: str) -> bool:
    """It has kept how its job stood when its time was over. Rows are no sign of that: a run that continues another
    has them from its first moment."""
    return (directory / run / JOB).is_file()


def take(directory: Path, run: str, *, by: str, database: Path) -> None:
    """The rows of `run` become those of allocation `by`: in its folder, so that it can be continued in turn whatever
    happens, then for its control plane, which starts on `database`. Raises PlanError (another was first), OSError."""
    source, mine = directory / run, directory / by
    _put(source / ROWS, mine / ROWS)
    private_file(mine / NOTE, (source / NOTE).read_text())
    draft = private_file(source / f".{TAKEN}.{by}", f"{by}\n")
    try:
        os.link(draft, source / TAKEN)
    except FileExistsError:
        if (first := _word(source / TAKEN)) != by:
            for name in (NOTE, ROWS):
                (mine / name).unlink(missing_ok=True)
            raise PlanError(
                f"run {run} was continued already, by job {first}", f"continue that one: --continue {first}"
            ) from None
    finally:
        draft.unlink(missing_ok=True)
    database.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _put(mine / ROWS, database)


def pass_on(directory: Path, run: str, *, by: str) -> None:
    """How the job of `run` ended is kept for allocation `by` too: the one that waits behind that looks there. Raises
    OSError."""
    _put(directory / run / JOB, directory / by / JOB)


def _folder(directory: Path, run: str) -> Path:
    folder = directory / run
    if RUN.fullmatch(run) and folder.is_dir():
        return folder
    try:
        names = sorted((path.name for path in directory.iterdir() if RUN.fullmatch(path.name)), key=int)
    except OSError:
        names = []
    there = f"there is: {', '.join(names[-MAX_LISTED:])}" if names else "there is no run at all"
    raise PlanError(f"there is no run {run!r} in {directory}; {there}", "give another --continue or --directory")


def _over(folder: Path) -> Over | None:
    """What `job.json` says of a job that has ended; None: it has not, or nothing is kept. Raises PlanError: whether it
    has cannot be read, and a job that is done is not trained again."""
    try:
        kept = msgspec.json.decode(_read(folder / JOB, MAX_JOB_BYTES), type=Over)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise PlanError(
            f"{folder / JOB} cannot be read, so that nobody knows whether the job has ended: {error}",
            f"see {folder.parent}/slurm-{folder.name}.out: restore the file, or remove it if the job had not ended",
        ) from error
    return kept if kept.state in TERMINAL_JOB else None


def _note(folder: Path, run: str) -> Left:
    try:
        left = msgspec.json.decode(_read(folder / NOTE, MAX_NOTE_BYTES), type=Left)
    except FileNotFoundError:
        raise PlanError(
            f"run {run} has left nothing to continue from: it still runs, did not come to train, or was killed before"
            " it could",
            f"see {folder.parent}/slurm-{run}.out; its checkpoints, if it saved any, are in {folder}/checkpoints",
        ) from None
    except (OSError, ValueError) as error:
        raise PlanError(f"{folder / NOTE} cannot be read: {error}", "restore it, or submit the job again") from error
    if left.format != FORMAT or not (folder / ROWS).is_file():
        raise PlanError(
            f"{folder} is not as this release leaves it (format {left.format}, {ROWS})", "submit the job again"
        )
    return left


def _same_spec(folder: Path, spec: bytes) -> None:
    """A spec never changes after it was submitted; the values of `env` alone may have, as they are secrets."""
    try:
        before = _parsed((folder / SPEC).read_bytes())
    except OSError as error:
        raise PlanError(f"{folder / SPEC} cannot be read: {error.strerror}", "restore it") from error
    now = _parsed(spec)
    places = tuple(_differences(msgspec.to_builtins(before), msgspec.to_builtins(now), ""))
    if places:
        more = f" and {len(places) - MAX_LISTED} more" if len(places) > MAX_LISTED else ""
        raise PlanError(
            f"the job spec is another one than that of run {folder.name}, in {', '.join(places[:MAX_LISTED])}{more}",
            f"continue with {folder / SPEC}, or submit the changed job without --continue",
        )


def _parsed(spec: bytes) -> JobSpec:
    try:
        found = lint(parse_yaml(spec)).spec
    except SpecTextError as error:
        raise PlanError(f"the job spec cannot be read: {error}", "fix the file's syntax") from error
    if found is None:
        raise PlanError("the job spec is not valid", "`holdfast job validate` says where")
    return found


def _differences(before: object, now: object, at: str) -> list[str]:
    """Places, as JSON pointers."""
    if at == "/spec/env" and isinstance(before, dict) and isinstance(now, dict):
        before, now = sorted(before), sorted(now)
    if isinstance(before, dict) and isinstance(now, dict):
        names = sorted({*before, *now})
        return [place for name in names for place in _differences(before.get(name), now.get(name), f"{at}/{name}")]
    return [] if before == now else [at]


def _fault(left: Left) -> str:
    """Why the checkpoint is none, by its marker and the sizes of what that names; "": it is one. The digests are
    compared by the ranks. What lies in an object store is not looked at from here."""
    if "://" in left.path:
        return ""
    place = Path(left.path)
    try:
        marker = msgspec.json.decode(_read(place / MARKER, MAX_MARKER_BYTES), type=Marker)
        sizes = {entry.name: (place / entry.name).stat().st_size for entry in marker.files}
    except FileNotFoundError as error:
        return f"{Path(str(error.filename)).name} is missing"
    except (OSError, ValueError) as error:
        return f"its marker or a file of it cannot be read: {error}"
    if (marker.job_id, marker.step) != (left.job, left.step):
        return f"its marker is of job {marker.job_id}, step {marker.step}"
    wrong = [entry.name for entry in marker.files if sizes[entry.name] != entry.bytes]
    return f"{wrong[0]} has {sizes[wrong[0]]} bytes" if wrong else ""


def saved(database: Path, job: str) -> list[tuple[int, int, str, str]]:
    """(step, epoch, state, path) of each of the job's checkpoints. `database` may be in use. Raises sqlite3.Error."""
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as rows:
        found = rows.execute("SELECT step, epoch, state, path FROM checkpoints_checkpoint WHERE job_id = ?", (job,))
        return found.fetchall()


def newest(checkpoints: list[tuple[int, int, str, str]]) -> tuple[int | None, str]:
    """(step, path) of the newest that outlives its nodes and may be resumed from, of (step, epoch, state, path)."""
    kept = [each for each in checkpoints if each[2] in TRUSTED and not each[3].startswith("local:")]
    if not kept:
        return None, ""
    step, _, _, path = max(kept)
    return step, path


def _read(path: Path, limit_bytes: int) -> bytes:
    with path.open("rb") as file:
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise ValueError(f"{path.name} has more than {limit_bytes} bytes")
    return content


def _word(path: Path) -> str:
    """The id in `continued-by`; "" where there is none."""
    try:
        found = path.read_text(errors="replace")[:80].strip()
    except OSError:
        return ""
    return found if RUN.fullmatch(found) else "?"
