"""From the journal's records to a state, and back.

After a restart of the agent alone, everything is kept: monotonic times mean the same.
After a reboot every process is gone and the clock began anew: a new journal starts,
fences and closed commands are kept, and what ranks had said is forgotten with them.
"""

from collections.abc import Iterable
from dataclasses import replace

from agents.core.commands import act
from agents.core.launches import advance
from agents.core.learn import NEVER_ASIDE, UNWATCHED
from agents.core.records import (
    CommandClosed,
    CommandSeen,
    EventKept,
    EventsAcked,
    HostDropped,
    HostKept,
    JobForgotten,
    JobKept,
    Opened,
    RankDropped,
    RankKept,
    Record,
)
from agents.core.state import (
    Command,
    CommandStage,
    Host,
    Identity,
    Job,
    KeptEvent,
    Link,
    PendingLaunch,
    ProcessState,
    Rank,
    State,
)
from agents.core.turn import OPEN_STAGES, REPEATABLE, Turn, job_record, rank_record, waiting_of
from controlplane.protocol.codec import event_bytes
from controlplane.protocol.commands import StartRanks
from controlplane.protocol.frames import CommandAnswer, RankSaid
from controlplane.protocol.launch import RankRef
from controlplane.protocol.signing import SIGNATURE_REJECTED
from controlplane.protocol.states import Section


def restore(records: Iterable[Record], *, boot_id: str, fresh_journal_id: str, now_s: float) -> State:
    """The state those records tell of. Ranks and hosts in it are claims to be checked."""
    opened: Opened | None = None
    ranks: dict[RankRef, Rank] = {}
    hosts: dict[str, Host] = {}
    jobs: dict[str, Job] = {}
    commands: dict[str, Command] = {}
    events: list[KeptEvent] = []
    next_seq = 1
    for record in records:
        match record:
            case Opened():
                opened = record
                next_seq = max(next_seq, record.next_seq)
            case CommandSeen() | CommandClosed():
                command = _command(record)
                commands[command.command_id] = command
            case EventKept():
                events.append(_kept(record))
                next_seq = max(next_seq, record.seq + 1)
                if (closed := _closed_by(record)) is not None:
                    commands[closed.command_id] = closed
            case EventsAcked():
                events = [kept for kept in events if kept.seq > record.seq]
                next_seq = max(next_seq, record.seq + 1)
            case RankKept():
                ranks[record.ref] = _rank(record, now_s)
            case RankDropped():
                ranks.pop(record.ref, None)
            case HostKept():
                identity = Identity(record.pid, record.start_time_ticks)
                hosts[record.job_id] = Host(job_id=record.job_id, since_s=now_s, identity=identity)
            case HostDropped():
                hosts.pop(record.job_id, None)
            case JobKept():
                jobs.pop(record.job_id, None)
                jobs[record.job_id] = _job(record)
            case JobForgotten():
                jobs.pop(record.job_id, None)
    same_boot = opened is not None and opened.boot_id == boot_id
    state = State(
        started_s=now_s,
        boot_id=boot_id,
        journal_id=opened.journal_id if same_boot and opened is not None else fresh_journal_id,
        link=Link(since_s=now_s),
        ranks=ranks,
        hosts=hosts,
        jobs=jobs,
        commands=commands,
        events=tuple(events),
        waiting=waiting_of(events),
        next_seq=next_seq,
        unsent_seq=next_seq,
    )
    return state if same_boot else _after_reboot(state)


def snapshot(state: State) -> tuple[Record, ...]:
    """The fewest records from which `restore` gives the same state."""
    records: list[Record] = [Opened(state.journal_id, state.boot_id, state.next_seq)]
    records.extend(job_record(job) for job in state.jobs.values())
    for command in state.commands.values():
        if command.envelope is not None and command.stage in OPEN_STAGES:
            records.append(CommandSeen(command.envelope))
        elif command.stage not in OPEN_STAGES:
            records.append(CommandClosed(command.command_id, command.stage.value, command.detail, command.data))
    for host in state.hosts.values():
        if host.identity is not None:
            records.append(HostKept(host.job_id, host.identity.pid, host.identity.start_time_ticks))
    records.extend(rank_record(rank) for rank in state.ranks.values())
    records.extend(EventKept(kept.seq, kept.at_s, kept.body) for kept in state.events)
    return tuple(records)


def resume(turn: Turn) -> None:
    """After the claims were checked: go on with what was under way.

    1. Starts are queued again: asked if any of their ranks is known, else from the top.
    2. Stops and deliveries are idempotent: carried out once more.
    3. Anything else is answered as failed, for its effect cannot be known.
    """
    for command in tuple(turn.state.commands.values()):
        envelope = command.envelope
        if envelope is None or command.stage not in OPEN_STAGES:
            continue
        body = envelope.body
        if isinstance(body, StartRanks):
            _resume_start(turn, command.command_id, body)
        elif isinstance(body, REPEATABLE):
            act(turn, envelope)
        else:
            turn.answer(command.command_id, CommandStage.FAILED, "interrupted by a restart of the agent")
    advance(turn)


