"""The session with the server: hello, frames, acknowledgements. Builds, never sends.

Events carry a gap-free `seq`. In one session each is sent once, in order, and again
only after a reconnect, when the server asks, or when no acknowledgement comes.
"""

import math

from agents import VERSION
from agents.core import limits
from agents.core.effects import Persist, RenewJournal, SendSoon
from agents.core.events import JournalRenewed, LinkDown, LinkUp, ResyncAsked, ServerAcked
from agents.core.records import EventsAcked
from agents.core.state import Link, ProcessState, Rank, State
from agents.core.turn import Turn, waiting_of
from agents.core.values import replace
from controlplane.protocol.frames import (
    MAX_EVENTS_PER_FRAME,
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    AgentEvent,
    AgentFrame,
    AgentHello,
    JobSeen,
    RankStatus,
)
from controlplane.protocol.samples import DeviceInfo, DeviceSample
from controlplane.protocol.states import RankState, Section

_ENVELOPE_BYTES = 32


def hello(
    state: State, *, node_name: str, devices: tuple[DeviceInfo, ...], now_s: float, segment: str = ""
) -> AgentHello:
    """First message of a session. `segment`: where the node is in the network, "" if not said."""
    return AgentHello(
        protocol_min=PROTOCOL_MIN,
        protocol_max=PROTOCOL_MAX,
        node_name=node_name,
        segment=segment,
        agent_version=VERSION,
        boot_id=state.boot_id,
        journal_id=state.journal_id,
        devices=devices,
        ranks=statuses(state, now_s),
        first_unacked_seq=state.events[0].seq if state.events else state.next_seq,
        jobs=tuple(
            JobSeen(
                job_id=job.job_id,
                attempt=job.attempt,
                epoch=job.epoch,
                incarnations=dict(job.incarnations),
                end=job.end,
                end_signature=job.end_signature,
            )
            for job in state.jobs.values()
        ),
    )


def unacknowledged(state: State) -> State:
    """With the next frame all that is not acknowledged is to be sent once more, but for what is held back: for a
    carrier that loses frames within a session."""
    if not state.events:
        return state
    link = state.link
    leaves_s = 0.0 if math.isinf(link.leaves_s) else link.leaves_s
    return replace(state, link=replace(link, sent_seq=state.events[0].seq - 1, leaves_s=leaves_s))


def compose(
    state: State,
    now_s: float,
    *,
    samples: tuple[DeviceSample, ...] = (),
    hints: bool = False,
    cpu_ratio: float | None = None,
    rss_bytes: int | None = None,
) -> tuple[State, AgentFrame, bool]:
    """The next frame, the state after it left, and whether more events wait.

    `hints`: include every rank's status; a frame for events alone stays small. Events that are held back until
    later (`Link.leaves_s`) are not in it.
    """
    link = state.link
    events: list[AgentEvent] = []
    room_bytes = limits.FRAME_EVENT_BYTES
    first = state.events[0].seq if state.events else state.next_seq
    start = max(link.sent_seq + 1 - first, 0)
    held = now_s < link.leaves_s
    if start < limits.MAX_IN_FLIGHT_EVENTS and not held:
        for kept in state.events[start : start + MAX_EVENTS_PER_FRAME]:
            room_bytes -= kept.size_bytes + _ENVELOPE_BYTES
            if room_bytes < 0 and events:
                break
            events.append(AgentEvent(kept.seq, max(now_s - kept.at_s, 0.0), kept.body))
    sent_seq = events[-1].seq if events else link.sent_seq
    left = start + len(events) < len(state.events)
    more = left and not held and start + len(events) < limits.MAX_IN_FLIGHT_EVENTS
    leaves_s = link.leaves_s if left or held else math.inf
    oldest_sent_s = link.oldest_sent_s
    if events and oldest_sent_s is None:
        oldest_sent_s = now_s
    number = link.frame_seq + 1
    link = replace(link, frame_seq=number, sent_seq=sent_seq, oldest_sent_s=oldest_sent_s, leaves_s=leaves_s)
    after = replace(state, link=link)
    frame = AgentFrame(
        seq=number,
        uptime_s=now_s - state.started_s,
        devices=samples,
        ranks=statuses(state, now_s) if hints else (),
        events=tuple(events),
        cpu_ratio=cpu_ratio,
        rss_bytes=rss_bytes,
    )
    return after, frame, more


