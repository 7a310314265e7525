"""A fleet in rows and agents that speak straight to the ingest: fast, one process."""

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby

import msgspec

from controlplane.changes.outbox import LIVE
from controlplane.checkpoints.models import Checkpoint
from controlplane.checkpoints.reading import last_line, look
from controlplane.dispatch import services as dispatch
from controlplane.dispatch.models import Command
from controlplane.dispatch.statements import body_of
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job, Rank
from controlplane.jobs.services import submit_job
from controlplane.protocol import frames
from controlplane.protocol.commands import Body, DeliverInstall, DeliverView, StartRanks
from controlplane.protocol.launch import RankRef
from controlplane.protocol.membership import Flush
from controlplane.protocol.rank import StepReport, ViewInstalled
from controlplane.protocol.samples import DeviceInfo
from controlplane.recovery import ingest, readers
from controlplane.recovery.answers import after_answer
from controlplane.recovery.models import ViewRow
from controlplane.recovery.readers import verify_due
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime import events
from controlplane.runtime.clock import ago, now
from controlplane.runtime.locks import lock_rows
from tests.integration.backend.conftest import job_spec

STARTED_AFTER_S = 2.0
READ_WITHIN_S = 90.0


@dataclass
class Fleet:
    """Nodes n1.. of two devices, each with a journal of its own."""

    nodes: dict[str, Node] = field(default_factory=dict)
    seqs: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def tell(self, name: str, *bodies: frames.EventBody) -> ingest.Outcome:
        """One batch of events of a node, applied."""
        events = []
        for body in bodies:
            self.seqs[name] += 1
            events.append(frames.AgentEvent(self.seqs[name], 0.0, body))
        return ingest.apply_events(self.nodes[name].id, f"web.{name}", tuple(events))

    def tell_all(self, told: Iterable[tuple[str, frames.EventBody]]) -> None:
        """What nodes (by name) have to say, in this order; what follows one another of one node is one batch, as
        its agent sends it."""
        for name, group in groupby(told, key=lambda each: each[0]):
            self.tell(name, *(body for _, body in group))

    def name_of(self, node_id: str) -> str:
        """The node's name."""
        return next(name for name, node in self.nodes.items() if node.id == node_id)


def hello(name: str, *, boot: str = "boot", journal: str = "journal", devices: int = 2) -> frames.AgentHello:
    """A node's first message."""
    infos = tuple(
        DeviceInfo(index=i, uuid=f"GPU-{name}-{i}", model="Test", memory_bytes=1 << 34, driver="simulated")
        for i in range(devices)
    )
    return frames.AgentHello(
        protocol_min=frames.PROTOCOL_MIN, protocol_max=frames.PROTOCOL_MAX, node_name=name, agent_version="test",
        boot_id=f"{boot}-{name}", journal_id=f"{journal}-{name}", devices=infos,
    )  # fmt: skip


def make_fleet(count: int = 4) -> Fleet:
    """Connected nodes."""
    fleet = Fleet()
    for number in range(1, count + 1):
        name = f"n{number}"
        fleet.nodes[name] = Node.objects.create(id=f"node_{number}", name=name, public_key=f"{number:043d}")
        ingest.open_session(fleet.nodes[name].id, f"web.{name}", hello(name))
    return fleet


def make_job(**changes: object) -> Job:
    """Submitted, not yet looked at."""
    return submit_job(job_spec(**changes), owner="ada", actor="ada")


def bodies(job: Job, kind: str) -> list[tuple[Command, Body]]:
    """Orders of a kind, oldest first."""
    rows = Command.objects.filter(job=job, kind=kind).select_related("node").order_by("id")
    return [(row, body) for row in rows if (body := body_of(row)) is not None]


def join_all(fleet: Fleet, job: Job) -> None:
    """Every rank that was ordered and never told starts and joins, which takes longer than an
    installed view is left alone for its first step."""
    ViewRow.objects.filter(job=job, ordered_at__isnull=False).update(ordered_at=ago(STARTED_AFTER_S))
    for command, body in bodies(job, "start_ranks"):
        assert isinstance(body, StartRanks)
        launch, told = body.launch, list[frames.EventBody]()
        rows = Rank.objects.filter(
            replica__attempt__job=job, replica__attempt__number=launch.attempt, replica__index=launch.replica,
            replica__incarnation=launch.incarnation,
        )  # fmt: skip
        known = {row.rank: row for row in rows}
        for placement in body.launch.ranks:
            ref = RankRef(job.id, launch.attempt, launch.replica, launch.incarnation, placement.rank)
            row = known[ref.rank]
            if row.joined_at is None and row.released_at is None:
                told += [frames.RankStarted(ref, 100, placement.device_index), frames.RankJoined(ref, 0.1)]
        if told:
            fleet.tell(command.node.name, *told)


