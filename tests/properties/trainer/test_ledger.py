"""Each sample of each data epoch is trained exactly once, whatever happens to the replicas.

The job is a model; what is under test is real: the core of each rank (`trainer.core`; inside a
replica `trainer.batches`), the install after a membership change
(`controlplane.policy.membership`), the layout of a restart (`controlplane.policy.layout`),
and which window of the data a micro-batch is (`trainer.data`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.policy.layout import plan_layout
from controlplane.policy.membership import Refusal, install, next_view
from controlplane.protocol.launch import RankRef
from controlplane.protocol.membership import Flush, Member, MemberRole, View
from controlplane.protocol.spec import Model, Parallelism, Resources, Training, TrainSpec, ranks_per_replica
from trainer.batches import filler_count, inner_share
from trainer.core import effects as do
from trainer.core import events as on
from trainer.core.rank import RankCore, Stage
from trainer.core.standing import Standing
from trainer.data import Corpus, micro_batch_samples
from trainer.data.sources import Text

STEPS = 12
MICRO_BATCHES, SIZE = 6, 2
GLOBAL_BATCH = MICRO_BATCHES * SIZE
SEQUENCE = 4
REPLICAS = 5
# Two samples a micro-batch, spread over pipelines of stages in chunks, context ranks and, in a
# replica, data-parallel ranks with experts: a re-plan may change all but the samples of a step.
TRAINING = Training(global_batch=GLOBAL_BATCH, micro_batch=SIZE)
MODEL = Model(family="moe", layers=8, experts=4, sequence_length=16)
events = st.sampled_from(["step", "step", "step", "evict", "evict", "rejoin", "reissue", "save", "restart"])
upheavals = st.sampled_from(["evict", "rejoin", "reissue", "restart"])


class Replica:
    """One rank that runs the trainer's core. `ask` waits for its answer."""

    def __init__(self, index: int, life: int, committed: int, role: MemberRole) -> None:
        standing = Standing(RankRef("job", 1, index, life, 0), committed)
        self.core = RankCore(standing, micro_batch_count=MICRO_BATCHES, max_contributors=None)
        self.life, self.first_role = life, role
        self.ask: do.Effect | None = None
        self.flush: Flush | None = None

    @property
    def role(self) -> MemberRole:
        return self.core.standing.role or self.first_role

    def feed(self, event: on.Event) -> None:
        for effect in self.core.handle(event):
            assert not isinstance(effect, do.Leave), effect.text
            if isinstance(effect, do.Say):
                self.flush = effect.flush
            elif isinstance(effect, do.ASKS):
                self.ask = effect


@dataclass
class Job:
    """`trained[step]`: micro-batches in the committed gradient. `layout`: of each replica."""

    layout: Parallelism
    replicas: dict[int, Replica] = field(default_factory=dict)
    view: View | None = None
    committed: int = 0
    saved: int = 0
    epoch: int = 0
    lives: int = 1
    trained: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def contributors(self) -> tuple[int, ...]:
        return tuple(sorted(r for r, one in self.replicas.items() if one.role is MemberRole.CONTRIBUTOR))

    def add(self, replicas: Iterable[int], role: MemberRole) -> None:
        for replica in replicas:
            self.replicas[replica] = Replica(replica, self.lives, self.committed, role)

    def compute(self, who: Iterable[int]) -> None:
        """These replicas finish their part of the step in progress."""
        for one in [self.replicas[replica] for replica in who]:
            if one.core.stage is Stage.COMPUTING:
                assert isinstance(one.ask, do.Compute)
                assert sorted(self.dealt(one.ask.todo)) == sorted(one.ask.todo)
                one.feed(on.Computed())

    def dealt(self, micro_batches: tuple[int, ...]) -> tuple[int, ...]:
        """What the data-parallel ranks of a replica count together; what they compute besides
        makes their numbers of passes fit the schedule."""
        layout = self.layout
        shares = [inner_share(micro_batches, rank, layout.replica_dp) for rank in range(layout.replica_dp)]
        passes = {len(mine) + filler_count(micro_batches, len(mine), layout) for mine in shares}
        assert layout.ep == 1 or len(passes) == 1, "an expert's rank passes less often than another"
        assert layout.vp == 1 or all(number % layout.pp == 0 for number in passes)
        return tuple(number for mine in shares for number in mine)

    def commit(self) -> None:
        """All gradients are in: the step is trained, joiners are ready."""
        self.compute(self.replicas)
        here = self.contributors
        self.trained.append(tuple(n for replica in here for n in self.replicas[replica].core.standing.done))
        self.committed += 1
        level = tuple(sorted(set(self.replicas) - set(here)))
        for one in self.replicas.values():
            for event in (on.Fetched(), on.Met(over=False), on.Summed(held=True), on.Passed(level), on.Begun()):
                one.feed(event)
            assert one.core.standing.committed == self.committed

    def change_view(self) -> None:
        """Announce, flush, install. Who computes has promised, and does so before it enters."""
        self.epoch += 1
        members = tuple(Member(replica, one.life, one.role) for replica, one in self.replicas.items())
        self.view = next_view(
            job_id="job", attempt=1, epoch=self.epoch, members=members, before=self.view, reason="test"
        )
        for one in self.replicas.values():
            one.feed(on.ViewSeen(self.view))
        self.compute(self.replicas)
        for one in self.replicas.values():
            one.feed(on.Met(over=True))
        flushes = tuple(one.flush for one in self.replicas.values() if one.flush is not None)
        order = install(self.view, flushes, dict.fromkeys(self.replicas, 1))
        assert order is not None and not isinstance(order, Refusal)
        assert (order.step, order.contributors) == (self.committed, self.contributors)
        for one in self.replicas.values():
            for event in (on.InstallSeen(order), on.Agreed(same=True), on.Confirmed(stands=True, keeps=False)):
                one.feed(event)
            for event in (on.Built(inside=True), on.Begun()):
                one.feed(event)
            assert one.core.standing.epoch == self.epoch

    def evict(self, replica: int) -> None:
        self.replicas.pop(replica)
        self.change_view()

    def rejoin(self, replica: int) -> None:
        self.lives += 1
        self.add([replica], MemberRole.JOINER)
        self.change_view()

    def restart(self, layout: Parallelism, replicas: int) -> None:
        """From the newest checkpoint, in another layout: what came after it is undone."""
        del self.trained[self.saved :]
        self.lives += 1
        self.committed, self.layout, self.view, self.replicas = self.saved, layout, None, {}
        self.add(range(replicas), MemberRole.CONTRIBUTOR)
        self.change_view()


