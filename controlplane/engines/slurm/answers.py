"""What Slurm's programs print, as values. Pure.

Only fixed formats are read (`-h -o`, `--oneliner`): they are alike in all versions, where JSON has changed its shape in
nearly each. An answer that is empty, cut or something else is *no news*: None, or less in a list, and never an error,
as nothing may be concluded from a program that could not say.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from controlplane.engines.slurm.health import Believed

MAX_ANSWER_CHARS = 4 << 20
MAX_NODES_CHARS = 64 << 20
"""Of all nodes; a line is a thousand characters or less."""
MAX_REASON_CHARS = 200
PILOTS = "holdfast-pilots"
"""The name of every array of pilots in Slurm's lists."""
COMMENT = "holdfast:"
"""Begins the comment of a pilot: `holdfast:server=URL;grace_s=N`."""
PARTITIONS_FORMAT = "%R|%a|%l|%D"
QUEUE_FORMAT = "%A|%T"
PILOTS_FORMAT = "%A|%F|%K|%T|%u|%S|%e|%N|%k|%r"
"""Of `squeue --array`, with its header: an answer without that is none. The reason is last, as it is free text."""
PILOTS_COLUMNS = 10
PILOTS_HEADER = "JOBID|"
_STATE = re.compile(r"[A-Z_]{1,32}")
_STATES = re.compile(r" State=([A-Z_*~#!%$@^+-]{1,200})(?= |$)")
_MARKS = "*~#!%$@^-"
"""After a word of a state: does not respond, is powered down, boots, and so on (sinfo(1))."""
_REASON = re.compile(r" Reason=(.{0,4096}?) \[([^\s\[\]@]{1,64})@([0-9T:-]{19})\](?= |$)")
_KILL_WAIT = re.compile(r"^KillWait\s*=\s*(\d{1,6}) sec[ \t]*\n", re.MULTILINE)
_JOB_ID = re.compile(r"(?:Submitted batch job )?(\d{1,10})(?:;[A-Za-z0-9_-]+)?")
_THROTTLE = re.compile(r" ArrayTaskThrottle=([0-9]{1,7}) ")
_NUMBER = re.compile(r"[0-9]{1,10}")
_INDEX = re.compile(r"[0-9]{1,7}")
_SECONDS = re.compile(r"[0-9]{1,5}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_NODE_NAME = re.compile(r"NodeName=([A-Za-z0-9][A-Za-z0-9._-]{0,62}) ")
_NODE = re.compile(r"NodeName=\S+ (?:.* )?NodeAddr=([A-Za-z0-9][A-Za-z0-9.:_-]{0,253})(?: |$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """`limit`: its time limit as Slurm writes it. `nodes`: how many."""

    name: str
    up: bool
    limit: str
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pilot:
    """An element of an array of pilots. `array` and `index` name it; `job` is Slurm's id of it. `owner`: of Slurm's
    users. `starts_at`: when it started, or is expected to (None: Slurm does not say); `ends_at`: its time limit (None:
    it has none). `node`: its name in Slurm, "" while it waits. `server` and `grace_s`: as they were given with it, ""
    and None where they were not. `reason`: Slurm's own, of one that waits."""

    job: str
    array: str
    index: int
    state: str
    owner: str
    starts_at: datetime | None
    ends_at: datetime | None
    node: str
    server: str
    grace_s: int | None
    reason: str


def name_in_holdfast(node: str) -> str:
    """Of one of Slurm's nodes: names in Holdfast are those of hosts, in small letters; Slurm's may be `GPU_01`."""
    return node.lower().replace("_", "-")


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
    if " Reason=" not in line:
        return Believed(states=words, reason="")
    if len(said) != 1 or line.count(" Reason=") != 1:
        return Believed(states=words, reason=None)
    reason, by, since = said[0]
    return Believed(states=words, reason=reason, by=by, since=moment(since))


def all_believed(text: str) -> dict[str, Believed]:
    """What Slurm believes of each node, by its name in Slurm, of `scontrol --oneliner show node`; nodes whose line
    cannot be read are not in it."""
    found: dict[str, Believed] = {}
    for line in _lines(text, MAX_NODES_CHARS):
        named = _NODE_NAME.match(line)
        known = believed(line + "\n", named[1]) if named else None
        if named and known is not None:
            found[named[1]] = known
    return found


def pilots(text: str) -> tuple[Pilot, ...] | None:
    """Of `squeue --array --format PILOTS_FORMAT`, with its header. None: it is no whole answer, which says nothing of
    what is not in it. Lines that are none of an array's elements are left out."""
    lines = _lines(text)
    whole = text.endswith("\n") and len(text) <= MAX_ANSWER_CHARS
    if not lines or not lines[0].startswith(PILOTS_HEADER) or lines[0].count("|") != PILOTS_COLUMNS - 1 or not whole:
        return None
    return tuple(found for line in lines[1:] if (found := _pilot(line)) is not None)


def _pilot(line: str) -> Pilot | None:
    cells = [cell.strip() for cell in line.split("|", PILOTS_COLUMNS - 1)]
    if len(cells) != PILOTS_COLUMNS:
        return None
    job, array, index, state, owner, starts, ends, node, comment, reason = cells
    if not (
        _JOB_ID.fullmatch(job) and _JOB_ID.fullmatch(array) and _INDEX.fullmatch(index) and _STATE.fullmatch(state)
    ):
        return None
    given = dict(part.partition("=")[::2] for part in comment.removeprefix(COMMENT).split(";"))
    given = given if comment.startswith(COMMENT) else {}
    grace = given.get("grace_s", "")
    return Pilot(
        job=job, array=array, index=int(index), state=state, owner=owner[:64], starts_at=moment(starts),
        ends_at=moment(ends), node=node if _NAME.fullmatch(node) else "", server=given.get("server", "")[:200],
        grace_s=int(grace) if _SECONDS.fullmatch(grace) else None,
        reason="" if reason in ("None", "(null)") else reason[:MAX_REASON_CHARS],
    )  # fmt: skip


def throttle(text: str) -> int | None:
    """How many elements of an array run at a time, of `scontrol --oneliner show job ARRAY`; None: Slurm does not say,
    or not the same for each."""
    found = {int(match[1]) for line in _lines(text) if (match := _THROTTLE.search(line))}
    return found.pop() if len(found) == 1 else None


def moment(text: str) -> datetime | None:
    """Of Slurm's way to write one, where its programs were run with TZ=UTC (`tools`); None: it is none."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None


def _lines(text: str, most_chars: int = MAX_ANSWER_CHARS) -> list[str]:
    """Those that are whole: what ends without a newline was cut."""
    return [line for line in text[:most_chars].split("\n")[:-1] if line.strip()]


def _rows(text: str, columns: int) -> Iterator[list[str]]:
    for line in _lines(text):
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == columns:
            yield cells
