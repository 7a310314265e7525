"""From an agent's event to the commit of what was decided, by the size of the job: on rows, on either database.

Each time the first rank of another replica is killed. Its agent's event is applied; the pass that it rings loads
the snapshot under the job's lock, decides, and carries out what it decided (the eviction and the view without the
replica), to the commit; behind it the next replica is started, to a commit of its own. Then the job's rows are set
to a job that trains, with the replica's new replica. To be imported once Django is set up.
"""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

from django.db import connection
from django.db.models import Max

from benchmarks.decide_rows import SESSION, job_that_trains, view_installed
from benchmarks.decide_worlds import Size
from controlplane.dispatch import broadcasts
from controlplane.dispatch.models import Command
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job, Rank, Replica
from controlplane.protocol.frames import AgentEvent, RankExited
from controlplane.protocol.launch import RankRef
from controlplane.protocol.states import IncidentState, JobState, RankState, ReplicaState
from controlplane.recovery import apply, commit, holding, ingest, load_candidates, reconcile
from controlplane.recovery.models import Decision, Incident, Restart, Signal
from controlplane.runtime import events
from controlplane.runtime.clock import now

T = TypeVar("T")
PARTS = (
    "the event applied", "load", "decide", "of it the fleet asked", "carry out and commit", "of it the snapshot packed",
    "of it commands signed and written", "of it events written", "of it the audit row",
    "load, decide and commit", "event to commit", "event to commit, seconds of a core",
    "event to commit, seconds of the database's core", "load, decide and commit, seconds of a core, both",
    "behind the commit: the start committed", "behind the commit: seconds of a core",
    "behind the commit: seconds of the database's core", "of it rows of the start",
    "event to the commit of the start", "after the commit: each node's own command made",
)  # fmt: skip
WITHIN: tuple[tuple[str, Any, str], ...] = (
    ("load", reconcile, "load_snapshot"),
    ("decide", reconcile, "decided"),
    ("of it the fleet asked", load_candidates.Candidates, "answer"),
    ("of it the snapshot packed", apply, "new_row"),
    ("of it rows of the start", holding, "create"),
    ("of it commands signed and written", commit.dispatch, "enqueue_each"),
    ("of it events written", events, "_write"),
    ("of it the audit row", apply, "audit_decision"),
)