@st.composite
def asked(draw: st.DrawFn) -> TrainSpec:
    """A job that fits no more than `MICRO_BATCHES` data-parallel ranks, over all of its replicas."""
    inner = draw(st.integers(1, 3))
    pp, tp = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2]))
    layout = Parallelism(
        tp=tp,
        pp=pp,
        vp=draw(st.sampled_from([1, 2])) if pp > 1 else 1,
        cp=draw(st.sampled_from([1, 2])),
        ep=2 if inner == 2 and draw(st.booleans()) else 1,
        replica_dp=inner,
        sequence_parallel=tp > 1,
        dp=min(REPLICAS, MICRO_BATCHES // inner),
    )
    resources = Resources(nodes=ranks_per_replica(layout), gpus_per_node=REPLICAS, min_replicas=1)
    return TrainSpec(resources=resources, parallelism=layout, model=MODEL, training=TRAINING)


def planned(spec: TrainSpec, data: st.DataObject) -> tuple[Parallelism, int]:
    """Layout and replicas for some of the job's devices; with few of them a part of a replica."""
    least = min(spec.parallelism.cp, ranks_per_replica(spec.parallelism))
    most = ranks_per_replica(spec.parallelism) * REPLICAS
    found = plan_layout(spec, data.draw(st.integers(least, most)))
    return found.parallelism, found.replicas


def happen(job: Job, spec: TrainSpec, event: str, data: st.DataObject) -> None:
    match event:
        case "step":
            job.commit()
        case "save":
            job.saved = job.committed
        case "restart":
            job.restart(*planned(spec, data))
        case "rejoin":
            most = MICRO_BATCHES // job.layout.replica_dp
            gone = [replica for replica in range(min(REPLICAS, most)) if replica not in job.replicas]
            if gone:
                job.rejoin(data.draw(st.sampled_from(gone)))
        case "reissue" | "evict":
            # In the middle of a step: some have finished their part, some have not.
            job.compute(tuple(data.draw(st.sets(st.sampled_from(sorted(job.replicas))))))
            leaving = data.draw(st.sampled_from(sorted(job.replicas)))
            if event == "evict" and set(job.contributors) - {leaving}:
                job.evict(leaving)
            else:
                job.change_view()


@settings(max_examples=150, deadline=None)
@given(asked(), st.lists(events, max_size=30), st.integers(5, 60), st.integers(0, 99), st.data())
def test_every_sample_of_every_data_epoch_is_trained_exactly_once(
    spec: TrainSpec, story: list[str], windows: int, seed: int, data: st.DataObject
) -> None:
    trains_each_sample_once(spec, story, windows, seed, data)


@settings(max_examples=50, deadline=None)
@given(asked(), st.lists(upheavals, min_size=20, max_size=40), st.integers(5, 60), st.integers(0, 99), st.data())
def test_also_after_twenty_losses_returns_and_restarts_between_the_steps(
    spec: TrainSpec, story: list[str], windows: int, seed: int, data: st.DataObject
) -> None:
    trains_each_sample_once(spec, [each for upheaval in story for each in (upheaval, "step")], windows, seed, data)


def trains_each_sample_once(spec: TrainSpec, story: list[str], windows: int, seed: int, data: st.DataObject) -> None:
    layout, replicas = planned(spec, data)
    job = Job(layout)
    job.add(range(replicas), MemberRole.CONTRIBUTOR)
    job.change_view()
    for event in story:
        happen(job, spec, event, data)
    while job.committed < STEPS:
        job.commit()
    assert all(sorted(ids) == list(range(MICRO_BATCHES)) for ids in job.trained), "the global batch is constant"
    corpus = Corpus(Text("test", np.zeros(windows * SEQUENCE + 1, dtype=np.uint8)), SEQUENCE, seed)
    seen: dict[int, list[int]] = {}
    for step, ids in enumerate(job.trained):
        for micro_batch in ids:
            for number in micro_batch_samples(step, micro_batch, global_batch=GLOBAL_BATCH, size=SIZE):
                epoch, window = corpus.window_of(number)
                seen.setdefault(epoch, []).append(window)
    *whole, last = [sorted(seen[epoch]) for epoch in sorted(seen)]
    assert all(epoch == list(range(windows)) for epoch in whole)
    assert len(set(last)) == len(last)
