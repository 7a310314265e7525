"""One handler a kind of event. Observed columns are written here and nowhere else."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from controlplane.checkpoints import services as checkpoints
from controlplane.dispatch import services as dispatch
from controlplane.fleet.models import Node
from controlplane.fleet.services import mark_device_lost, set_device_health
from controlplane.jobs.models import Job, Rank
from controlplane.jobs.services import publish_job, publish_rank, transition_rank
from controlplane.policy.signals.devices import DeviceGone, XidError
from controlplane.policy.signals.nodes import NodeUnfit
from controlplane.policy.signals.ranks import RankExit, RankOverdue, SetupTimeout
from controlplane.policy.xid import XidBucket, link_of, look_up
from controlplane.protocol import frames
from controlplane.protocol.errors import IdentityMismatch
from controlplane.protocol.launch import RankRef
from controlplane.protocol.states import CommandState, RankState, Section
from controlplane.recovery import diagnostics, identity, late, log_markers, signals, speed
from controlplane.recovery.answers import after_answer
from controlplane.recovery.devices import xid_counts
from controlplane.recovery.models import Signal
from controlplane.recovery.said import HANDLERS as SAID
from controlplane.recovery.steps import StepMerge
from controlplane.runtime import counters, events
from controlplane.runtime.clock import now

EXIT_RESUME_FAILED = 74
SAID_MAX = 300
LOG_TAIL_MAX = 16_000
# Answers that may call for a decision; an acknowledgement never does.
TELLING = (CommandState.SUCCEEDED, CommandState.FAILED)
# What these lead to is told by the ranks themselves.
UNTOLD = ("deliver_view", "deliver_install", "verify_checkpoint", "end_verification")


@dataclass(slots=True, kw_only=True)
class Facts:
    """What one batch shares. `jobs` are locked; `touched` are rung after it, those in `sure`
    with a decision certain; `at` is the present event's time by the server's clock; `timed`
    have new timing reports."""

    node: Node
    jobs: dict[str, Job]
    at: datetime = field(default_factory=now)
    touched: set[str] = field(default_factory=set)
    sure: set[str] = field(default_factory=set)
    timed: set[str] = field(default_factory=set)
    freed: bool = False
    merge: StepMerge = field(default_factory=StepMerge)
    points: list[dict[str, object]] = field(default_factory=list)
    ranks: dict[RankRef, Rank] = field(default_factory=dict)

    def rank(self, ref: RankRef) -> Rank:
        """The row, proved to be this node's."""
        row = self.ranks.get(ref)
        if row is None:
            row = self.ranks[ref] = identity.rank_of(self.node.id, ref)
        return row

    def touch(self, ref: RankRef) -> None:
        """What was told may call for a decision: the job is looked at after the commit."""
        self.touched.add(ref.job_id)

    def finish(self) -> None:
        """Write the merged steps; score the jobs whose ranks have all told a new window."""
        self.points = self.merge.write()
        # A joiner may have waited for the first step of the view.
        self.touched |= self.merge.resumed
        self.touched |= {job_id for job_id in sorted(self.timed) if speed.score_if_due(self.jobs[job_id])}


def apply_event(facts: Facts, body: frames.EventBody) -> None:
    """Raises IdentityMismatch."""
    HANDLERS[type(body)](facts, body)


def _started(facts: Facts, body: frames.RankStarted) -> None:
    rank = facts.rank(body.ref)
    if rank.device.index != body.device_index:
        raise IdentityMismatch(f"{body.ref} runs on device {body.device_index}, it was placed on {rank.device.index}")
    if rank.state == RankState.LAUNCHING:
        transition_rank(rank, RankState.INITIALIZING, f"process {body.pid} exists", pid=body.pid, started_at=facts.at)


def _joined(facts: Facts, body: frames.RankJoined) -> None:
    rank = facts.rank(body.ref)
    if rank.joined_at is not None or rank.state == RankState.EXITED:
        return
    Rank.objects.filter(pk=rank.pk).update(joined_at=facts.at, started_at=rank.started_at or facts.at)
    rank.joined_at = facts.at
    if rank.state == RankState.LAUNCHING:
        transition_rank(rank, RankState.INITIALIZING, "it said hello")
    facts.touch(body.ref)
    publish_rank(rank, "rank.joined", f"Rank {rank.rank} of replica {rank.replica.index} is ready.")