def flush_all(fleet: Fleet, job: Job, *, committed: int = 0) -> None:
    """Every live member of the newest view flushes."""
    view = [body for _, body in bodies(job, "deliver_view") if isinstance(body, DeliverView)][-1].view
    roles = {(m.replica, m.incarnation): m.role for m in view.members}
    told: list[tuple[str, frames.EventBody]] = []
    for row in live_ranks(job):
        ref = ref_of(row)
        role = roles.get((ref.replica, ref.incarnation))
        if role is not None:
            flush = Flush(
                job.id, ref.attempt, view.epoch, ref.replica, ref.incarnation, ref.rank, committed, False, role
            )
            told.append((row.node.name, frames.RankSaid(ref, flush)))
    fleet.tell_all(told)


def install_all(fleet: Fleet, job: Job) -> None:
    """Every live rank says that it is in the newest install."""
    install = [body for _, body in bodies(job, "deliver_install") if isinstance(body, DeliverInstall)][-1].install
    said = ViewInstalled(install.epoch, install.step, False, 0.01)
    fleet.tell_all((row.node.name, frames.RankSaid(ref_of(row), said)) for row in live_ranks(job))


def commit_step(
    fleet: Fleet, job: Job, step: int, *, hashes: str = "same", stall_s: float = 0.0, step_s: float = 0.05
) -> None:
    """Every live rank reports a step; micro-batches are dealt out evenly. `step_s`: what they say that it took."""
    fresh = Job.objects.get(pk=job.id)
    rows = live_ranks(job)
    replicas = sorted({row.replica.index for row in rows if row.replica.contributing})
    told: list[tuple[str, frames.EventBody]] = []
    for row in rows:
        ref = ref_of(row)
        mine = tuple(range(replicas.index(ref.replica), 12, len(replicas))) if ref.replica in replicas else ()
        report = StepReport(step, fresh.epoch, step_s, 64, mine, 4.0, 1.0, f"{hashes}-{step}-{ref.rank}", stall_s)
        told.append((row.node.name, frames.RankSaid(ref, report)))
    fleet.tell_all(told)


def live_ranks(job: Job) -> list[Rank]:
    """Joined and not gone, in order."""
    rows = Rank.objects.filter(replica__attempt__job=job, released_at=None, joined_at__isnull=False)
    return list(rows.select_related("replica__attempt", "node", "device").order_by("replica__index", "rank"))


def kill_rank(fleet: Fleet, row: Rank) -> None:
    """Its agent tells that it ended by SIGKILL, which nobody here ordered."""
    fleet.tell(row.node.name, frames.RankExited(ref_of(row), None, 9, False))


def ref_of(row: Rank) -> RankRef:
    """Its name on the wire."""
    replica = row.replica
    return RankRef(replica.attempt.job_id, replica.attempt.number, replica.index, replica.incarnation, row.rank)


def run_job(fleet: Fleet, *, steps: int = 2, **changes: object) -> Job:
    """A job that trains: placed, joined, flushed, installed, some steps committed. Each of its decisions is certain, as
    it is for the ingest that asks for it."""
    job = make_job(**changes)
    reconcile_job(job.id, sure=True)
    join_all(fleet, job)
    reconcile_job(job.id, sure=True)
    flush_all(fleet, job)
    reconcile_job(job.id, sure=True)
    install_all(fleet, job)
    for step in range(steps):
        commit_step(fleet, job, step)
    return Job.objects.get(pk=job.id)


def job_that_lost_a_rank(count: int = 5) -> tuple[Fleet, Job]:
    """A job that has made two steps, one of its ranks killed and the first decision taken. The
    job's row is the one from before."""
    fleet = make_fleet(count)
    job = run_job(fleet)
    kill_rank(fleet, live_ranks(job)[0])
    reconcile_job(job.id)
    return fleet, job


def nodes_read() -> None:
    """Every node that was ordered to read a checkpoint back does so, as its agent would, and answers."""
    for command in Command.objects.filter(kind=readers.KIND, state__in=LIVE).select_related("node"):
        body = body_of(command)
        found = look(body.path, job_id=body.job_id, step=body.step, epoch=body.epoch)
        answer_reading(command, "succeeded", data=msgspec.json.encode(last_line(found)).decode())


def answer_reading(command: Command, state: str, *, detail: str = "", data: str = "") -> None:
    """What its agent says of the order, applied as the ingest does."""
    with events.unit_of_work():
        lock_rows(Job, {command.job_id})
        answered = dispatch.answer(command.node_id, command.pk, state, detail, data)
        if answered is not None:
            after_answer(answered, now())


def read_all_back() -> None:
    """Until no checkpoint is due to be read: what reads is a process of its own, or a node."""
    due = Checkpoint.objects.filter(verify_due_at__isnull=False)
    deadline_s = time.monotonic() + READ_WITHIN_S
    while due.exists():
        assert time.monotonic() < deadline_s, "they are read"
        due.update(verify_due_at=now())
        verify_due()
        nodes_read()
        time.sleep(0.05)
