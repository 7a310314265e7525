"""What time brings: kills that are due, phases that last too long, waits that end."""

from dataclasses import replace

from agents.core import limits, memory, outer_end
from agents.core.effects import SendSoon, ShutdownHost, ToConnection
from agents.core.ends import conclude, kill
from agents.core.events import DevicesSampled, Tick, XidRaised
from agents.core.launches import advance, end_launch
from agents.core.learn import step_timeout_s
from agents.core.state import NEVER_AWAY, Away, CommandStage, ProcessState, Rank, State
from agents.core.turn import Turn
from controlplane.protocol.frames import DeviceLost, RankOverdue, XidSeen
from controlplane.protocol.rank import SaveNow
from controlplane.protocol.states import WAITING_PHASES, Section


def on_tick(turn: Turn, event: Tick) -> None:
    """Everything whose moment has come, ranks first."""
    for ref in tuple(turn.state.ranks):
        rank = turn.state.ranks.get(ref)
        if rank is not None:
            _rank_due(turn, rank)
    for pending in turn.state.launches:
        _launch_due(turn, pending.command_id)
    outer_end.on_tick(turn)
    memory.on_tick(turn)
    advance(turn)
    for host in tuple(turn.state.hosts.values()):
        if host.idle_at_s is not None and host.idle_at_s <= turn.now_s:
            turn.put_host(replace(host, idle_at_s=turn.now_s + limits.HOST_IDLE_S))
            turn.do(ShutdownHost(host.job_id))
    link = turn.state.link
    if link.up and link.oldest_sent_s is not None and link.oldest_sent_s + limits.RESEND_AFTER_S <= turn.now_s:
        first = turn.state.events[0].seq if turn.state.events else turn.state.next_seq
        turn.set(link=replace(link, sent_seq=first - 1, oldest_sent_s=None, leaves_s=0.0))
        turn.do(SendSoon(limits.URGENT_S))


def next_deadline_s(state: State) -> float | None:
    """The next moment at which `on_tick` has something to do; None: never, as things are."""
    due: list[float] = [state.seen_s + limits.WATCH_S] if state.seen_s is not None and state.ranks else []
    away = state.away
    for rank in state.ranks.values():
        if rank.kill_at_s is not None:
            due.append(rank.kill_at_s)
        if rank.exit_due_s is not None:
            due.append(rank.exit_due_s)
        if (overdue_s := overdue_at_s(rank, away)) is not None:
            due.append(overdue_s)
        if rank.process is ProcessState.LAUNCHING:
            due.append(rank.launched_at_s + limits.FORK_TIMEOUT_S)
    link = state.link
    cut_off_at_s = None if link.up else link.since_s + limits.LEASE_S
    for pending in state.launches:
        if not pending.asked:
            due.append(pending.since_s + limits.HOST_TIMEOUT_S)
            due.extend(moment for moment in (cut_off_at_s, memory.due_s(pending)) if moment is not None)
    if state.outer_end is not None:
        due.extend(outer_end.due(state))
    due.extend([host.idle_at_s for host in state.hosts.values() if host.idle_at_s is not None])
    if link.up and link.oldest_sent_s is not None:
        due.append(link.oldest_sent_s + limits.RESEND_AFTER_S)
    return min(due, default=None)


def overdue_at_s(rank: Rank, away: Away = NEVER_AWAY) -> float | None:
    """When the rank's present phase will have lasted too long; None: never, or said already.

    A rank that waits for others is excused for as long as it says so: one that was stopped
    in mid-exchange says nothing any more, and everybody else would wait for it for ever. While this
    process was `away` nobody was watched: that time is added, and time for a word.

    What is told is where a rank says it is from then on, or its silence: since its word before, of up to a second ago,
    it may have gone on.
    """
    if rank.process is not ProcessState.ALIVE or rank.expected or rank.done or rank.overdue_sent:
        return None
    if rank.phase in WAITING_PHASES:
        limit_s = max(section_timeout_s(rank), limits.SILENT_S)
        return rank.last_word_s + limit_s + _excused_s(rank.last_word_s, away) if rank.joined else None
    if rank.launch.entrypoint is not None and not rank.joined and rank.conn_id is None:
        # A program without our hooks never says where it is; that proves nothing.
        return None
    due_s = rank.phase_since_s + section_timeout_s(rank) + _excused_s(rank.phase_since_s, away)
    return due_s if rank.place_said_s >= due_s else max(due_s, rank.place_said_s + limits.NEXT_WORD_S)


def _excused_s(since_s: float, away: Away) -> float:
    """Of what began before this process ran again."""
    return min(away.missed_s, away.until_s - since_s) + limits.WORD_S if since_s < away.until_s else 0.0


