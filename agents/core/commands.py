"""Orders from the server: seen once, journaled, fenced, then carried out.

A command passes: received, its signature verified by the link (else: refused) -> (expired,
not ours: refused) -> journaled -> (stale: superseded) -> acknowledged -> its handler ->
succeeded or failed. A repeat is answered from what is remembered and has no effect.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from agents.core import limits
from agents.core.effects import Commit, DropLink, InjectDevice, Persist, Reach, Reset, Signal, TakeStacks
from agents.core.ends import is_looked_at, kill, kill_after_look, looked, replica_is_looked_at, settle_stops
from agents.core.events import DeviceReset, FaultInjected, Journaled, OrderReceived, RulesRead, StacksTaken
from agents.core.launches import accept, advance, end_launch, fence, want_host
from agents.core.policy import refusal
from agents.core.records import CommandSeen
from agents.core.relay import take_install, take_view, tell
from agents.core.state import Command, CommandStage, Job, PendingStacks, PendingStop, ProcessState, Rank
from agents.core.turn import REPEATABLE, Turn, answer_of
from agents.core.verify import end_verification, verify_checkpoint
from controlplane.protocol.bounds import fitted_tail
from controlplane.protocol.commands import (
    Body,
    CollectStacks,
    CommandEnvelope,
    DeliverInstall,
    DeliverView,
    EndVerification,
    ForRanks,
    InjectDeviceFault,
    InjectLinkFault,
    InjectRankFault,
    ResetDevice,
    StartRanks,
    StopRanks,
    VerifyCheckpoint,
    WarmHost,
    subject,
)
from controlplane.protocol.diagnostics import LOOKS, looks_of
from controlplane.protocol.frames import CommandAnswer, StacksCollected
from controlplane.protocol.rank import InjectFault
from controlplane.protocol.rank_faults import INSIDE, SIGNALS
from controlplane.protocol.signing import SIGNATURE_REJECTED
from controlplane.protocol.states import UNFIT

# Their effect outlives a crash of the machine's journal pages, so these wait for fsync;
# the rest is idempotent and only written.
_DURABLE = (StartRanks, StopRanks, InjectRankFault, ResetDevice)


def on_order(turn: Turn, event: OrderReceived) -> None:
    """Sort repeats and misdirected orders out; send the rest to the journal."""
    for command_id, reason in event.rejected:
        _reject(turn, command_id, reason)
    fresh: list[CommandEnvelope] = []
    for envelope in event.commands:
        known = turn.state.commands.get(envelope.command_id)
        if known is not None:
            _repeat(turn, known)
        elif envelope.node_id != turn.state.link.node_id:
            turn.answer(envelope.command_id, CommandStage.FAILED, f"meant for {envelope.node_id}")
        elif envelope.age_s > envelope.ttl_s:
            detail = f"expired: {envelope.age_s:.1f} s old, its time to live is {envelope.ttl_s:.1f} s"
            turn.answer(envelope.command_id, CommandStage.SUPERSEDED, detail)
        else:
            command_id = envelope.command_id
            turn.put_command(Command(command_id=command_id, stage=CommandStage.JOURNALING, envelope=envelope))
            turn.do(Persist(CommandSeen(envelope)))
            fresh.append(envelope)
    if fresh:
        durable = any(isinstance(envelope.body, _DURABLE) for envelope in fresh)
        turn.do(Commit(tuple(envelope.command_id for envelope in fresh), durable))


def on_journaled(turn: Turn, event: Journaled) -> None:
    """Safe on disk: now act."""
    for command_id in event.command_ids:
        command = turn.state.commands.get(command_id)
        if command is None or command.stage is not CommandStage.JOURNALING or command.envelope is None:
            continue
        if event.error and not isinstance(command.envelope.body, REPEATABLE):
            # A start is no fault of the replica's: this node can begin nothing now.
            data = UNFIT if isinstance(command.envelope.body, StartRanks) else ""
            turn.answer(command_id, CommandStage.FAILED, f"not journaled, so not done: {event.error}", data)
            continue
        stale = _fence(turn, command.envelope)
        if stale:
            turn.answer(command_id, CommandStage.SUPERSEDED, stale)
            continue
        if not event.error:
            turn.answer(command_id, CommandStage.ACKNOWLEDGED)
        act(turn, command.envelope)


def act(turn: Turn, envelope: CommandEnvelope) -> None:
    """Carry one order out, unless this node's own policy refuses it."""
    refused = refusal(turn.state.rules, envelope.body)
    if refused:
        turn.set(refused_by_policy=turn.state.refused_by_policy + 1)
        turn.note("refused by this node's policy", command=envelope.command_id, why=refused)
        data = UNFIT if isinstance(envelope.body, StartRanks) else ""
        turn.answer(envelope.command_id, CommandStage.FAILED, refused, data)
        return
    if isinstance(envelope.body, ForRanks):
        hand_on(turn, envelope.command_id, envelope.body)
    else:
        _HANDLERS[type(envelope.body)](turn, envelope.command_id, envelope.body)