def _resume_start(turn: Turn, command_id: str, body: StartRanks) -> None:
    launch = body.launch
    job = turn.state.jobs.get(launch.job_id)
    fenced = job is not None and (launch.attempt, launch.incarnation) == (
        job.attempt,
        job.incarnations.get(launch.replica, -1),
    )
    slot = (launch.job_id, launch.attempt, launch.replica, launch.incarnation)
    known = [r for r in turn.state.ranks if (r.job_id, r.attempt, r.replica, r.incarnation) == slot]
    if not fenced and not known:
        # It was journaled but never acted on, or another start replaced it meanwhile.
        act_again = Command(command_id=command_id, stage=CommandStage.ACKNOWLEDGED)
        turn.put_command(act_again)
        turn.answer(command_id, CommandStage.FAILED, "interrupted by a restart of the agent before it began")
        return
    if turn.state.rebooted:
        # Its ranks may have run, and trained: what was lost with the pages says nothing. A life is lived once.
        turn.answer(command_id, CommandStage.FAILED, "the machine was started again before the start was answered")
        return
    queued = (pending.launch for pending in turn.state.launches)
    if slot in {(other.job_id, other.attempt, other.replica, other.incarnation) for other in queued}:
        # Two starts of one life were journaled; the kill came before the second was judged.
        detail = f"incarnation {launch.incarnation} of replica {launch.replica} is being started here already"
        turn.answer(command_id, CommandStage.SUPERSEDED, detail)
        return
    pending = PendingLaunch(command_id=command_id, launch=launch, since_s=turn.now_s, asked=bool(known))
    turn.set(launches=(*turn.state.launches, pending))


def _rank(record: RankKept, now_s: float) -> Rank:
    identity = Identity(record.pid, record.start_time_ticks) if record.pid else None
    return Rank(
        ref=record.ref,
        device_index=record.device_index,
        launch=record.launch,
        launched_at_s=record.launched_at_s,
        process=ProcessState.ALIVE if identity else ProcessState.LAUNCHING,
        identity=identity,
        # Until it says where it is: one that has come up and is stopped for good is late in a step, not in its start.
        section=Section.STEP if record.joined else Section.SETUP,
        joined=record.joined,
        admitted=record.admitted,
        done=record.done,
        expected=record.expected,
        log_read_bytes=record.log_read_bytes,
        kill_at_s=now_s if record.expected else None,
        phase_since_s=now_s,
        last_word_s=now_s,
        aside=UNWATCHED if identity else NEVER_ASIDE,
    )


def _kept(record: EventKept) -> KeptEvent:
    return KeptEvent(record.seq, record.at_s, record.body, event_bytes(record.body))


def _command(record: CommandSeen | CommandClosed) -> Command:
    if isinstance(record, CommandSeen):
        envelope = record.envelope
        return Command(command_id=envelope.command_id, stage=CommandStage.ACKNOWLEDGED, envelope=envelope)
    stage = CommandStage(record.stage)
    return Command(command_id=record.command_id, stage=stage, detail=record.detail, data=record.data)


def _closed_by(record: EventKept) -> Command | None:
    """The command whose last answer this is. A refused signature closes none: the true command of that name may
    still be under way (`commands.on_order`)."""
    answer = record.body
    if not isinstance(answer, CommandAnswer) or answer.data == SIGNATURE_REJECTED:
        return None
    stage = CommandStage(answer.state)
    if stage in OPEN_STAGES:
        return None
    return Command(command_id=answer.command_id, stage=stage, detail=answer.detail, data=answer.data)


def _job(record: JobKept) -> Job:
    return Job(
        job_id=record.job_id,
        attempt=record.attempt,
        epoch=record.epoch,
        incarnations=record.incarnations,
        view=record.view,
        install=record.install,
        end=record.end,
        end_signature=record.end_signature,
        ended_epoch=record.ended_epoch,
    )


def _after_reboot(state: State) -> State:
    facts = [kept for kept in state.events if not isinstance(kept.body, RankSaid)]
    renumbered = tuple(replace(kept, seq=seq, at_s=state.started_s) for seq, kept in enumerate(facts, start=1))
    ranks = {ref: replace(rank, launched_at_s=state.started_s) for ref, rank in state.ranks.items() if rank.identity}
    waiting = waiting_of(renumbered)
    next_seq = len(renumbered) + 1
    return replace(
        state,
        events=renumbered,
        waiting=waiting,
        next_seq=next_seq,
        unsent_seq=next_seq,
        ranks=ranks,
        rebooted=True,
    )
