"""What an agent's events mean. Of its ranks: one began, is ready, is late, has ended.

A word about a life that is out (its incarnation, or its whole attempt) changes nothing that lives. That its process
exists, and that it is gone, are facts about the process and are kept; that it is late is counted, and no more.
What the rank itself says is in `changes.reports`, what becomes of devices in `changes.devices`, what nodes tell of
themselves in `changes.nodes`, what logs say in `changes.marks`, what diagnostics find in
`changes.diagnostics`.
"""

from collections.abc import Callable, Iterator
from typing import Any

from controlplane.changes.answers import exited
from controlplane.changes.devices import OF_DEVICES
from controlplane.changes.diagnostics import OF_DIAGNOSTICS
from controlplane.changes.kinds import Change, Observe, Publish, Raise, Refuse, Settle, Transition, Wake
from controlplane.changes.marks import OF_LOGS
from controlplane.changes.nodes import OF_NODES
from controlplane.changes.reports import reported
from controlplane.changes.rows import Rank, Rows
from controlplane.changes.speaker import Speaker, key_of, place_of, rank_of, stale
from controlplane.changes.turn import OVER
from controlplane.policy.exits import EXIT_RESUME_FAILED
from controlplane.policy.signals.ranks import RankExit, RankOverdue, SetupTimeout
from controlplane.protocol import frames
from controlplane.protocol.errors import IdentityMismatch
from controlplane.protocol.states import WAITING_PHASES, RankState, Section

SAID_CHARS = 300
LOG_TAIL_CHARS = 16_000


def hear(rows: Rows, body: frames.EventBody, speaker: Speaker) -> list[Change]:
    """What an event of one of the kinds in `HEARD` changes; `rows` are of its rank's job. Raises IdentityMismatch:
    the rank, or the device, is none of this node's."""
    return list(HEARD[type(body)](rows, body, speaker))


def _started(rows: Rows, body: frames.RankStarted, speaker: Speaker) -> Iterator[Change]:
    rank = rank_of(rows, body.ref, speaker)
    if rank.device_index != body.device_index:
        raise IdentityMismatch(f"{body.ref} runs on device {body.device_index}, it was placed on {rank.device_index}")
    columns = {"pid": body.pid, "started_s": speaker.at_s}
    if rank.state == RankState.LAUNCHING:
        yield Transition(key_of(rank), RankState.INITIALIZING, f"process {body.pid} exists", columns)
    elif not rank.started and rank.state != RankState.EXITED:
        yield Observe(key_of(rank), columns)


def _joined(rows: Rows, body: frames.RankJoined, speaker: Speaker) -> Iterator[Change]:
    rank = rank_of(rows, body.ref, speaker)
    if rank.joined or rank.state == RankState.EXITED:
        return
    columns = {"joined_s": speaker.at_s} | ({} if rank.started else {"started_s": speaker.at_s})
    if rank.state == RankState.LAUNCHING:
        yield Transition(key_of(rank), RankState.INITIALIZING, "it said hello", columns)
    else:
        yield Observe(key_of(rank), columns)
    if rank.fenced:
        return
    yield Wake()
    sentence = f"Rank {rank.rank} of replica {rank.replica} is ready."
    yield Publish("rank.joined", sentence, subject=key_of(rank))


def _exited(rows: Rows, body: frames.RankExited, speaker: Speaker) -> Iterator[Change]:
    """An end is proved once. One that is told after its replica was ended is found all the same: it may be the
    cause. Exit 0 of a trained job is its end, not a fault."""
    rank = rank_of(rows, body.ref, speaker)
    if rank.state == RankState.EXITED:
        return
    how = _how_ended(body)
    columns = {
        "exit_code": body.exit_code,
        "exit_signal": body.signal,
        "exit_expected": body.expected,
        "log_tail": body.log_tail[-LOG_TAIL_CHARS:],
        "out_of_section_s": body.out_of_section_s,
    }
    yield exited(rank, how + (", as requested" if body.expected else ""), **columns)
    if body.expected or (body.exit_code == 0 and rows.has_trained()):
        yield Wake()
        return
    yield Wake(sure=True)
    found = RankExit(
        **place_of(rows, rank),
        attempt=rank.attempt,
        node=speaker.node,
        how=how,
        exit_code=body.exit_code,
        signal=body.signal,
        cause=body.cause,
        hint=body.hint,
    )
    if found.code == EXIT_RESUME_FAILED:
        last_words = body.log_tail.strip().rpartition("\n")[2][-SAID_CHARS:]
        yield Refuse(rows.attempt(rank.attempt).resume_path, last_words)
    yield Raise(found, late=rank.replica_state in OVER)


def _how_ended(body: frames.RankExited) -> str:
    """In words; an end that nobody saw has no code."""
    if body.exit_code is None and body.signal is None:
        return f"ended unseen: {body.hint or 'exit not observed'}"
    how = f"signal {body.signal}" if body.signal is not None else f"code {body.exit_code}"
    return f"ended with {how}" + (f"; {body.hint}" if body.hint else "")


def _overdue(rows: Rows, body: frames.RankOverdue, speaker: Speaker) -> Iterator[Change]:
    """Late is only who is still waited for."""
    rank = rank_of(rows, body.ref, speaker)
    if rank.fenced or rank.state == RankState.EXITED:
        yield stale(rank, "overdue", speaker)
        return
    yield Wake()
    if rank.state != RankState.HUNG:
        why = f"{body.age_s:.1f} s in {body.phase}, {body.timeout_s:.1f} s are allowed"
        yield Transition(key_of(rank), RankState.HUNG, why)
    kind = SetupTimeout if body.section is Section.SETUP else RankOverdue
    found = kind(
        **place_of(rows, rank),
        attempt=rank.attempt,
        timeout_s=body.timeout_s,
        age_s=body.age_s,
        section=str(body.section),
        phase=str(body.phase),
        step=body.step,
        silent_s=body.silent_s,
    )
    yield Raise(found)


def _said(rows: Rows, body: frames.RankSaid, speaker: Speaker) -> Iterator[Change]:
    rank = rank_of(rows, body.ref, speaker)
    if rank.state == RankState.HUNG and not rank.fenced:
        yield from _speaks_again(rows, rank)
    yield from reported(rows, rank, body.report, speaker)


def _speaks_again(rows: Rows, rank: Rank) -> Iterator[Change]:
    """One that waits for others is late for saying nothing, and for nothing else. Its agent finds it again."""
    late = RankOverdue(
        **place_of(rows, rank),
        attempt=rank.attempt,
        timeout_s=0.0,
        age_s=0.0,
        section="",
        phase="",
        step=0,
        silent_s=0.0,
    )
    found = rows.finding(late.key)
    if found is not None and found.evidence.get("phase") in WAITING_PHASES:
        yield Settle((found.id,), "it has spoken since")


HEARD: dict[type, Callable[[Rows, Any, Speaker], Iterator[Change]]] = {
    frames.RankStarted: _started,
    frames.RankJoined: _joined,
    frames.RankExited: _exited,
    frames.RankOverdue: _overdue,
    frames.RankSaid: _said,
    **OF_DEVICES,
    **OF_NODES,
    **OF_LOGS,
    **OF_DIAGNOSTICS,
}