def on_rules(turn: Turn, event: RulesRead) -> None:
    """They hold for every order from now on; what runs, runs on."""
    turn.set(rules=event.rules)


def start_ranks(turn: Turn, command_id: str, body: StartRanks) -> None:
    """See `launches`."""
    accept(turn, command_id, body.launch)


def stop_ranks(turn: Turn, command_id: str, body: StopRanks) -> None:
    """End them, and answer when they are proved gone."""
    for pending in turn.state.launches:
        launch = pending.launch
        if (launch.job_id, launch.attempt) == (body.job_id, body.attempt) and (
            body.replica == -1 or (launch.replica, launch.incarnation) == (body.replica, body.incarnation)
        ):
            end_launch(turn, pending, CommandStage.SUPERSEDED, "stopped before it was complete")
    fence(turn, body)
    job = turn.state.jobs.get(body.job_id)
    if body.final and job is not None and job.attempt <= body.attempt:
        turn.put_job(replace(job, end=body.final, end_signature=body.end_signature))
    targets = [rank for rank in turn.state.ranks.values() if _is_target(rank, body)]
    for rank in targets:
        if replica_is_looked_at(turn, rank.ref) and body.grace_s <= 0 and rank.process is ProcessState.ALIVE:
            kill_after_look(turn, rank)
        else:
            kill(turn, rank, grace_s=body.grace_s)
    stop = PendingStop(command_id=command_id, refs=frozenset(rank.ref for rank in targets))
    turn.set(stops=(*turn.state.stops, stop))
    settle_stops(turn)
    advance(turn)


def deliver_view(turn: Turn, command_id: str, body: DeliverView) -> None:
    """See `relay`."""
    turn.answer(command_id, CommandStage.SUCCEEDED, f"handed to {take_view(turn, body.view)} ranks")


def deliver_install(turn: Turn, command_id: str, body: DeliverInstall) -> None:
    """See `relay`."""
    turn.answer(command_id, CommandStage.SUCCEEDED, f"handed to {take_install(turn, body.install)} ranks")


def hand_on(turn: Turn, command_id: str, body: ForRanks) -> None:
    """To each rank that it names and that lives here; what comes of it, the ranks report."""
    reached = 0
    for rank in turn.state.ranks.values():
        of_attempt = (rank.ref.job_id, rank.ref.attempt) == (body.job_id, body.attempt)
        if of_attempt and body.names(rank.ref) and rank.process is ProcessState.ALIVE:
            reached += tell(turn, rank, body.message(command_id))
    if not reached:
        turn.answer(command_id, CommandStage.FAILED, "no such rank runs here and listens")
    elif not body.answered:
        turn.answer(command_id, CommandStage.SUCCEEDED, f"handed to {reached} ranks")


def collect_stacks(turn: Turn, command_id: str, body: CollectStacks) -> None:
    """From outside the process, so that it works on a hung one; one person's question a rank at a time."""
    names = looks_of(body.look)
    found = [rank for rank in turn.state.ranks.values() if rank.identity is not None and _is_meant(turn, rank, body)]
    if not names:
        turn.answer(command_id, CommandStage.FAILED, f"unknown look {body.look!r}: use {', '.join(LOOKS)}")
    elif not found:
        stage = CommandStage.SUCCEEDED if body.replica == -1 else CommandStage.FAILED
        turn.answer(command_id, stage, "no such rank is running here")
    elif body.rank != -1 and any(is_looked_at(turn, rank.ref) for rank in found):
        turn.answer(command_id, CommandStage.FAILED, "a diagnostic of it is already running; ask again when it is done")
    else:
        looks = frozenset((rank.ref, name) for rank in found for name in names)
        turn.set(stacks=(*turn.state.stacks, PendingStacks(command_id=command_id, looks=looks)))
        for rank in found:
            assert rank.identity is not None, "only running processes are inspected"
            for name in names:
                turn.do(TakeStacks(rank.ref, rank.identity, command_id, name, body.duration_s))