class Run:
    """Seconds of each part of each eviction; `queries` of the pass, and `look_s` of a look that decides nothing."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self.job = job_that_trains(size)
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.queries: list[int] = []
        self.look_s: list[float] = []

    def evict(self, times: int, *, first: int = 0) -> None:
        """So many replicas, one after the other."""
        for number in range(first, first + times):
            self._evict(number % self.size.replicas)

    def _evict(self, index: int) -> None:
        rank = Rank.objects.get(rank=0, replica__index=index, released_at=None)
        replica = Replica.objects.get(pk=rank.replica_id)
        node = Node.objects.get(pk=rank.node_id)
        ref = RankRef(self.job.id, 1, index, replica.incarnation, 0)
        event = AgentEvent(node.last_event_seq + 1, 0.0, RankExited(ref, None, 9, False))
        self.look_s.append(_timed(lambda: reconcile._nothing_to_decide(self.job.id)))
        spent: dict[str, float] = defaultdict(float)
        begin_s, cpu_s, database_s = time.perf_counter(), time.process_time(), _database_cpu_s()
        outcome = ingest.apply_events(node.id, SESSION, (event,))
        spent["the event applied"] = time.perf_counter() - begin_s
        applied_cpu_s = time.process_time() - cpu_s + _database_cpu_s() - database_s
        with _noted(spent), _counted() as counted:
            made, behind = reconcile._locked_pass(self.job.id)
        spent["event to commit"] = time.perf_counter() - begin_s
        spent["event to commit, seconds of a core"] = time.process_time() - cpu_s
        spent["event to commit, seconds of the database's core"] = _database_cpu_s() - database_s
        both_s = time.process_time() - cpu_s + _database_cpu_s() - database_s
        spent["load, decide and commit, seconds of a core, both"] = both_s - applied_cpu_s
        self._start(behind, spent)
        spent["event to the commit of the start"] = time.perf_counter() - begin_s
        spent["after the commit: each node's own command made"] = _timed(_make_commands)
        spent["load, decide and commit"] = spent["event to commit"] - spent["the event applied"]
        spent["carry out and commit"] = spent["load, decide and commit"] - spent["load"] - spent["decide"]
        assert not outcome.aside, "it was applied"
        choices = Decision.objects.filter(job=self.job).order_by("-id").values_list("choice", flat=True)[:made]
        assert "evict_and_replace" in choices, list(choices)
        for part in PARTS:
            self.seconds[part].append(spent[part])
        self.queries.append(counted[0])
        self._go_on(index)

    def _start(self, behind: list[apply.Behind], spent: dict[str, float]) -> None:
        """As `reconcile_job` does behind the commit."""
        cpu_s, database_s, of_it = time.process_time(), _database_cpu_s(), defaultdict[str, float](float)
        with _noted(of_it):
            spent["behind the commit: the start committed"] = _timed(lambda: [*map(reconcile.start_behind, behind)])
        spent["behind the commit: seconds of a core"] = time.process_time() - cpu_s
        spent["behind the commit: seconds of the database's core"] = _database_cpu_s() - database_s
        spent["of it rows of the start"] = of_it["of it rows of the start"]

    def _go_on(self, index: int) -> None:
        """The new replica trains with the others, and what the old one had is free."""
        lives = Replica.objects.filter(attempt__job=self.job, index=index)
        newest = lives.get(incarnation=max(lives.values_list("incarnation", flat=True)))
        gone = Rank.objects.filter(replica__in=lives.exclude(pk=newest.pk), released_at=None)
        gone.update(state=RankState.EXITED, released_at=now())
        lives.exclude(pk=newest.pk).update(state=ReplicaState.EVICTED)
        lives.filter(pk=newest.pk).update(state=ReplicaState.ACTIVE, contributing=True, contributed=True)
        Rank.objects.filter(replica=newest).update(state=RankState.TRAINING, started_at=now(), joined_at=now())
        Signal.objects.filter(job=self.job, settled_at=None).update(settled_at=now())
        Incident.objects.filter(job=self.job).update(state=IncidentState.RESOLVED, resolved_at=now())
        Restart.objects.filter(job=self.job).delete()
        Command.objects.filter(job=self.job).exclude(state="succeeded").update(state="succeeded", finished_at=now())
        Job.objects.filter(pk=self.job.pk).update(state=JobState.RUNNING, due_at=None)
        rows = Replica.objects.filter(attempt__job=self.job).order_by().values_list("index")
        newest_of = dict(rows.annotate(replica=Max("incarnation")))
        view_installed(self.job, Job.objects.get(pk=self.job.pk).epoch, self.size, newest_of)


@contextmanager
def _noted(spent: dict[str, float]) -> Iterator[None]:
    """Seconds in the parts of a pass."""

    def timed(part: str, act: Callable[..., T]) -> Callable[..., T]:
        def run(*args: Any, **named: Any) -> T:
            begin_s = time.perf_counter()
            try:
                return act(*args, **named)
            finally:
                spent[part] += time.perf_counter() - begin_s

        return run

    with ExitStack() as patched:
        for part, where, name in WITHIN:
            patched.enter_context(patch.object(where, name, timed(part, getattr(where, name))))
        yield


@contextmanager
def _counted() -> Iterator[list[int]]:
    number = [0]

    def one(execute: Callable[..., Any], *args: Any) -> Any:
        number[0] += 1
        return execute(*args)

    with connection.execute_wrapper(one):
        yield number


def _database_cpu_s() -> float:
    """Of the process that serves our connection; 0 of SQLite, whose work is ours."""
    if connection.vendor != "postgresql":
        return 0.0
    ticks = Path(f"/proc/{connection.connection.info.backend_pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def _make_commands() -> None:
    """As processes that deliver do beside each other; here one does all of it."""
    while broadcasts.make_waiting():
        pass


def _timed(act: Callable[[], object]) -> float:
    begin_s = time.perf_counter()
    act()
    return time.perf_counter() - begin_s
