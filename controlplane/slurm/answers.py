"""What Slurm's programs print, as values. Pure.

Only fixed formats are read (`-h -o`, `--oneliner`): they are alike in all versions, where JSON has changed its shape in
nearly each. An answer that is empty, cut or something else is *no news*: None, or less in a list, and never an error,
as nothing may be concluded from a program that could not say.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from controlplane.slurm.health import Believed

MAX_ANSWER_CHARS = 4 << 20
PARTITIONS_FORMAT = "%R|%a|%l|%D"
QUEUE_FORMAT = "%A|%T"
_STATE = re.compile(r"[A-Z_]{1,32}")
_STATES = re.compile(r" State=([A-Z_*~#!%$@^+-]{1,200})(?= |$)")
_MARKS = "*~#!%$@^-"
"""After a word of a state: does not respond, is powered down, boots, and so on (sinfo(1))."""
_REASON = re.compile(r" Reason=(.{0,4096}?) \[[^\s\[\]@]{1,64}@[0-9T:-]{19}\](?= |$)")
_KILL_WAIT = re.compile(r"^KillWait\s*=\s*(\d{1,6}) sec[ \t]*\n", re.MULTILINE)
_JOB_ID = re.compile(r"(?:Submitted batch job )?(\d{1,10})(?:;[A-Za-z0-9_-]+)?")
_NODE = re.compile(r"NodeName=\S+ (?:.* )?NodeAddr=([A-Za-z0-9][A-Za-z0-9.:_-]{0,253})(?: |$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """`limit`: its time limit as Slurm writes it. `nodes`: how many."""

    name: str
    up: bool
    limit: str
    nodes: int


def job_id(text: str) -> str | None:
    """Of a submitted job, from `sbatch` with or without --parsable; None: it names none."""
    found = (_JOB_ID.fullmatch(line.strip()) for line in _lines(text))
    return next((match[1] for match in found if match), None)


def kill_wait_s(text: str) -> int | None:
    """KillWait of `scontrol show config`, seconds."""
    found = _KILL_WAIT.search(text[:MAX_ANSWER_CHARS])
    return int(found[1]) if found else None


def partitions(text: str) -> tuple[Partition, ...]:
    """Of `sinfo -h -o PARTITIONS_FORMAT`; one that is listed in several lines has the nodes of all."""
    found: dict[str, Partition] = {}
    for name, up, limit, count in _rows(text, 4):
        if not name or up not in ("up", "down", "drain", "inact") or not count.isdecimal() or len(count) > 9:
            continue
        before = found[name].nodes if name in found else 0
        found[name] = Partition(name=name, up=up == "up", limit=limit, nodes=before + int(count))
    return tuple(found.values())


def queue(text: str) -> dict[str, str]:
    """State by id of a job (of the last element, where it is an array), of `squeue -h -o QUEUE_FORMAT`."""
    return {
        job: state
        for job, state in _rows(text, 2)
        if job.isdecimal() and job.isascii() and len(job) <= 10 and _STATE.fullmatch(state)
    }


def address(text: str) -> str | None:
    """How Slurm's daemons reach a node, of `scontrol --oneliner show node NAME`: a name or an address of a network."""
    found = _NODE.match(next(iter(_lines(text)), ""))
    return found[1] if found else None


def believed(text: str, node: str) -> Believed | None:
    """What Slurm believes of `node`, of `scontrol --oneliner show node NODE`. A reason that cannot be told from other
    text of the line is None."""
    line = next(iter(_lines(text)), "")
    states = _STATES.findall(line)
    if not line.startswith(f"NodeName={node} ") or len(states) != 1:
        return None
    words = frozenset(word.rstrip(_MARKS) for word in states[0].split("+"))
    said = _REASON.findall(line)
    reason = "" if " Reason=" not in line else said[0] if len(said) == 1 == line.count(" Reason=") else None
    return Believed(states=words, reason=reason)


def _lines(text: str) -> list[str]:
    """Those that are whole: what ends without a newline was cut."""
    return [line for line in text[:MAX_ANSWER_CHARS].split("\n")[:-1] if line.strip()]


def _rows(text: str, columns: int) -> Iterator[list[str]]:
    for line in _lines(text):
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == columns:
            yield cells