def _is_meant(turn: Turn, rank: Rank, body: CollectStacks) -> bool:
    """Of those of a whole job, who is being looked at is left alone."""
    ref = rank.ref
    if body.replica == -1:
        return ref.job_id == body.job_id and not is_looked_at(turn, ref)
    slot = (ref.job_id, ref.replica, ref.incarnation)
    return slot == (body.job_id, body.replica, body.incarnation) and body.rank in (-1, ref.rank)


def warm_host(turn: Turn, command_id: str, body: WarmHost) -> None:
    """Answered when the host is ready."""
    host = want_host(turn, body.job_id, body.user)
    idle_at_s = turn.now_s + limits.HOST_WARM_IDLE_S
    if host.ready:
        busy = any(ref.job_id == body.job_id for ref in turn.state.ranks)
        turn.put_host(replace(host, idle_at_s=None if busy else idle_at_s))
        turn.answer(command_id, CommandStage.SUCCEEDED, "host is ready")
        return
    waiting = (*host.waiting_commands, command_id)
    turn.put_host(replace(host, idle_at_s=idle_at_s, waiting_commands=waiting))


def reset_device(turn: Turn, command_id: str, body: ResetDevice) -> None:
    """Only an empty device: a reset ends whatever uses it."""
    busy = [rank.ref for rank in turn.state.ranks.values() if rank.device_index == body.device_index]
    starting = any(
        placed.device_index == body.device_index for pending in turn.state.launches for placed in pending.launch.ranks
    )
    if busy or starting:
        turn.answer(command_id, CommandStage.FAILED, f"device {body.device_index} is in use here; it was not reset")
        return
    turn.do(Reset(command_id, body))


def on_device_reset(turn: Turn, event: DeviceReset) -> None:
    """The driver's answer."""
    stage = CommandStage.FAILED if event.error else CommandStage.SUCCEEDED
    turn.answer(event.command_id, stage, event.error or "the driver has reset it")


def inject_device_fault(turn: Turn, command_id: str, body: InjectDeviceFault) -> None:
    """The probe decides whether it can."""
    turn.do(InjectDevice(command_id, body))


def inject_rank_fault(turn: Turn, command_id: str, body: InjectRankFault) -> None:
    """Only where the job's own spec allows it."""
    slot = (body.job_id, body.replica, body.incarnation, body.rank)
    rank = next(
        (r for r in turn.state.ranks.values() if (r.ref.job_id, r.ref.replica, r.ref.incarnation, r.ref.rank) == slot),
        None,
    )
    if rank is None or rank.identity is None or rank.process is not ProcessState.ALIVE:
        turn.answer(command_id, CommandStage.FAILED, "no such rank is running here")
    elif not rank.launch.config.allow_faults:
        detail = "the job does not allow faults: submit it with resiliency.allow_faults set to true"
        turn.answer(command_id, CommandStage.FAILED, detail)
    elif body.fault in SIGNALS:
        turn.do(Signal(rank.ref, rank.identity, SIGNALS[body.fault], Reach.PROCESS))
        turn.answer(command_id, CommandStage.SUCCEEDED, f"{body.fault} sent to pid {rank.identity.pid}")
    elif body.fault not in INSIDE:
        turn.answer(command_id, CommandStage.FAILED, f"unknown fault {body.fault!r}")
    elif tell(turn, rank, InjectFault(body.fault, body.value)):
        turn.answer(command_id, CommandStage.SUCCEEDED, f"{body.fault} handed to the rank")
    else:
        turn.answer(command_id, CommandStage.FAILED, "the rank is not connected")


def inject_link_fault(turn: Turn, command_id: str, body: InjectLinkFault) -> None:
    """The answer leaves first, then the link goes."""
    if not turn.state.link.demo:
        turn.answer(command_id, CommandStage.FAILED, "only in a demo")
        return
    seconds = min(max(body.seconds, 0.0), limits.MAX_LINK_FAULT_S)
    turn.answer(command_id, CommandStage.SUCCEEDED, f"link dropped for {seconds:.1f} s")
    turn.do(DropLink(seconds))


