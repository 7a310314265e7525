"""Runs Slurm's programs, and says in words what went wrong.

Called by `holdfast slurm` and `guest`. An answer that does not come is None (no news), except where something was to be
done: then it is a SlurmError with the program's own words.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from controlplane.engines.slurm import answers

ANSWER_TIMEOUT_S = 20.0
KILL_WAIT_S = 30
"""Slurm's own default (slurm.conf(5), KillWait)."""
PRIVATE = 0o077
"""Mask of what the programs create."""
MAX_WORDS_CHARS = 1000


class SlurmError(RuntimeError):
    """`fix`: what to do about it; `missing`: there is no Slurm here."""

    def __init__(self, message: str, fix: str, *, missing: bool = False) -> None:
        super().__init__(message)
        self.fix = fix
        self.missing = missing


def ask(*argv: str, timeout_s: float = ANSWER_TIMEOUT_S) -> str | None:
    """What a program prints; None where it is not there, fails, or takes too long."""
    try:
        return answered(*argv, timeout_s=timeout_s)
    except SlurmError:
        return None


def answered(*argv: str, timeout_s: float = ANSWER_TIMEOUT_S) -> str:
    """What a program prints. Raises SlurmError with its own words where it is not there, fails, or takes too long."""
    try:
        done = subprocess.run(argv, capture_output=True, timeout=timeout_s, check=False, env=_plain(os.environ))
    except subprocess.TimeoutExpired as error:
        raise SlurmError(f"{argv[0]} did not answer within {timeout_s:.1f} s", "does `sinfo` answer?") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise SlurmError(f"{argv[0]} could not be run: {error}", "does `sinfo` answer?", missing=True) from error
    if done.returncode:
        words = (done.stderr or done.stdout).decode("utf-8", "replace").strip()[:MAX_WORDS_CHARS]
        raise SlurmError(f"{argv[0]} failed: {words or f'exit code {done.returncode}'}", "does `sinfo` answer?")
    return done.stdout.decode("utf-8", "replace")


def submit(text: str, options: Sequence[str], *, partition: str = "") -> str:
    """Hand a batch script to `sbatch`; the id of the job. `options` stand in it too; here they come before what the
    user's environment sets (SBATCH_*). Slurm makes the job's output with the umask of `sbatch`: for the user alone.
    Raises SlurmError."""
    program = shutil.which("sbatch")
    if program is None:
        raise SlurmError(
            "there is no sbatch here",
            "run it on a machine from which jobs are submitted (a login node), or add --print to see the script",
            missing=True,
        )
    argv = (program, "--parsable", *options)
    limit_s, environment = 3 * ANSWER_TIMEOUT_S, {**os.environ, "LC_ALL": "C"}
    environment.pop("SLURM_UMASK", None)  # Of a job in which this runs; sbatch would believe it.
    try:
        done = subprocess.run(
            argv,
            input=text.encode(),
            capture_output=True,
            timeout=limit_s,
            check=False,
            env=environment,
            umask=PRIVATE,
        )
    except subprocess.TimeoutExpired as error:
        raise SlurmError(
            f"sbatch did not answer within {limit_s:.0f} s; it may have submitted the job",
            "look with `squeue --me` before you submit it again",
        ) from error
    except OSError as error:
        raise SlurmError(f"sbatch could not be run: {error}", "does `sinfo` answer?") from error
    name = answers.job_id(done.stdout.decode("utf-8", "replace")) if done.returncode == 0 else None
    if name is not None:
        return name
    words = (done.stderr or done.stdout).decode("utf-8", "replace").strip()[:MAX_WORDS_CHARS]
    raise SlurmError(f"sbatch refused: {words or f'exit code {done.returncode}'}", _why(partition))


def _why(partition: str) -> str:
    """The usual reason, where Slurm says what there is."""
    text = ask("sinfo", "--noheader", "--format", answers.PARTITIONS_FORMAT)
    known = answers.partitions(text or "")
    names = ", ".join(each.name for each in known)
    if partition and known:
        absent = [part for part in partition.split(",") if part not in {each.name for each in known}]
        if absent:
            return f"there is no partition {', '.join(absent)} here; there is: {names}"
        down = [each.name for each in known if each.name in partition.split(",") and not each.up]
        if down:
            return f"partition {', '.join(down)} is not up; there is: {names}"
    return "ask Slurm's administrator what these words mean here" + (f"; partitions: {names}" if names else "")


def kill_wait_s() -> int | None:
    """Seconds from the signal of `scancel` to the end; None: Slurm does not say."""
    return answers.kill_wait_s(ask("scontrol", "show", "config") or "")


def state_of(job: str) -> str | None:
    """Of a job of this user that is in Slurm's queue, or ends; "": it is not there; None: Slurm does not say."""
    text = ask("squeue", "--noheader", "--user", str(os.getuid()), "--format", answers.QUEUE_FORMAT)
    return None if text is None else answers.queue(text).get(job, "")


def address_of(node: str) -> str:
    """How other nodes reach this one: Slurm's own address of it, else its name."""
    return answers.address(ask("scontrol", "--oneliner", "show", "node", node) or "") or node


def _plain(environment: Mapping[str, str]) -> dict[str, str]:
    """Without variables that change what is printed, and with times in UTC."""
    changed = re.compile(r"(SINFO|SQUEUE|SCONTROL)_|SLURM_TIME_FORMAT$")
    return {name: value for name, value in environment.items() if not changed.match(name)} | {
        "LC_ALL": "C",
        "TZ": "UTC",
    }
