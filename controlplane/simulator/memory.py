"""Rows in memory as the write side's core reads them: `changes.rows.Rows`. Writes nothing."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from controlplane.changes import rows as facts
from controlplane.changes.answers import Answered
from controlplane.changes.outbox import LIVE
from controlplane.changes.turn import OVER
from controlplane.policy.signals.nodes import NodeUnfit
from controlplane.policy.snapshot import Placement
from controlplane.policy.timeouts import Observed, section_timeouts
from controlplane.protocol.commands import CollectStacks, StopRanks
from controlplane.protocol.diagnostics import FLIGHT_RECORDER
from controlplane.protocol.launch import RankRef
from controlplane.protocol.membership import View
from controlplane.protocol.states import AttemptState, CommandState, RankState, Section
from controlplane.simulator.checkers import Checkers
from controlplane.simulator.course import incident_id
from controlplane.simulator.kernel import Kernel
from controlplane.simulator.load import places, there
from controlplane.simulator.rows import JOB_ID, CommandRow, ReplicaRow, Rows

HANG_TIMEOUT_S = 6.5
"""Which a launch allows a step."""


class MemoryRows:
    """One job's rows."""

    def __init__(self, rows: Rows, kernel: Kernel, checkers: Checkers) -> None:
        self._rows, self._kernel, self._checkers = rows, kernel, checkers

    @property
    def job_id(self) -> str:
        """Of these rows."""
        return self._rows.job_id

    @property
    def now_s(self) -> float:
        """The server's clock."""
        return self._kernel.now_s

    def job(self) -> facts.Job:
        """The one there is."""
        rows = self._rows
        return facts.Job(rows.job_id, rows.name, "", rows.state, rows.epoch, rows.spec, rows.looks_taken)

    def attempt(self, number: int | None = None) -> facts.Attempt:
        """The newest alone is kept."""
        row = self._rows.attempt
        if row is None or number not in (None, row.number):
            raise LookupError(f"no attempt {number}")
        return facts.Attempt(
            number=row.number,
            state=row.state,
            layout=row.layout,
            replicas=row.replicas,
            resume_step=row.resume_step,
            resume_path=row.resume_path,
            checkpoint_dir=row.checkpoint_dir,
            max_contributors=row.max_contributors,
            yielded=row.yielded,
            end_reason=row.end_reason,
        )

    def unended_attempts(self) -> Sequence[facts.Attempt]:
        """The newest, or none."""
        row = self._rows.attempt
        return [] if row is None or row.state is AttemptState.ENDED else [self.attempt()]

    def all_replicas(self) -> list[ReplicaRow]:
        """Of every slot and attempt, but for those that are proved gone and followed."""
        return [*self._rows.replicas.values(), *self._rows.ghosts]

    def row(self, index: int, incarnation: int) -> ReplicaRow:
        """Raises LookupError."""
        found = [row for row in self.all_replicas() if (row.index, row.incarnation) == (index, incarnation)]
        if not found:
            raise LookupError(f"no r{index}.{incarnation}")
        return found[0]

    def replicas(self, attempt: int) -> Sequence[facts.Replica]:
        """By index and incarnation."""
        found = [_replica(row) for row in self.all_replicas() if row.attempt == attempt]
        return sorted(found, key=lambda replica: (replica.index, replica.incarnation))

    def replica(self, index: int, incarnation: int) -> facts.Replica:
        """A decision is about the newest of its slot, or else that is a violation."""
        row = self.row(index, incarnation)
        self._checkers.expect(row is self._rows.replicas.get(index), f"I4: a decision about old r{index}.{incarnation}")
        return _replica(row)

    def incarnation(self, attempt: int, index: int, incarnation: int) -> facts.Replica | None:
        """Also one that was followed, until it is proved gone."""
        named = (attempt, index, incarnation)
        rows = (row for row in self.all_replicas() if (row.attempt, row.index, row.incarnation) == named)
        return next((_replica(row) for row in rows), None)

    def ranks(self, attempt: int, *, node_id: str = "", of: tuple[int, int] | None = None) -> Sequence[facts.Rank]:
        """As far as it is known here what they do."""
        return [
            self._rank(row, place)
            for row in sorted(self.all_replicas(), key=lambda row: (row.index, row.incarnation))
            if row.attempt == attempt and of in (None, (row.index, row.incarnation))
            for place in row.placements
            if node_id in ("", place.node_id)
        ]

    def _rank(self, row: ReplicaRow, place: Placement) -> facts.Rank:
        """One that has not moved is where its replica's start has put it."""
        rank = place.rank
        joined = rank in row.joined
        begun = joined or rank in row.started
        state = row.states.get(rank, RankState.INITIALIZING if begun else RankState.LAUNCHING)
        return facts.Rank(
            *(row.attempt, row.index, row.incarnation, rank),
            node_id=place.node_id,
            device_index=place.device_index,
            state=RankState.EXITED if rank in row.exited else state,
            started=begun,
            joined=joined,
            replica_state=row.state,
            fenced=self.is_fenced(row),
        )

    def is_fenced(self, row: ReplicaRow) -> bool:
        """It is out, or its attempt over."""
        attempt = self._rows.attempt
        over = attempt is None or attempt.number != row.attempt or attempt.state is AttemptState.ENDED
        return over or row.state in OVER

    def held(self, node_id: str) -> Sequence[facts.Rank]:
        """In order of their placement."""
        rows = ((row, place) for row in self.all_replicas() for place in there(row))
        return [self._rank(row, place) for row, place in rows if place.node_id == node_id]

    def rank(self, ref: RankRef, node_id: str) -> facts.Rank | None:
        """Of an incarnation that is kept."""
        found = self.ranks(ref.attempt, node_id=node_id, of=(ref.replica, ref.incarnation))
        return next((rank for rank in found if rank.rank == ref.rank), None)

    def newest_on(self, node_id: str, attempt: int) -> Mapping[int, int]:
        """By slot."""
        return {rank.replica: self._rows.lives[rank.replica] for rank in self.ranks(attempt, node_id=node_id)}

    def stops_under_way(self, node_id: str) -> Sequence[StopRanks]:
        """By when they were ordered."""
        rows = (self._rows.commands[command_id] for command_id in self._rows.outbox)
        mine = (row.envelope.body for row in rows if row.envelope.node_id == node_id and row.state in LIVE)
        return [body for body in mine if isinstance(body, StopRanks)]

    def under_way(self, node_id: str) -> Sequence[Answered]:
        """By when they were ordered."""
        rows = (self._rows.commands[command_id] for command_id in self._rows.outbox)
        mine = (row for row in rows if row.envelope.node_id == node_id and row.envelope.job_id == self.job_id)
        return [answered_of(row, self.job_id) for row in mine if row.state == CommandState.ACKNOWLEDGED]

    def is_our_end(self, signature: str, attempt: int, end: str) -> bool:
        """Nothing is signed here."""
        return False

    def standing(self) -> facts.Standing:
        """Of the newest attempt."""
        rows = self._rows
        newest = rows.attempt.number if rows.attempt is not None else 0
        return facts.Standing("sim", rows.epoch, newest, rows.trained, rows.ahead)

    def has_trained(self) -> bool:
        """As its ranks have said."""
        return self._rows.trained

    def stop_stands(self, attempt: int, index: int, incarnation: int) -> bool:
        """Every order here is a decision's."""
        named = (attempt, index, incarnation)
        over = (CommandState.FAILED, CommandState.EXPIRED)
        return any(
            isinstance(body := row.envelope.body, StopRanks)
            and (body.attempt, body.replica, body.incarnation) == named
            and row.state not in over
            for row in self._rows.commands.values()
        )

    def newest_incarnations(self) -> Mapping[int, int]:
        """Of all attempts."""
        return self._rows.lives

    def homes(self, attempt: int, *, replica: facts.Replica | None = None, revision: int = 0) -> Sequence[facts.Home]:
        """Every agent here is of this revision."""
        one = (replica.index, replica.incarnation) if replica is not None else None
        found = {
            facts.Home(row.index, row.incarnation, place.node_id)
            for row in self.all_replicas()
            if row.attempt == attempt and one in (None, (row.index, row.incarnation))
            for place in there(row)
        }
        return sorted(found, key=lambda home: (home.index, home.incarnation, home.node_id))

    def rank_homes(self, replica: facts.Replica, ranks: tuple[int, ...]) -> Sequence[tuple[int, str]]:
        """By rank."""
        row = self.row(replica.index, replica.incarnation)
        return sorted((place.rank, place.node_id) for place in there(row) if place.rank in ranks)

    def within_reach(self, attempt: int) -> bool:
        """As the snapshot says who is connected."""
        return any(self._rows.nodes[home.node_id].connected for home in self.homes(attempt))

    def view(self, epoch: int) -> View:
        """The newest alone is kept."""
        if self._rows.view is None or self._rows.view.epoch != epoch:
            raise LookupError(f"no view {epoch}")
        return self._rows.view

    def in_view(self, epoch: int, index: int, incarnation: int) -> facts.InView | None:
        """Of any view of the job."""
        view, newest = self._rows.announced.get(epoch), self._rows.view
        if view is None:
            return None
        commanded = newest is None or newest.epoch != epoch or self._rows.install is not None
        is_member = any((m.replica, m.incarnation) == (index, incarnation) for m in view.members)
        return facts.InView(len(view.members), is_member, commanded=commanded, installed=commanded)

    def was_left_out(self, index: int, incarnation: int, *, since_epoch: int) -> bool:
        """By a later one of them."""
        return any(
            view.waits(index, incarnation) for epoch, view in self._rows.announced.items() if epoch > since_epoch
        )

    def flushes_beside(self, epoch: int, replica: int, rank: int) -> int:
        """The answers to the newest view are kept."""
        if self._rows.view is None or self._rows.view.epoch != epoch:
            return 0
        return sum((flush.replica, flush.rank) != (replica, rank) for flush in self._rows.flushes.values())

    def has_reported_save(self, path: str, rank: facts.Rank) -> bool:
        """By the incarnation that began it."""
        save = self._rows.saves.get(path)
        mine = (rank.attempt, rank.replica, rank.incarnation)
        return save is not None and (save.attempt, save.index, save.incarnation) == mine

    def has_view(self, attempt: int) -> bool:
        """Of the attempt that there is."""
        return self._rows.view is not None and self._rows.view.attempt == attempt

    def terms(self, loads: str) -> facts.Terms:
        """Of sections' lengths only what loading takes is learned here: a step has `HANG_TIMEOUT_S`, or what the spec
        gives."""
        wanted = self._rows.spec.resiliency.timeouts
        found = section_timeouts(wanted, Observed(transfer_s=self._rows.transfer_s(loads)))
        step = next(limit for limit in found if limit.section is Section.STEP)
        bounded = msgspec.structs.replace(step, value_s=HANG_TIMEOUT_S if wanted.step_s == "auto" else wanted.step_s)
        limits = tuple(bounded if limit is step else limit for limit in found)
        place = "/checkpoints" if self.job_id == JOB_ID else f"/checkpoints/{self.job_id}"
        return facts.Terms("store:1", place, 60.0, limits, {})

    def node_name(self, node_id: str) -> str:
        """Nodes are called what they are."""
        return node_id

    def device(self, node_id: str, index: int) -> facts.Device | None:
        """Called by its place."""
        node = self._rows.nodes[node_id]
        held = ((rows.job_id, place) for rows in self._rows.jobs.values() for place in places(rows))
        holders = (job_id for job_id, place in held if (place.node_id, place.device_index) == (node_id, index))
        if not 0 <= index < node.devices:
            return None
        return facts.Device(
            uuid=f"{node_id}-{index}",
            reset_wanted=index in node.resets,
            model=node.model,
            works=index not in node.lost_devices | node.barred,
            holder=next(holders, ""),
        )

    def xid_counts(self, node_id: str, index: int, xid: int, *, at_s: float, link: int | None) -> Mapping[str, int]:
        """By the findings that are open."""
        same = [row for row in self._rows.signals.values() if row.kind == "xid" and row.value == float(xid)]
        places = {(row.node_id, row.device_index) for row in same}
        here = sum((row.node_id, row.device_index) == (node_id, index) for row in same)
        return {"repeats": here + 1, "elsewhere": len(places - {(node_id, index)})}

    def is_on(self, node_id: str) -> bool:
        """As long as it is remembered who was there."""
        placed = {place.node_id for row in (*self.all_replicas(), *self._rows.older) for place in row.placements}
        return node_id in placed or self._rows.nodes[node_id].reserved_for == self.job_id

    def command(self, command_id: str) -> facts.Command | None:
        """Nothing is forgotten."""
        row = self._rows.commands.get(command_id)
        if row is None:
            return None
        sent, what = row.envelope, getattr(row.envelope.body, "look", "")
        named = (sent.node_id, sent.job_id, sent.attempt, what, row.state)
        return facts.Command(*named, sent.decision_id, row.rule, row.incident)

    def commands_of(self, decision: str) -> Sequence[tuple[str, CommandState]]:
        """By id."""
        rows = (row for _, row in sorted(self._rows.commands.items()) if row.envelope.decision_id == decision)
        return [(row.envelope.command_id, row.state) for row in rows if isinstance(row.envelope.body, CollectStacks)]

    def recorders_of(self, decision: str) -> Sequence[facts.Diagnostic]:
        """As they came."""
        commands = {each for each, _ in self.commands_of(decision)}
        return [row for row in self._recorders() if row.command_id in commands]

    def recorders(self, incident: str, replica: int, incarnation: int) -> Sequence[facts.Diagnostic]:
        """As they came."""
        named = (incident, replica, incarnation)
        return [row for row in self._recorders() if (row.incident, row.replica, row.incarnation) == named]

    def _recorders(self) -> Iterator[facts.Diagnostic]:
        return (row for row in self._rows.diagnostics if row.what == FLIGHT_RECORDER)

    def open_incident(self) -> str:
        """There is one at most."""
        return incident_id(self._rows.incidents) if self._rows.incident_s is not None else ""

    def texts_of(self, incident: str, place: str) -> int:
        """All of them."""
        return sum((row.incident, row.place) == (incident, place) and row.text != "" for row in self._rows.diagnostics)

    def verdicts(self, incident: str) -> Sequence[dict[str, Any]]:
        """As they are kept."""
        return self._rows.verdicts.get(incident, [])

    def marked(self, marker: str) -> facts.Marked:
        """One row a marker."""
        return self._rows.marks.get(marker) or facts.Marked(marker)

    def marks(self) -> Sequence[facts.Marked]:
        """By marker."""
        return [row for _, row in sorted(self._rows.marks.items()) if row.reports]

    def finding(self, key: str) -> facts.Open | None:
        """An id is the key and a number."""
        found = (row for row in self._rows.signals.values() if row.id.rpartition("#")[0] == key)
        return next((facts.Open(row.id, row.evidence) for row in found), None)

    def findings(self) -> Sequence[tuple[str, str]]:
        """Those about devices are about the job here."""
        return [(row.id, row.kind) for row in self._rows.signals.values() if row.kind != NodeUnfit.KIND]

    def requests(self) -> Sequence[facts.Request]:
        """Of the job: a drain is the fleet's."""
        found = [facts.Request(row.id, row.kind, row.state) for row in self._rows.requests.values() if not row.node_id]
        return sorted(found, key=lambda row: row.id)

    def request(self, request_id: str) -> facts.Request | None:
        """One that has ended is kept no longer."""
        row = self._rows.requests.get(request_id)
        return facts.Request(row.id, row.kind, row.state) if row is not None else None

    def makes_room(self) -> Sequence[tuple[str, str]]:
        """By id."""
        others = self._rows.jobs.values()
        asks = ((request, rows) for rows in others for request, row in rows.yields.items() if row.urgent == self.job_id)
        live = ((request, rows.requests[request]) for request, rows in asks if request in rows.requests)
        return sorted((request, self._rows.name) for request, fact in live if not fact.withdrawn_by)

    def parts(self, request_id: str) -> Sequence[facts.Request]:
        """In order."""
        asked = (row for rows in self._rows.jobs.values() for row in rows.requests.values())
        parts = [row for row in asked if row.drain == request_id and not row.withdrawn_by]
        return [facts.Request(row.id, row.kind, row.state) for row in parts]


def answered_of(row: CommandRow, job_id: str) -> Answered:
    """As the core sees a command that was given for this job ("": for none)."""
    envelope = row.envelope
    return Answered(
        id=envelope.command_id,
        node_id=envelope.node_id,
        node=envelope.node_id,
        kind=str(type(envelope.body).__struct_config__.tag),
        body=envelope.body,
        state=row.state,
        detail=row.detail,
        data=row.data,
        ttl_s=envelope.ttl_s,
        job_id=job_id or None,
        decided=True,
    )


def _replica(row: ReplicaRow) -> facts.Replica:
    return facts.Replica(
        attempt=row.attempt,
        index=row.index,
        incarnation=row.incarnation,
        state=row.state,
        contributing=row.contributing,
        contributed=row.contributed,
        times_out=row.times_out,
        out_s=row.out_s,
        leaving=bool(row.ordered_out or row.relieved),
        caught_up=bool(row.caught_up),
    )