def statuses(state: State, now_s: float) -> tuple[RankStatus, ...]:
    """Every rank whose process lives, as of now."""
    return tuple(
        RankStatus(
            ref=rank.ref,
            state=rank_state(rank),
            pid=rank.identity.pid,
            device_index=rank.device_index,
            section=rank.section,
            phase=rank.phase,
            step=rank.step,
            phase_age_s=max(now_s - rank.phase_since_s, 0.0),
            silent_s=max(now_s - rank.last_word_s, 0.0),
        )
        for rank in state.ranks.values()
        if rank.process is ProcessState.ALIVE and rank.identity is not None
    )


def rank_state(rank: Rank) -> RankState:
    """The rank in the words of the protocol."""
    if rank.process is ProcessState.GONE:
        return RankState.EXITED
    if rank.overdue_sent:
        return RankState.HUNG
    if rank.process is ProcessState.LAUNCHING or (rank.conn_id is None and not rank.joined):
        return RankState.LAUNCHING
    if rank.section is Section.SETUP:
        return RankState.INITIALIZING
    return RankState.CHECKPOINTING if rank.section is Section.CHECKPOINTING else RankState.TRAINING


def on_link_up(turn: Turn, event: LinkUp) -> None:
    """A new session: what the server has is forgotten here, the rest is sent again. Where that
    does not meet what we kept (its database or our disk was set back, or our disk was full and what was sent is not
    on it), a new journal begins: else our events would be a gap, or repeats, for ever. What has its number from this
    run was not sent before its first session: the server has another event by that number."""
    welcome, unsent_seq = event.welcome, turn.state.unsent_seq
    first = turn.state.events[0].seq if turn.state.events else turn.state.next_seq
    after = turn.state.next_seq if unsent_seq is None else unsent_seq
    if not first - 1 <= welcome.acked_seq < after:
        turn.note("journal and server do not meet", acked=welcome.acked_seq, first=first, next=after)
        turn.do(RenewJournal())
    _forget_through(turn, min(welcome.acked_seq, after - 1))
    link = Link(up=True, since_s=turn.now_s, node_id=welcome.node_id, demo=welcome.demo, sent_seq=0)
    turn.set(link=link, unsent_seq=None)
    turn.do(SendSoon(limits.URGENT_S))


def on_resync_asked(turn: Turn, event: ResyncAsked) -> None:
    """The server refuses to go on in this journal."""
    turn.do(RenewJournal())


def on_journal_renewed(turn: Turn, event: JournalRenewed) -> None:
    """Every event that was not acknowledged is told again, numbered from 1. The session of the
    old journal says nothing more."""
    kept = tuple(replace(old, seq=seq) for seq, old in enumerate(turn.state.events, start=1))
    link = replace(turn.state.link, up=False, sent_seq=0, oldest_sent_s=None, leaves_s=0.0)
    turn.set(journal_id=event.journal_id, events=kept, next_seq=len(kept) + 1, link=link)


def on_link_down(turn: Turn, event: LinkDown) -> None:
    """Nothing stops; events wait."""
    if turn.state.link.up:
        turn.set(link=replace(turn.state.link, up=False, since_s=turn.now_s, oldest_sent_s=None))


def on_acked(turn: Turn, event: ServerAcked) -> None:
    """Forget what is committed there; a forged number beyond the last one is ignored, and so is
    a late one of a session that is over."""
    if not turn.state.link.up:
        return
    if event.seq >= turn.state.next_seq:
        turn.note("acknowledgement of events never sent", seq=event.seq)
        return
    _forget_through(turn, event.seq)
    link = turn.state.link
    if event.resend:
        turn.set(link=replace(link, sent_seq=event.seq, oldest_sent_s=None, leaves_s=0.0))
        turn.do(SendSoon(limits.URGENT_S))
        return
    in_flight = any(kept.seq <= link.sent_seq for kept in turn.state.events[:1])
    if in_flight or link.oldest_sent_s is not None:
        turn.set(link=replace(link, oldest_sent_s=turn.now_s if in_flight else None))
    if turn.state.events and turn.state.events[-1].seq > link.sent_seq and turn.now_s >= link.leaves_s:
        turn.do(SendSoon(limits.COALESCE_S))


def _forget_through(turn: Turn, seq: int) -> None:
    if not turn.state.events or turn.state.events[0].seq > seq:
        return
    events = tuple(kept for kept in turn.state.events if kept.seq > seq)
    turn.set(events=events, waiting=waiting_of(events))
    turn.do(Persist(EventsAcked(seq)))