def _exited(facts: Facts, body: frames.RankExited) -> None:
    rank = facts.rank(body.ref)
    if rank.state == RankState.EXITED:
        return
    how = _how_ended(body)
    transition_rank(
        rank,
        RankState.EXITED,
        how + (", as requested" if body.expected else ""),
        exit_code=body.exit_code,
        exit_signal=body.signal,
        exit_expected=body.expected,
        log_tail=body.log_tail[-LOG_TAIL_MAX:],
        out_of_section_s=body.out_of_section_s,
    )
    facts.freed = True
    facts.touch(body.ref)
    if body.expected or _ended_well(facts, rank, body):
        return
    facts.sure.add(body.ref.job_id)
    replica = rank.replica
    found = RankExit(
        **signals.place_of(rank),
        attempt=replica.attempt.number,
        node=facts.node.name,
        how=how,
        exit_code=body.exit_code,
        signal=body.signal,
        cause=body.cause,
        hint=body.hint,
    )
    if found.code == EXIT_RESUME_FAILED:
        last_words = body.log_tail.strip().rpartition("\n")[2][-SAID_MAX:]
        checkpoints.refused(facts.jobs[body.ref.job_id], replica.attempt.resume_path, said=last_words)
    raised = signals.raise_signal(found, seen_at=facts.at)
    if raised is not None:
        late.join(raised, replica.state)


def _how_ended(body: frames.RankExited) -> str:
    """In words; an end that nobody saw has no code."""
    if body.exit_code is None and body.signal is None:
        return f"ended unseen: {body.hint or 'exit not observed'}"
    how = f"signal {body.signal}" if body.signal is not None else f"code {body.exit_code}"
    return f"ended with {how}" + (f"; {body.hint}" if body.hint else "")


def _ended_well(facts: Facts, rank: Rank, body: frames.RankExited) -> bool:
    """Exit 0 of a trained job is its end, not a fault."""
    job = facts.jobs[body.ref.job_id]
    return body.exit_code == 0 and job.trained


def _overdue(facts: Facts, body: frames.RankOverdue) -> None:
    rank = facts.rank(body.ref)
    facts.touch(body.ref)
    if rank.state not in (RankState.EXITED, RankState.HUNG):
        transition_rank(rank, RankState.HUNG, f"{body.age_s:.1f} s in {body.phase}, {body.timeout_s:.1f} s are allowed")
    kind = SetupTimeout if body.section is Section.SETUP else RankOverdue
    found = kind(
        **signals.place_of(rank),
        attempt=body.ref.attempt,
        timeout_s=body.timeout_s,
        age_s=body.age_s,
        section=str(body.section),
        phase=str(body.phase),
        step=body.step,
        silent_s=body.silent_s,
    )
    signals.raise_signal(found, seen_at=facts.at)


def _said(facts: Facts, body: frames.RankSaid) -> None:
    rank = facts.rank(body.ref)
    SAID[type(body.report)](facts, rank, body.report)


def _xid(facts: Facts, body: frames.XidSeen) -> None:
    xid = body.xid
    device = facts.node.devices.filter(index=xid.index).first()
    if device is None:
        raise IdentityMismatch(f"device {xid.index} is none of this node's")
    meaning = look_up(xid.xid).description
    found = XidError(
        job_id=_holder(device),
        node_id=facts.node.id,
        device_index=xid.index,
        xid=xid.xid,
        at_s=facts.at.timestamp(),
        node=facts.node.name,
        detail=xid.detail[:500],
        meaning=meaning,
        uuid=device.uuid,
        model=device.model,
        more=xid_counts(facts.node.id, xid.index, xid.xid, facts.at, link=link_of(xid.xid, xid.detail)),
    )
    signals.raise_signal(found, seen_at=facts.at)
    verdict = look_up(xid.xid)
    if verdict.bucket is XidBucket.FATAL and device.present and device.healthy:
        set_device_health(device, healthy=False, reason=f"XID {xid.xid}: {verdict.description}")
    facts.touched |= {job_id for job_id in (_holder(device),) if job_id}


def _device_lost(facts: Facts, body: frames.DeviceLost) -> None:
    device = facts.node.devices.filter(index=body.index).first()
    if device is None:
        raise IdentityMismatch(f"device {body.index} is none of this node's")
    mark_device_lost(device, "fell off the bus")
    job_id = _holder(device)
    found = DeviceGone(
        job_id=job_id, node_id=facts.node.id, device_index=body.index, node=facts.node.name, uuid=body.uuid
    )
    signals.raise_signal(found, seen_at=facts.at)
    facts.touched |= {job_id} if job_id else set()


