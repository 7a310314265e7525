"""The database as the write side's core reads it (`changes.rows.Rows`). Writes nothing.

One of these serves one decision. Rows that were read are kept for the commit, which moves them only if they
still are what was read.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec
from django.conf import settings

from controlplane.changes import rows as facts
from controlplane.changes.answers import Answered
from controlplane.changes.diagnostics import TEXTS_OF_A_PLACE
from controlplane.changes.kinds import RankKey, ReplicaKey
from controlplane.checkpoints import services as checkpoints
from controlplane.dispatch import selectors
from controlplane.dispatch.models import Command
from controlplane.dispatch.statements import body_of
from controlplane.jobs import environment
from controlplane.jobs.models import Attempt, Job, Rank, Replica
from controlplane.jobs.numbers import NEWEST_ATTEMPT
from controlplane.protocol.commands import StopRanks
from controlplane.protocol.diagnostics import FLIGHT_RECORDER
from controlplane.protocol.errors import IdentityMismatch
from controlplane.protocol.launch import RankRef
from controlplane.protocol.membership import View
from controlplane.protocol.states import CommandState
from controlplane.recovery import row_facts
from controlplane.recovery import row_queries as asked
from controlplane.recovery.devices import xid_counts
from controlplane.recovery.heard import Heard
from controlplane.recovery.identity import rank_of
from controlplane.recovery.learned import timeouts_of
from controlplane.recovery.load_replicas import ranks_of
from controlplane.recovery.models import LIVE, Incident, RankLook, Request
from controlplane.recovery.unseen import name_for
from controlplane.runtime import keys
from controlplane.runtime.clock import from_s, now
from controlplane.runtime.locks import lock_row

Row = TypeVar("Row")


class JobRows:
    """Rows of a job, whose own is locked; or (`job` None) of the fleet. `seen_at`: when what is found
    showed itself, now unless said. `heard`: the batch of events that is being applied."""

    def __init__(
        self, job: Job | None, decision_id: str = "", seen_at: datetime | None = None, heard: Heard | None = None
    ) -> None:
        self._job, self.decision_id, self.seen_at = job, decision_id, seen_at
        self.heard = heard
        self._terms: dict[str, facts.Terms] = {}
        self._replicas: dict[ReplicaKey, Replica] = {}
        self._ranks: dict[RankKey, Rank] = {}
        self._held: dict[str, list[facts.Rank]] = {}
        self._stops: dict[str, list[StopRanks]] = {}

    @property
    def locked(self) -> Job:
        """The job's row, as this transaction leaves it."""
        assert self._job is not None, "an act on a job belongs to a job's decision"
        return self._job

    @property
    def job_id(self) -> str:
        """ "" of the fleet's."""
        return self._job.id if self._job is not None else ""

    @property
    def now_s(self) -> float:
        """The server's time."""
        return now().timestamp()

    def job(self) -> facts.Job:
        """Of the locked row."""
        return row_facts.job_of(self.locked)

    def attempt(self, number: int | None = None) -> facts.Attempt:
        """That one, or the newest."""
        return row_facts.attempt_of(self.attempt_row(number))

    def attempt_row(self, number: int | None = None) -> Attempt:
        """Raises LookupError."""
        job = self.locked
        newest = number is None
        found = NEWEST_ATTEMPT.first(job=job.pk) if newest else asked.ATTEMPT.first(job=job.pk, number=number)
        row = _found(found, "an attempt")
        row.job = job
        return row

    def unended_attempts(self) -> Sequence[facts.Attempt]:
        """By number."""
        return [row_facts.attempt_of(row) for row in asked.UNENDED_ATTEMPTS(job=self.locked.pk)]

    def replicas(self, attempt: int) -> Sequence[facts.Replica]:
        """By index and incarnation."""
        return [self._replica(row) for row in asked.REPLICAS(job=self.locked.pk, attempt=attempt)]

    def replica(self, index: int, incarnation: int) -> facts.Replica:
        """Of the newest attempt that has it."""
        row = asked.INCARNATION_OF_NEWEST.first(job=self.locked.pk, index=index, incarnation=incarnation)
        return self._replica(_found(row, "an incarnation"))

    def replica_row(self, key: ReplicaKey) -> Replica:
        """Of an incarnation that was read."""
        return self._replicas[key]

    def _replica(self, row: Replica) -> facts.Replica:
        self._replicas[ReplicaKey(row.attempt.number, row.index, row.incarnation)] = row
        return row_facts.replica_of(row)

    def incarnation(self, attempt: int, index: int, incarnation: int) -> facts.Replica | None:
        """By its name alone."""
        named = {"attempt": attempt, "index": index, "incarnation": incarnation}
        row = asked.INCARNATION.first(job=self.locked.pk, **named)
        return self._replica(row) if row is not None else None

    def ranks(self, attempt: int, *, node_id: str = "", of: tuple[int, int] | None = None) -> Sequence[facts.Rank]:
        """In one query. Of a job that is gone there are none."""
        if self._job is None:
            return []
        named: dict[str, Any] = {"node_id": node_id} if node_id else {}
        named |= {"replica__index": of[0], "replica__incarnation": of[1]} if of is not None else {}
        named |= {"replica__attempt__job": self._job.pk, "replica__attempt__number": attempt}
        return [self._rank(row) for row in asked.RANKS[bool(node_id), of is not None](**named)]

    def held(self, node_id: str) -> Sequence[facts.Rank]:
        """Asked once."""
        if self._job is None:
            return []
        if node_id not in self._held:
            self._held[node_id] = [self._rank(row) for row in asked.HELD_ON(job=self._job.pk, node=node_id)]
        return self._held[node_id]

    def rank(self, ref: RankRef, node_id: str) -> facts.Rank | None:
        """Also one that is proved gone."""
        if self._job is None:
            return None
        try:
            return self._rank(rank_of(node_id, ref) if self.heard is None else self.heard.rank(ref))
        except IdentityMismatch:
            return None

    def newest_on(self, node_id: str, attempt: int) -> Mapping[int, int]:
        """Over all attempts."""
        return dict(asked.NEWEST_ON(job=self.locked.pk, node=node_id, attempt=attempt))

    def stops_under_way(self, node_id: str) -> Sequence[StopRanks]:
        """As the rows say them. Asked once: who stops more here has them at hand."""
        if node_id not in self._stops:
            self._stops[node_id] = list(selectors.stops_under_way(node_id))
        return self._stops[node_id]

    def under_way(self, node_id: str) -> Sequence[Answered]:
        """By when they were ordered."""
        if self._job is None:
            return []
        found = asked.ACKNOWLEDGED(job=self._job.pk, node=node_id)
        return [row_facts.answered_of(row, body_of(row)) for row in found]

    def is_our_end(self, signature: str, attempt: int, end: str) -> bool:
        """By a key of ours."""
        return keys.is_our_end(signature, self.locked.id, attempt, end)

    def standing(self) -> facts.Standing:
        """Of the locked row and its newest attempt."""
        job = self.locked
        newest = asked.NEWEST_NUMBER.first(job=job.pk) or 0
        return facts.Standing(job.name, job.epoch, newest, job.trained, job.ahead)

    def has_trained(self) -> bool:
        """Of the locked row."""
        return self.locked.trained

    def rank_row(self, key: RankKey) -> Rank:
        """Of a rank that was read."""
        return self._ranks[key]

    def _rank(self, row: Rank) -> facts.Rank:
        replica = row.replica
        key = RankKey(replica.attempt.number, replica.index, replica.incarnation, row.rank)
        self._ranks[key] = row
        return row_facts.rank_of(row)

    def stop_stands(self, attempt: int, index: int, incarnation: int) -> bool:
        """Of all that decisions have written."""
        named = {"attempt": attempt, "replica": index, "incarnation": incarnation}
        return selectors.stop_stands(self.locked.id, **named)

    def newest_incarnations(self) -> Mapping[int, int]:
        """What agents were told of and this database has lost counts too."""
        ahead = {int(index): int(newest) for index, newest in self.locked.ahead.get("incarnations", {}).items()}
        known = dict(asked.NEWEST_INCARNATIONS(job=self.locked.pk))
        return {index: max(ahead.get(index, 0), known.get(index, 0)) for index in ahead.keys() | known.keys()}

    def homes(self, attempt: int, *, replica: facts.Replica | None = None, revision: int = 0) -> Sequence[facts.Home]:
        """Once for each incarnation and node."""
        lives = Replica.objects.filter(attempt__job=self.locked, attempt__number=attempt)
        if replica is not None:
            lives = lives.filter(index=replica.index, incarnation=replica.incarnation)
        rows = ranks_of(lives).filter(released_at=None)
        if revision:
            rows = rows.filter(node__revision__gte=revision)
        places = list(rows.order_by().values_list("replica_id", "node_id").distinct())
        of_row = {pk: (index, number) for pk, index, number in lives.values_list("pk", "index", "incarnation")}
        return [facts.Home(*of_row[pk], node_id) for pk, node_id in places]

    def rank_homes(self, replica: facts.Replica, ranks: tuple[int, ...]) -> Sequence[tuple[int, str]]:
        """By rank."""
        rows = Rank.objects.filter(replica__attempt__job=self.locked, replica__attempt__number=replica.attempt)
        rows = rows.filter(replica__index=replica.index, replica__incarnation=replica.incarnation)
        rows = rows.filter(released_at=None, rank__in=ranks)
        return list(rows.order_by("rank").values_list("rank", "node_id"))

    def within_reach(self, attempt: int) -> bool:
        """Without a look at each."""
        return asked.REACHED.first(job=self.locked.pk, attempt=attempt) is not None

    def view(self, epoch: int) -> View:
        """As it was announced."""
        row = asked.VIEW.first(job=self.locked.pk, epoch=epoch)
        return msgspec.convert(_found(row, "a view").view, View)

    def in_view(self, epoch: int, index: int, incarnation: int) -> facts.InView | None:
        """As it was announced."""
        row = asked.VIEW.first(job=self.locked.pk, epoch=epoch)
        if row is None:
            return None
        members, installed = row.view["members"], row.installed_at is not None
        return facts.InView(len(members), _is_in(members, index, incarnation), row.install is not None, installed)

    def was_left_out(self, index: int, incarnation: int, *, since_epoch: int) -> bool:
        """Of the views that came after it."""
        later = asked.VIEWS_SINCE(job=self.locked.pk, epoch=since_epoch)
        return any(_is_in(view.get("left_out", ()), index, incarnation) for view in later)

    def flushes_beside(self, epoch: int, replica: int, rank: int) -> int:
        """Counted by the database."""
        found = asked.FLUSHES_BESIDE.first(job=self.locked.pk, epoch=epoch, replica=replica, rank=rank)
        return found[0] if found is not None else 0

    def has_reported_save(self, path: str, rank: facts.Rank) -> bool:
        """By the node that its row names."""
        row = self.rank_row(RankKey(rank.attempt, rank.replica, rank.incarnation, rank.rank))
        by = checkpoints.told_by(self.locked, path)
        return asked.RANK_OF_ON.first(replica=row.replica_id, node=by) is not None

    def has_view(self, attempt: int) -> bool:
        """One was announced."""
        return asked.VIEW_OF.first(job=self.locked.pk, attempt=attempt) is not None

    def terms(self, loads: str) -> facts.Terms:
        """Read once, as a decision may rest thousands of starts on it."""
        if loads not in self._terms:
            job = self.locked
            self._terms[loads] = facts.Terms(
                store=settings.STORE_ADDRESS,
                checkpoint_root=str(settings.CHECKPOINT_ROOT),
                outer_timeout_s=settings.OUTER_TIMEOUT_S,
                limits=timeouts_of(job, loads=loads),
                env=environment.opened(job),
            )
        return self._terms[loads]

    def node_name(self, node_id: str) -> str:
        """Of its row."""
        return asked.NODE_NAME.get(node=node_id)

    def device(self, node_id: str, index: int) -> facts.Device | None:
        """Of the node's rows."""
        row = asked.DEVICE.first(node=node_id, index=index)
        return row_facts.device_of(row) if row is not None else None

    def xid_counts(self, node_id: str, index: int, xid: int, *, at_s: float, link: int | None) -> dict[str, int]:
        """By the findings that are kept."""
        return xid_counts(node_id, index, xid, from_s(at_s), link=link)

    def is_on(self, node_id: str) -> bool:
        """By its ranks, then by what is reserved."""
        if self._job is None:
            return False
        which = {"job": self._job.pk, "node": node_id}
        return asked.RANK_ON.first(**which) is not None or asked.RESERVED_ON.first(**which) is not None

    def command(self, command_id: str) -> facts.Command | None:
        """With what its decision was about, if that is kept."""
        row = asked.COMMAND.first(command=command_id)
        if row is None:
            return None
        by = asked.DECIDED_BY.first(decision=row.decision_id) if row.decision_id else None
        rule, incident = by or ("", None)
        what = str(row.body.get("look", ""))
        named = (row.node_id, row.job_id or "", row.attempt, what, CommandState(row.state))
        return facts.Command(*named, row.decision_id, rule, incident or "")

    def commands_of(self, decision: str) -> Sequence[tuple[str, CommandState]]:
        """By id."""
        rows = Command.objects.filter(decision_id=decision, kind="collect_stacks").order_by("id")
        return [(each, CommandState(state)) for each, state in rows.values_list("id", "state")]

    def recorders_of(self, decision: str) -> Sequence[facts.Diagnostic]:
        """By when they were taken."""
        return self._recorders(command_id__in=[each for each, _ in self.commands_of(decision)])

    def recorders(self, incident: str, replica: int, incarnation: int) -> Sequence[facts.Diagnostic]:
        """By when they were taken."""
        return self._recorders(incident=incident, replica=replica, incarnation=incarnation)

    def _recorders(self, **which: Any) -> Sequence[facts.Diagnostic]:
        rows = RankLook.objects.filter(look=FLIGHT_RECORDER, **which).order_by("at", "id")
        return [row_facts.diagnostic_of(row) for row in rows]

    def open_incident(self) -> str:
        """By when it was opened."""
        return asked.OPEN_INCIDENT.first(job=self.locked.pk) or ""

    def texts_of(self, incident: str, place: str) -> int:
        """Counted as far as anybody asks."""
        rows = RankLook.objects.filter(incident=incident, place=place).exclude(text="")
        return len(rows.values_list("id", flat=True)[:TEXTS_OF_A_PLACE])

    def verdicts(self, incident: str) -> Sequence[dict[str, Any]]:
        """As they are kept."""
        return list(Incident.objects.values_list("findings", flat=True).get(pk=incident))

    def marked(self, marker: str) -> facts.Marked:
        """One row a marker."""
        row = asked.MARKED.first(job=self.locked.pk, marker=marker)
        return row_facts.marked_of(row) if row is not None else facts.Marked(marker)

    def marks(self) -> Sequence[facts.Marked]:
        """By when each was told."""
        return [row_facts.marked_of(row) for row in self.locked.marked_lines.filter(reports__gt=0).order_by("told_at")]

    def finding(self, key: str) -> facts.Open | None:
        """There is one at most."""
        row = asked.FINDING.first(key=key)
        return facts.Open(row.id, row.evidence) if row is not None else None

    def findings(self) -> Sequence[tuple[str, str]]:
        """By id."""
        return asked.FINDINGS(job=self.locked.pk)

    def requests(self) -> Sequence[facts.Request]:
        """By id."""
        return [row_facts.request_of(row) for row in asked.REQUESTS(job=self.locked.pk)]

    def request(self, request_id: str) -> facts.Request | None:
        """Locked."""
        row = lock_row(Request, request_id)
        return row_facts.request_of(row) if row is not None else None

    def makes_room(self) -> Sequence[tuple[str, str]]:
        """By id."""
        rows = Request.objects.filter(LIVE, urgent=self.locked, withdrawn_by="").select_related("job")
        return [(row.pk, name_for(row.job, self.locked)) for row in rows.order_by("id")]

    def parts(self, request_id: str) -> Sequence[facts.Request]:
        """By id."""
        rows = Request.objects.filter(LIVE, drain_id=request_id, withdrawn_by="")
        return [row_facts.request_of(row) for row in rows.order_by("id")]


def _is_in(members: Sequence[Mapping[str, Any]], index: int, incarnation: int) -> bool:
    mine = {"replica": index, "incarnation": incarnation}
    return any(mine.items() <= member.items() for member in members)


def _found(row: Row | None, what: str) -> Row:
    if row is None:
        raise LookupError(f"the plan names {what} that is not there")
    return row
