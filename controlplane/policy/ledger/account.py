"""What every second of every device was, over a window. Called by `recovery.ledger_view`; reads no row.

Theory. A device is held by a replica of a job or it is not. Held by one that trains, its seconds have the shares of
the job's course; by one that joins or leaves, they are what the job recovers from; by a spare, idle. One
that nobody holds is what its node says of it; where that is idle, and the node reserved, it is due to that. So the
classes of a node sum to its known devices x time, and those of
a job to what it held, whatever the facts are. A replica that has left and whose processes cannot be proved gone holds
nothing of a node that is down: the node is what is missing.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from controlplane.policy.ledger.course import Stretch, Sums, course
from controlplane.policy.ledger.facts import (
    NOBODY,
    Cause,
    Facts,
    Hold,
    JobFacts,
    Reserved,
    Role,
    Run,
    Standing,
    Turn,
    end_s,
)
from controlplane.policy.ledger.levels import Level, Part
from controlplane.protocol.ledger import CauseKind, TimeClass


class Key(NamedTuple):
    """`job` "": nobody held it; `node` "": of all nodes."""

    job: str
    node: str
    of: TimeClass
    cause: Cause


class JobAccount(msgspec.Struct, frozen=True, kw_only=True):
    """Of one job in the window: what it held and, beside it, what it asked for and did not hold. `gpus` at full
    strength; `ettr`: productive over full strength x time since its first attempt (None: none passed, or too few steps
    were seen)."""

    job: str
    gpus: int
    held_gpu_s: float
    queued_gpu_s: float
    asked_gpu_s: float
    productive_gpu_s: float
    ettr: float | None


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """GPU-seconds. `amounts` sum to `known_gpu_s`; `restated_gpu_s` of them were first counted otherwise."""

    since_s: float
    until_s: float
    known_gpu_s: float
    amounts: dict[Key, float]
    jobs: tuple[JobAccount, ...]
    restated_gpu_s: float


class _Held(msgspec.Struct, frozen=True, gc=False):
    node: str
    part: Part
    role: str


def account(facts: Facts, since_s: float, until_s: float, *, by_node: bool = False, node: str = "") -> Account:
    """Of `[since_s, until_s)` as far as it is judged. `by_node`: amounts have their node, those of jobs no cause;
    else `node`: amounts of that one alone."""
    until_s = max(since_s, min(until_s, facts.judged_s))
    standings = _by_node(facts.standings)
    held = _held(facts, standings)
    runs = defaultdict[str, list[Run]](list)
    for run in facts.runs:
        runs[run.job].append(run)
    amounts = defaultdict[Key, float](float)
    found, restated_gpu_s = [], 0.0
    known = {job.id: job for job in facts.jobs}
    for job_id in sorted(held.keys() | known.keys()):
        job = known.get(job_id) or _unknown(job_id)
        levels = _levels(held[job_id])
        stretches = course(job, runs[job_id], levels[Role.TRAINING], facts.judged_s)
        mine = _levels(held[job_id], node) if node else levels
        if by_node:
            whole = _of_nodes(job_id, stretches, held[job_id], since_s, until_s)
        else:
            whole = _of_job(job_id, stretches, mine, since_s, until_s)
        restated_gpu_s += _restated(stretches, mine[Role.TRAINING], since_s, until_s)
        amounts.update(whole)
        found.append(_job_account(job, whole, levels, since_s, until_s))
    for key, amount in _unheld(standings, held, _kept(facts.reserved), (since_s, until_s)):
        if node in ("", key.node):
            amounts[key if by_node else key._replace(node="")] += amount
    return Account(
        since_s=since_s,
        until_s=until_s,
        known_gpu_s=sum(amounts.values()),
        amounts={key: amount for key, amount in sorted(amounts.items()) if amount},
        jobs=tuple(found),
        restated_gpu_s=restated_gpu_s,
    )


def _levels(held: Sequence[_Held], node: str = "") -> dict[Role, Level]:
    """Of its devices by role; of those of one node."""
    return {role: Level(h.part for h in held if h.role == role and node in ("", h.node)) for role in Role}


def _unknown(job_id: str) -> JobFacts:
    """It held devices, and its row is gone."""
    return JobFacts(
        id=job_id, project="", gpus=0, step_s=None, created_s=0.0, began_s=None, finished_s=None, training=False
    )


def _by_node(standings: Sequence[Standing]) -> dict[str, list[Standing]]:
    """Those of each node in sequence; where two overlap, the later one begins when it does."""
    found = defaultdict[str, list[Standing]](list)
    for each in sorted(set(standings), key=_place):
        of = found[each.node]
        if of and end_s(of[-1].until_s) > each.from_s:
            of[-1] = msgspec.structs.replace(of[-1], until_s=each.from_s)
        of.append(each)
    return found


def _place(each: Standing) -> tuple[object, ...]:
    counts = (each.devices, each.down, each.cordoned, each.spare, each.unseen)
    return (each.node, each.from_s, end_s(each.until_s), *counts, each.cause)


def _held(facts: Facts, standings: dict[str, list[Standing]]) -> dict[str, list[_Held]]:
    found = defaultdict[str, list[_Held]](list)
    # Once each: a fact that comes twice is one.
    for hold in sorted(set(facts.holds), key=lambda hold: (hold.job, hold.node, hold.replica, hold.from_s)):
        for part, role in _turns(hold, facts.turns.get(hold.replica, ())):
            parts = _up(part, standings.get(hold.node, [])) if role == Role.LEAVING else (part,)
            found[hold.job] += [_Held(hold.node, each, role) for each in parts]
    return found


def _turns(hold: Hold, turns: Sequence[Turn]) -> Iterator[tuple[Part, str]]:
    """A replica of which nothing was said yet joins."""
    last = end_s(hold.until_s)
    at_s, role = hold.from_s, str(Role.JOINING)
    for turn in sorted(turns):
        if at_s < turn.from_s < last:
            yield Part(at_s, turn.from_s, hold.devices), role
            at_s = turn.from_s
        if turn.from_s < last:
            role = turn.role
    if last > at_s:
        yield Part(at_s, last, hold.devices), role


def _up(part: Part, standings: Sequence[Standing]) -> Iterator[Part]:
    """Without what of it the whole node was down."""
    at_s = part.from_s
    for each in standings:
        if each.down < each.devices or end_s(each.until_s) <= at_s or each.from_s >= part.until_s:
            continue
        if each.from_s > at_s:
            yield Part(at_s, each.from_s, part.devices)
        at_s = end_s(each.until_s)
    if part.until_s > at_s:
        yield Part(at_s, part.until_s, part.devices)


def _of_job(
    job: str, stretches: Sequence[Stretch], levels: dict[Role, Level], since_s: float, until_s: float
) -> dict[Key, float]:
    """By class and cause."""
    found = defaultdict[Key, float](float)
    spare = levels[Role.SPARE].between(since_s, until_s)
    if spare:
        found[Key(job, "", TimeClass.IDLE_SPARE, Cause(CauseKind.JOB, job))] += spare
    for each in stretches:
        from_s, last_s = max(since_s, each.from_s), min(until_s, each.until_s)
        if last_s <= from_s:
            continue
        trained = levels[Role.TRAINING].between(from_s, last_s)
        for share in each.training if trained else ():
            found[Key(job, "", share.of, share.cause)] += share.part * trained
        beside = levels[Role.JOINING].between(from_s, last_s) + levels[Role.LEAVING].between(from_s, last_s)
        if beside:
            found[Key(job, "", each.held.of, each.held.cause)] += beside
    return found


def _restated(stretches: Sequence[Stretch], training: Level, since_s: float, until_s: float) -> float:
    within = ((max(since_s, each.from_s), min(until_s, each.until_s)) for each in stretches if each.restated)
    return sum(training.between(from_s, last_s) for from_s, last_s in within)


def _of_nodes(
    job: str, stretches: Sequence[Stretch], held: Sequence[_Held], since_s: float, until_s: float
) -> dict[Key, float]:
    """By node and class."""
    found = defaultdict[Key, float](float)
    sums = {training: Sums(stretches, training=training) for training in (True, False)}
    for each in held:
        node, part, role = each.node, each.part, each.role
        from_s, last_s = max(since_s, part.from_s), min(until_s, part.until_s)
        if last_s <= from_s:
            continue
        if role == Role.SPARE:
            found[Key(job, node, TimeClass.IDLE_SPARE, NOBODY)] += part.devices * (last_s - from_s)
            continue
        for of, seconds in sums[role == Role.TRAINING].between(from_s, last_s):
            found[Key(job, node, of, NOBODY)] += part.devices * seconds
    return found


def _unheld(
    standings: dict[str, list[Standing]],
    held: dict[str, list[_Held]],
    kept: dict[str, list[Reserved]],
    within: tuple[float, float],
) -> Iterator[tuple[Key, float]]:
    since_s, until_s = within
    of_node = defaultdict[str, list[Part]](list)
    for parts in held.values():
        for each in parts:
            of_node[each.node].append(each.part)
    for node, spans in standings.items():
        level = Level(of_node.get(node, ()))
        for span in spans:
            for piece in level.pieces(max(since_s, span.from_s), min(until_s, end_s(span.until_s))):
                free = max(0, span.devices - piece.devices)
                for of, count in _allotted(span, free):
                    if of == TimeClass.IDLE:
                        for cause, lasted_s in _reserved(piece, kept.get(node, ())):
                            yield Key("", node, of, cause), count * lasted_s
                        continue
                    cause = NOBODY if of == TimeClass.IDLE_SPARE else span.cause
                    yield Key("", node, of, cause), count * (piece.until_s - piece.from_s)


def _kept(reserved: Sequence[Reserved]) -> dict[str, list[Reserved]]:
    """By node, in sequence."""
    found = defaultdict[str, list[Reserved]](list)
    for each in sorted(set(reserved)):
        found[each.node].append(each)
    return found


def _reserved(piece: Part, kept: Sequence[Reserved]) -> Iterator[tuple[Cause, float]]:
    """How long of that while it was free for one project alone, and how long for everybody: each second once."""
    at_s = piece.from_s
    for each in kept:
        from_s, last_s = max(at_s, each.from_s), min(piece.until_s, each.until_s)
        if last_s > from_s:
            yield NOBODY, from_s - at_s
            yield Cause(CauseKind.RESERVATION, each.id), last_s - from_s
            at_s = last_s
    yield NOBODY, piece.until_s - at_s


def _allotted(span: Standing, free: int) -> Iterator[tuple[TimeClass, int]]:
    """Devices that nobody holds: first those that nobody can."""
    sorts = (
        (TimeClass.NOT_OBSERVED, span.unseen),
        (TimeClass.DOWN, span.down),
        (TimeClass.CORDONED, span.cordoned),
        (TimeClass.IDLE_SPARE, span.spare),
        (TimeClass.IDLE, free),
    )
    for of, count in sorts:
        taken = min(count, free)
        free -= taken
        if taken:
            yield of, taken


def _job_account(
    job: JobFacts, whole: dict[Key, float], levels: dict[Role, Level], since_s: float, until_s: float
) -> JobAccount:
    last_s = min(until_s, end_s(job.finished_s))
    held_gpu_s = sum(whole.values())
    productive = sum(amount for key, amount in whole.items() if key.of == TimeClass.PRODUCTIVE)
    wall_s = max(0.0, last_s - max(since_s, last_s if job.began_s is None else job.began_s))
    queued = sum(
        max(0, job.gpus - piece.devices) * (piece.until_s - piece.from_s)
        for piece in _all(levels).pieces(max(since_s, job.created_s), last_s)
    )
    asked = wall_s * job.gpus
    # Without a step's time nothing is productive: as long as no step was kept, that is the truth.
    known = job.step_s is not None or not any(key.of == TimeClass.NOT_OBSERVED for key in whole)
    return JobAccount(
        job=job.id,
        gpus=job.gpus,
        held_gpu_s=held_gpu_s,
        queued_gpu_s=queued,
        asked_gpu_s=asked,
        productive_gpu_s=productive,
        ettr=productive / asked if asked and known else None,
    )


def _all(levels: dict[Role, Level]) -> Level:
    """Devices that count for what the job asked for: not a spare's, nor those of a replica on its way out."""
    parts: list[Part] = []
    for role in (Role.TRAINING, Role.JOINING):
        parts += [part for part in levels[role].parts() if part.devices]
    return Level(parts)
