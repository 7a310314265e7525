"""What the answer to a command means, or that nobody answered in time, beyond the command's own row.

What reading checkpoints back makes of theirs is `due.readback`'s.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from controlplane.changes import diagnostics
from controlplane.changes.kinds import (
    Audit,
    Change,
    Count,
    DeviceKey,
    Free,
    Judge,
    Observe,
    Raise,
    RankKey,
    ReplicaKey,
    Transition,
)
from controlplane.changes.rows import Rank, Rows
from controlplane.policy.signals.nodes import SignatureRejected
from controlplane.policy.signals.ranks import StartFailed
from controlplane.protocol.commands import Body, CollectStacks, ResetDevice, StartRanks, StopRanks
from controlplane.protocol.signing import SIGNATURE_REJECTED
from controlplane.protocol.states import UNFIT, CommandState, RankState, ReplicaState

DECISIVE = (CommandState.SUCCEEDED, CommandState.FAILED)
"""Answers that may call for a decision; an acknowledgement never does."""
UNTOLD = ("deliver_view", "deliver_install", "verify_checkpoint", "end_verification")
"""What these lead to is told by the ranks themselves, or by who reads checkpoints back."""
DETAIL_CHARS, REASON_CHARS, AUDIT_CHARS = 300, 100, 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A command as its row is after the answer. `body` None: nobody here has ordered it, or it says nothing that
    can be read. `decided`: a decision did, not a node's claim."""

    id: str
    node_id: str
    node: str
    kind: str
    body: Body | None
    state: CommandState
    detail: str = ""
    data: str = ""
    ttl_s: float
    job_id: str | None
    decided: bool

    @property
    def rejected(self) -> bool:
        """Its agent knows no key of ours that has signed it."""
        return self.state == CommandState.FAILED and self.data == SIGNATURE_REJECTED


def answered(rows: Rows, command: Answered) -> Iterator[Change]:
    """Its agent's answer, or (`expired`) that none came in time. What a command of an older attempt or incarnation
    says is said of that one alone."""
    if command.rejected:
        yield from _rejected(command)
    if type(command.body) in MEANT:
        yield from MEANT[type(command.body)](rows, command, command.body)


def calls(kind: str, state: str) -> bool:
    """The job of a command of this kind is looked at with such an answer."""
    return state in DECISIVE and kind not in UNTOLD


def frees(change: Change) -> bool:
    """A device is free by it: jobs that wait for one are looked at."""
    gone = isinstance(change, Transition) and isinstance(change.subject, RankKey) and change.to == RankState.EXITED
    return gone or isinstance(change, Free)


def exited(rank: Rank, why: str, **columns: Any) -> Transition:
    """Its process is proved gone."""
    key = RankKey(rank.attempt, rank.replica, rank.incarnation, rank.rank)
    return Transition(key, RankState.EXITED, why, columns)


def _rejected(command: Answered) -> Iterator[Change]:
    """The row was made or altered past us, or the node holds other keys than ours."""
    yield Count(command.node, SIGNATURE_REJECTED, f"{command.id}: {command.detail}")
    reason = command.detail[:AUDIT_CHARS]
    yield Audit(f"node:{command.node}", "command.signature_rejected", reason, {}, subject=command.id)
    found = SignatureRejected(
        node_id=command.node_id, command=command.id, kind=command.kind, detail=command.detail, node=command.node
    )
    yield Raise(found)


def _start(rows: Rows, command: Answered, body: StartRanks) -> Iterator[Change]:
    """Its ranks will not come: a start that timed out. Those that no process was ever reported for are gone,
    unless nobody answered: then it is not known whether there is one."""
    launch = body.launch
    key = ReplicaKey(launch.attempt, launch.replica, launch.incarnation)
    wanted = rows.incarnation(launch.attempt, launch.replica, launch.incarnation)
    if command.state == CommandState.SUPERSEDED and (wanted is None or wanted.state != ReplicaState.FORMING):
        return
    if command.state not in (CommandState.FAILED, CommandState.SUPERSEDED, CommandState.EXPIRED):
        return
    found = StartFailed(
        job_id=command.job_id,
        node_id=command.node_id,
        replica=launch.replica,
        incarnation=launch.incarnation,
        command=command.id,
        node=command.node,
        detail=command.detail[:DETAIL_CHARS],
        reason=command.data[:REASON_CHARS],
        said=command.detail or command.state,
        ttl_s=command.ttl_s,
    )
    yield Raise(found)
    if command.state == CommandState.EXPIRED:
        return
    if command.data == UNFIT and wanted is not None:
        yield Observe(key, {"refused": True})
    for rank in rows.ranks(launch.attempt, node_id=command.node_id, of=(launch.replica, launch.incarnation)):
        if not rank.started and rank.state != RankState.EXITED:
            yield exited(rank, "it was never started")


def _stop(rows: Rows, command: Answered, body: StopRanks) -> Iterator[Change]:
    """It succeeds when the processes are proved gone. A person's order to evict of which nothing came, on none of
    its nodes, is none any more: what ends later did not end by it."""
    one = (body.replica, body.incarnation) if body.replica >= 0 else None
    if command.state == CommandState.SUCCEEDED:
        for rank in rows.ranks(body.attempt, node_id=command.node_id, of=one):
            if rank.state != RankState.EXITED:
                yield exited(rank, "its agent proved it gone", exit_expected=True)
    if command.state not in (CommandState.FAILED, CommandState.EXPIRED) or not command.decided or one is None:
        return
    replica = rows.incarnation(body.attempt, *one)
    stands = replica is not None and replica.leaving and replica.state != ReplicaState.EVICTED
    if not stands or rows.stop_stands(body.attempt, *one):
        return
    if all(rank.state != RankState.EXITED for rank in rows.ranks(body.attempt, of=one)):
        columns = {"ordered_out": "", "ordered_s": None, "relieved": ""}
        yield Observe(ReplicaKey(body.attempt, *one), columns, publish="replica")


def _reset(rows: Rows, command: Answered, body: ResetDevice) -> Iterator[Change]:
    """It returns, or is a person's. Where nobody answered it is not known whether it was done: it is wanted again.
    Another device in its place is none of this."""
    key = DeviceKey(command.node_id, body.device_index)
    device = rows.device(command.node_id, body.device_index)
    if device is None or device.uuid != body.uuid or command.state == CommandState.ACKNOWLEDGED:
        return
    if command.state == CommandState.EXPIRED:
        yield Observe(key, {"reset_wanted_s": rows.now_s})
    elif command.state == CommandState.SUCCEEDED:
        yield Judge(key, True, "it was reset")
    else:
        said = command.detail or command.state
        yield Judge(key, False, f"It could not be reset: {said}. A person must inspect it.")


def _collect(rows: Rows, command: Answered, body: CollectStacks) -> Iterator[Change]:
    if command.state in diagnostics.GIVEN_UP:
        yield from diagnostics.gave_up(rows, command.id, body)


MEANT: dict[type, Callable[[Rows, Answered, Any], Iterator[Change]]] = {
    StartRanks: _start,
    StopRanks: _stop,
    ResetDevice: _reset,
    CollectStacks: _collect,
}
KINDS = ("start_ranks", "stop_ranks", "reset_device", "collect_stacks")
"""Their names on the wire; of any other command an answer means nothing here."""