def _holder(device: Any) -> str | None:
    """The job whose unreleased rank is on the device."""
    found = device.ranks.filter(released_at=None).values_list("replica__attempt__job_id", flat=True).first()
    return str(found) if found else None


def _answer(facts: Facts, body: frames.CommandAnswer) -> None:
    command = dispatch.answer(facts.node.id, body.command_id, body.state, body.detail, body.data)
    if command is None:
        return
    # Rows that the answer changes are read anew by whatever follows in this batch.
    facts.ranks.clear()
    if after_answer(command, facts.at, facts.jobs.get(command.job_id or "")):
        facts.freed = True
    if command.job_id and command.state in TELLING and command.kind not in UNTOLD:
        facts.touched.add(command.job_id)


def _looked(facts: Facts, body: frames.StacksCollected) -> None:
    diagnostics.keep(facts.rank(body.ref), body, at=facts.at)


def _node_checked(facts: Facts, body: frames.NodeChecked) -> None:
    """One finding a node, with all that fails there; it is settled when everything passes. Which
    checks fail is news; what they say of it may change with every reading."""
    node = facts.node
    known = Signal.objects.filter(key=NodeUnfit.key_of(node.id), settled_at=None).first()
    if not body.failed:
        if known is not None:
            signals.settle([known], f"node {node.name} passes its checks again")
            facts.freed = True
        return
    detail = "; ".join(f"{check.name}: {check.detail}" for check in body.failed)[:SAID_MAX]
    names = ", ".join(sorted({check.name for check in body.failed}))
    found = NodeUnfit(node_id=node.id, detail=detail, checks=names, node=node.name)
    if known is None:
        signals.raise_signal(found, seen_at=facts.at)
    elif known.evidence != found.evidence:
        signals.amend(known, found.evidence, "" if known.evidence.get("checks") == names else found.sentence)


def _marked(facts: Facts, body: frames.LogMarked) -> None:
    log_markers.note(facts.rank(body.ref), body)


def _refused(facts: Facts, body: frames.InputRefused) -> None:
    """What the agent did not take from a rank, for the job's owner; or from its own journal, or did not say
    to a server that is older than itself."""
    node = facts.node
    counters.count(node.name, "refused_at_node", number=body.count, detail=body.reason)
    if body.ref is None:
        events.publish(
            "node.refused",
            f"The agent on {node.name} left {body.count} event(s) out: {body.reason}. Its log says more.",
            node_id=node.id,
        )
        return
    rank = facts.rank(body.ref)
    what = f"{body.count} message{'' if body.count == 1 else 's'}"
    closed = " and closed its connection" if body.closed else ""
    events.publish(
        "rank.refused",
        f"The agent on {node.name} dropped {what} of rank {rank.rank} of replica {rank.replica.index}{closed}:"
        f" {body.reason}. Training continues without what they reported. The program sent what the protocol"
        " does not allow (docs/protocol.md): fix it.",
        job_id=body.ref.job_id,
        node_id=node.id,
        data={"count": body.count, "reason": body.reason, "closed": body.closed, "rank": rank.rank},
    )


def _host_exited(facts: Facts, body: frames.HostExited) -> None:
    """A rank host's end is no rank's end: ranks outlive it and are told one by one."""
    job = facts.jobs.get(body.job_id)
    here = Rank.objects.filter(node=facts.node, replica__attempt__job_id=body.job_id)
    reserved = facts.node.devices.filter(reservation__job_id=body.job_id)
    if job is None or not (here.exists() or reserved.exists()):
        raise IdentityMismatch(f"job {body.job_id} has nothing on this node")
    facts.touched.add(body.job_id)
    publish_job(job, "host.exited", f"The rank host on {facts.node.name} ended with code {body.exit_code}.")


HANDLERS: dict[type, Callable[[Facts, Any], None]] = {
    frames.RankStarted: _started,
    frames.RankJoined: _joined,
    frames.RankExited: _exited,
    frames.RankOverdue: _overdue,
    frames.RankSaid: _said,
    frames.XidSeen: _xid,
    frames.DeviceLost: _device_lost,
    frames.CommandAnswer: _answer,
    frames.StacksCollected: _looked,
    frames.NodeChecked: _node_checked,
    frames.LogMarked: _marked,
    frames.InputRefused: _refused,
    frames.HostExited: _host_exited,
}
assert set(HANDLERS) == set(frames.EventBody.__args__), "every event has its handler"
