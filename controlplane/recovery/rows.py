"""The database as the write side's core reads it (`changes.rows.Rows`). Writes nothing.

One of these serves one decision. Rows that were read are kept for the commit, which moves them only if they
still are what was read.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from django.conf import settings
from django.db.models import Max

from controlplane.changes import rows as facts
from controlplane.changes.kinds import ReplicaKey
from controlplane.changes.launches import trainer_config
from controlplane.fleet.models import Device, Node
from controlplane.jobs import environment
from controlplane.jobs.models import Attempt, Job, Rank, Replica
from controlplane.jobs.numbers import spec_of
from controlplane.protocol.launch import TrainerConfig
from controlplane.protocol.membership import View
from controlplane.protocol.spec import Parallelism
from controlplane.protocol.states import (
    AttemptState,
    JobState,
    ReplicaState,
    RequestKind,
    RequestState,
)
from controlplane.recovery.learned import timeouts_of
from controlplane.recovery.models import LIVE, Request, Signal, ViewRow
from controlplane.runtime.clock import now
from controlplane.runtime.locks import lock_row

Row = TypeVar("Row")


class JobRows:
    """Rows of a job, whose own is locked; or (`job` None) of the fleet."""

    def __init__(self, job: Job | None, decision_id: str = "") -> None:
        self._job, self.decision_id = job, decision_id
        self._terms: dict[str, facts.Terms] = {}
        self._replicas: dict[ReplicaKey, Replica] = {}

    @property
    def locked(self) -> Job:
        """The job's row, as this transaction leaves it."""
        assert self._job is not None, "an act on a job belongs to a job's decision"
        return self._job

    @property
    def now_s(self) -> float:
        """The server's time."""
        return now().timestamp()

    def job(self) -> facts.Job:
        """Of the locked row."""
        return job_of(self.locked)

    def attempt(self, number: int | None = None) -> facts.Attempt:
        """That one, or the newest."""
        return attempt_of(self.attempt_row(number))

    def attempt_row(self, number: int | None = None) -> Attempt:
        """Raises LookupError."""
        rows = self.locked.attempts.all() if number is None else self.locked.attempts.filter(number=number)
        return _found(rows.order_by("-number").first(), "an attempt")

    def unended_attempts(self) -> Sequence[facts.Attempt]:
        """By number."""
        return [attempt_of(row) for row in self.locked.attempts.exclude(state=AttemptState.ENDED).order_by("number")]

    def replicas(self, attempt: int) -> Sequence[facts.Replica]:
        """By index and incarnation."""
        rows = Replica.objects.filter(attempt__job=self.locked, attempt__number=attempt)
        return [self._replica(row) for row in rows.select_related("attempt__job").order_by("index", "incarnation")]

    def replica(self, index: int, incarnation: int) -> facts.Replica:
        """Of the newest attempt that has it."""
        rows = Replica.objects.filter(attempt__job=self.locked, index=index, incarnation=incarnation)
        return self._replica(
            _found(rows.select_related("attempt__job").order_by("-attempt__number").first(), "an incarnation")
        )

    def replica_row(self, key: ReplicaKey) -> Replica:
        """Of an incarnation that was read."""
        return self._replicas[key]

    def _replica(self, row: Replica) -> facts.Replica:
        self._replicas[ReplicaKey(row.attempt.number, row.index, row.incarnation)] = row
        return facts.Replica(
            attempt=row.attempt.number,
            index=row.index,
            incarnation=row.incarnation,
            state=ReplicaState(row.state),
            contributing=row.contributing,
            contributed=row.contributed,
            times_out=row.times_out,
            out_s=row.out_at.timestamp() if row.out_at else None,
        )

    def newest_incarnations(self) -> Mapping[int, int]:
        """What agents were told of and this database has lost counts too."""
        rows = Replica.objects.filter(attempt__job=self.locked).order_by().values_list("index")
        ahead = {int(index): int(newest) for index, newest in self.locked.ahead.get("incarnations", {}).items()}
        known: dict[int, int] = dict(rows.annotate(newest=Max("incarnation")))
        return {index: max(ahead.get(index, 0), known.get(index, 0)) for index in ahead.keys() | known.keys()}

    def homes(self, attempt: int, *, replica: facts.Replica | None = None, revision: int = 0) -> Sequence[facts.Home]:
        """Once for each incarnation and node."""
        rows = self._unreleased(attempt, replica)
        if revision:
            rows = rows.filter(node__revision__gte=revision)
        named = rows.order_by().values_list("replica__index", "replica__incarnation", "node_id").distinct()
        return [facts.Home(*each) for each in named]

    def rank_homes(self, replica: facts.Replica, ranks: tuple[int, ...]) -> Sequence[tuple[int, str]]:
        """By rank."""
        rows = self._unreleased(replica.attempt, replica).filter(rank__in=ranks)
        return list(rows.order_by("rank").values_list("rank", "node_id"))

    def within_reach(self, attempt: int) -> bool:
        """Without a look at each."""
        return bool(self._unreleased(attempt, None).filter(node__connected=True).exists())

    def _unreleased(self, attempt: int, replica: facts.Replica | None) -> Any:
        rows = Rank.objects.filter(replica__attempt__job=self.locked, replica__attempt__number=attempt)
        if replica is not None:
            rows = rows.filter(replica__index=replica.index, replica__incarnation=replica.incarnation)
        return rows.filter(released_at=None)

    def view(self, epoch: int) -> View:
        """As it was announced."""
        row = ViewRow.objects.filter(job=self.locked, epoch=epoch).first()
        return msgspec.convert(_found(row, "a view").view, View)

    def has_view(self, attempt: int) -> bool:
        """One was announced."""
        return ViewRow.objects.filter(job=self.locked, attempt=attempt).exists()

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
        return Node.objects.values_list("name", flat=True).get(pk=node_id)

    def device(self, node_id: str, index: int) -> facts.Device | None:
        """Of the node's rows."""
        row = Device.objects.filter(node_id=node_id, index=index).first()
        return facts.Device(row.uuid, row.reset_wanted_at is not None) if row is not None else None

    def findings(self) -> Sequence[tuple[str, str]]:
        """By id."""
        return list(Signal.objects.filter(job=self.locked, settled_at=None).order_by("id").values_list("id", "kind"))

    def requests(self) -> Sequence[facts.Request]:
        """By id."""
        return [_request(row) for row in self.locked.requests.filter(LIVE).order_by("id")]

    def request(self, request_id: str) -> facts.Request | None:
        """Locked."""
        row = lock_row(Request, request_id)
        return _request(row) if row is not None else None

    def parts(self, request_id: str) -> Sequence[facts.Request]:
        """By id."""
        rows = Request.objects.filter(LIVE, drain_id=request_id, withdrawn_by="")
        return [_request(row) for row in rows.order_by("id")]