def section_timeout_s(rank: Rank) -> float:
    """How long the rank's present section may last: its launch order's word, or learned."""
    launch = rank.launch
    match rank.section:
        case Section.SETUP:
            return launch.setup_timeout_s
        case Section.STEP:
            return step_timeout_s(launch, rank.steps)
        case Section.CHECKPOINTING:
            return launch.checkpoint_timeout_s
        case Section.OUT_OF_SECTION:
            return launch.out_of_section_timeout_s


def on_samples(turn: Turn, event: DevicesSampled) -> None:
    """Readings are hints and not kept here; a device that went away is a fact."""
    absent = {sample.index for sample in event.samples if not sample.present}
    if absent != turn.state.absent_devices:
        for index in sorted(absent - turn.state.absent_devices):
            uuid = event.uuids[index] if index < len(event.uuids) else ""
            turn.report(DeviceLost(index, uuid))
        turn.set(absent_devices=frozenset(absent))
    _local_rule(turn, event)


def on_xid(turn: Turn, event: XidRaised) -> None:
    """Passed on at once."""
    turn.report(XidSeen(event.xid))


def _rank_due(turn: Turn, rank: Rank) -> None:
    if rank.exit_due_s is not None and rank.exit_due_s <= turn.now_s:
        conclude(turn, rank, None, None, rank.exit_log_tail)
        return
    if rank.kill_at_s is not None and rank.kill_at_s <= turn.now_s and rank.process is ProcessState.ALIVE:
        kill(turn, rank)
        return
    if rank.process is ProcessState.LAUNCHING and rank.launched_at_s + limits.FORK_TIMEOUT_S <= turn.now_s:
        _give_up_unborn(turn, rank)
        return
    due_s = overdue_at_s(rank, turn.state.away)
    if due_s is not None and due_s <= turn.now_s:
        turn.put_rank(replace(rank, overdue_sent=True, step_said=False))
        turn.report(
            RankOverdue(
                rank.ref,
                rank.section,
                rank.phase,
                rank.step,
                turn.now_s - rank.phase_since_s,
                section_timeout_s(rank),
                turn.now_s - rank.last_word_s,
            )
        )


def _give_up_unborn(turn: Turn, rank: Rank) -> None:
    """No answer to a start. If a process exists all the same, it is refused at its hello."""
    turn.drop_rank(rank.ref)
    for pending in turn.state.launches:
        launch = pending.launch
        slot = (launch.job_id, launch.attempt, launch.replica, launch.incarnation)
        if slot == (rank.ref.job_id, rank.ref.attempt, rank.ref.replica, rank.ref.incarnation):
            detail = f"no process after {limits.FORK_TIMEOUT_S:.0f} s"
            end_launch(turn, pending, CommandStage.FAILED, detail)
    advance(turn)


def _launch_due(turn: Turn, command_id: str) -> None:
    pending = next((one for one in turn.state.launches if one.command_id == command_id), None)
    if pending is None or pending.asked:
        return
    link = turn.state.link
    if not link.up and link.since_s + limits.LEASE_S <= turn.now_s:
        detail = f"cut off for {limits.LEASE_S:.0f} s: another node may have taken it over"
        end_launch(turn, pending, CommandStage.FAILED, detail)
    elif pending.since_s + limits.HOST_TIMEOUT_S <= turn.now_s:
        end_launch(turn, pending, CommandStage.FAILED, f"not startable within {limits.HOST_TIMEOUT_S:.0f} s")


def _local_rule(turn: Turn, event: DevicesSampled) -> None:
    """While nobody can tell us: a device about to fail saves its jobs, once per cooldown."""
    link = turn.state.link
    if link.up or turn.now_s - link.since_s < limits.CUT_OFF_RULE_S:
        return
    last_s = turn.state.emergency_at_s
    if last_s is not None and turn.now_s - last_s < limits.EMERGENCY_COOLDOWN_S:
        return
    hot = {s.index for s in event.samples if (s.temperature_c or 0.0) > limits.EMERGENCY_TEMPERATURE_C}
    jobs = {rank.ref.job_id for rank in turn.state.ranks.values() if rank.device_index in hot}
    if not jobs:
        return
    turn.set(emergency_at_s=turn.now_s)
    turn.note("local emergency save", devices=sorted(hot), jobs=sorted(jobs))
    # The id is the same for all ranks of one decision, so that they save together.
    command_id = f"local-{turn.state.journal_id}-{turn.now_s:.3f}"
    reason = f"device above {limits.EMERGENCY_TEMPERATURE_C:.0f} C while cut off from the control plane"
    for rank in turn.state.ranks.values():
        if rank.ref.job_id in jobs and rank.conn_id is not None and rank.process is ProcessState.ALIVE:
            turn.do(ToConnection(rank.conn_id, SaveNow(command_id, "emergency", reason)))