def on_stacks(turn: Turn, event: StacksTaken) -> None:
    """One look at one rank; the last one closes the command, and lets a rank go whose end
    waited for it."""
    text = fitted_tail(event.text, limits.MAX_STACK_CHARS)
    turn.report(StacksCollected(event.ref, text, event.method, event.command_id, event.look))
    still: list[PendingStacks] = []
    for pending in turn.state.stacks:
        done = {(event.ref, event.look)} if pending.command_id == event.command_id else set()
        if looks := pending.looks - done:
            still.append(replace(pending, looks=looks))
        else:
            turn.answer(pending.command_id, CommandStage.SUCCEEDED, "looked")
    turn.set(stacks=tuple(still))
    if not is_looked_at(turn, event.ref):
        looked(turn, event.ref)


def on_fault_injected(turn: Turn, event: FaultInjected) -> None:
    """The probe's answer."""
    stage = CommandStage.FAILED if event.error else CommandStage.SUCCEEDED
    turn.answer(event.command_id, stage, event.error)


def _repeat(turn: Turn, known: Command) -> None:
    if known.stage is CommandStage.JOURNALING:
        return
    answer = answer_of(known)
    if not any(kept.body == answer for kept in turn.state.events):
        turn.report(answer)


def _reject(turn: Turn, command_id: str, reason: str) -> None:
    """Answered, noted and not remembered: the id is not the server's word, and the true command
    of that name may still come. One that was seen before is answered as it ended."""
    turn.note("command refused", command=command_id, reason=reason)
    known = turn.state.commands.get(command_id)
    if known is not None:
        _repeat(turn, known)
        return
    answer = CommandAnswer(command_id, CommandStage.FAILED.value, reason, SIGNATURE_REJECTED)
    # Whoever floods us with ids is not answered without end: what is still sent is refused again.
    waiting = sum(isinstance(kept.body, CommandAnswer) for kept in turn.state.events)
    if waiting < limits.MAX_UNACKED_REFUSALS and not any(kept.body == answer for kept in turn.state.events):
        turn.report(answer)


def _fence(turn: Turn, envelope: CommandEnvelope) -> str:
    """Why the order is stale, or empty; a newer fence is remembered."""
    job_id, attempt = subject(envelope.body)
    if envelope.job_id and job_id and envelope.job_id != job_id:
        return f"the command names {job_id}, its envelope {envelope.job_id}"
    job_id = job_id or envelope.job_id
    attempt = envelope.attempt if attempt is None else attempt
    if not job_id or envelope.epoch == 0:
        return ""
    job = turn.state.jobs.get(job_id) or Job(job_id=job_id)
    if (attempt, envelope.epoch) < (job.attempt, job.epoch) and isinstance(envelope.body, StopRanks | CollectStacks):
        # An end is never taken back, and a look changes nothing: both are right at any time. A
        # server whose database was set back can end what it does not know the epoch of.
        return ""
    if attempt < job.attempt:
        return f"attempt {job.attempt} was seen here"
    if isinstance(envelope.body, StartRanks):
        # Epochs fence membership; views come and go while a start is on its way. Its incarnation fences
        # it, which it raises itself, in one record (`launches`).
        return ""
    if attempt == job.attempt and envelope.epoch < job.epoch:
        return f"epoch {envelope.epoch} is older than {job.epoch}, seen here"
    if (attempt, envelope.epoch) == (job.attempt, job.epoch):
        return ""
    if attempt > job.attempt:
        turn.put_job(Job(job_id=job_id, attempt=attempt, epoch=envelope.epoch))
    else:
        turn.put_job(replace(job, epoch=envelope.epoch))
    return ""


def _is_target(rank: Rank, body: StopRanks) -> bool:
    if (rank.ref.job_id, rank.ref.attempt) != (body.job_id, body.attempt):
        return False
    return body.replica == -1 or (rank.ref.replica, rank.ref.incarnation) == (body.replica, body.incarnation)


_HANDLERS: dict[type[Body], Callable[[Turn, str, Any], None]] = {
    StartRanks: start_ranks,
    StopRanks: stop_ranks,
    DeliverView: deliver_view,
    DeliverInstall: deliver_install,
    CollectStacks: collect_stacks,
    VerifyCheckpoint: verify_checkpoint,
    EndVerification: end_verification,
    WarmHost: warm_host,
    ResetDevice: reset_device,
    InjectDeviceFault: inject_device_fault,
    InjectRankFault: inject_rank_fault,
    InjectLinkFault: inject_link_fault,
}