def job_of(row: Job) -> facts.Job:
    """As the core sees a job."""
    return facts.Job(
        id=row.id,
        name=row.name,
        owner=row.owner,
        state=JobState(row.state),
        epoch=row.epoch,
        spec=spec_of(row).spec,
        inspections=row.looks_taken,
    )


def attempt_of(row: Attempt) -> facts.Attempt:
    """As the core sees an attempt."""
    return facts.Attempt(
        number=row.number,
        state=AttemptState(row.state),
        layout=msgspec.convert(row.layout, Parallelism),
        replicas=row.replicas,
        resume_step=row.resume_step,
        resume_path=row.resume_path,
        checkpoint_dir=row.checkpoint_dir,
        max_contributors=row.max_contributors,
        end_reason=row.end_reason,
    )


def config_of(job: Job, attempt: Attempt) -> TrainerConfig:
    """What the attempt's ranks compute by, for who computes it again; nothing is resumed from."""
    terms = facts.Terms(settings.STORE_ADDRESS, "", settings.OUTER_TIMEOUT_S, (), {})
    config = trainer_config(job_of(job), attempt_of(attempt), terms)
    return msgspec.structs.replace(config, resume=None)


def _request(row: Request) -> facts.Request:
    return facts.Request(row.pk, RequestKind(row.kind), RequestState(row.state))


def _found(row: Row | None, what: str) -> Row:
    if row is None:
        raise LookupError(f"the plan names {what} that is not there")
    return row
