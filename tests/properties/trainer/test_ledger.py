"""Each sample of each data epoch is trained exactly once, whatever happens to the replicas.

The job is a model; what is under test is real: who computes what (`trainer.replica.shares`),
the install after a membership change (`controlplane.policy.membership`), and which window
of the data a micro-batch is (`trainer.data`).
"""

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.policy.membership import Refusal, install, next_view
from controlplane.protocol.membership import Flush, Install, Member, MemberRole
from trainer.data import Corpus, micro_batch_samples
from trainer.data.sources import Text
from trainer.replica.shares import held_by, share, share_of_install

STEPS = 12
MICRO_BATCHES, SIZE = 6, 2
GLOBAL_BATCH = MICRO_BATCHES * SIZE
SEQUENCE = 4
events = st.sampled_from(["step", "step", "step", "evict", "evict", "rejoin", "reissue", "save", "restart"])


@dataclass
class Job:
    """`trained[step]`: micro-batches in the committed gradient. `held`: of the step in progress."""

    replicas: dict[int, int]
    committed: int = 0
    saved: int = 0
    epoch: int = 0
    lives: int = 1
    joiners: set[int] = field(default_factory=set)
    held: dict[int, tuple[int, ...]] = field(default_factory=dict)
    todo: dict[int, tuple[int, ...]] | None = None
    trained: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def contributors(self) -> tuple[int, ...]:
        return tuple(sorted(set(self.replicas) - self.joiners))

    def compute(self, who: tuple[int, ...]) -> None:
        """These replicas finish their part of the step in progress."""
        for replica in who:
            if replica in self.joiners or replica not in self.replicas:
                continue
            ordinary = share(range(MICRO_BATCHES), self.contributors, replica)
            todo = ordinary if self.todo is None else self.todo.get(replica, ())
            self.held[replica] = tuple(sorted({*self.held.get(replica, ()), *todo}))

    def commit(self) -> None:
        """All gradients are in: the step is trained, joiners are ready."""
        self.compute(self.contributors)
        self.trained.append(tuple(number for replica in self.contributors for number in self.held[replica]))
        self.committed += 1
        self.held, self.todo = {}, None
        self.joiners.clear()

    def change_view(self) -> None:
        """Announce, flush, install."""
        self.epoch += 1
        role = {r: MemberRole.JOINER if r in self.joiners else MemberRole.CONTRIBUTOR for r in self.replicas}
        members = tuple(Member(r, life, role[r]) for r, life in self.replicas.items())
        view = next_view(job_id="job", attempt=1, epoch=self.epoch, members=members, before=None, reason="test")
        flushes = tuple(
            Flush(
                "job", 1, self.epoch, m.replica, m.incarnation, 0, self.committed, False, m.role,
                self.committed, self.held.get(m.replica, ()),
            )
            for m in view.members
        )  # fmt: skip
        order = install(view, flushes, {m.replica: 1 for m in view.members})
        assert order is not None and not isinstance(order, Refusal)
        self.follow(order)

    def follow(self, order: Install) -> None:
        assert (order.step, order.contributors) == (self.committed, self.contributors)
        self.held = {r: held_by(order, r) for r in self.contributors}
        self.todo = {r: share_of_install(order, MICRO_BATCHES, r) for r in self.contributors}

    def evict(self, replica: int) -> None:
        self.replicas.pop(replica)
        self.joiners.discard(replica)
        self.held.pop(replica, None)
        self.change_view()

    def rejoin(self, replica: int) -> None:
        self.lives += 1
        self.replicas[replica] = self.lives
        self.joiners.add(replica)
        self.change_view()

    def restart(self, replicas: int) -> None:
        """From the newest checkpoint, with another number of replicas: what came after it is undone."""
        del self.trained[self.saved :]
        self.committed, self.held, self.todo, self.joiners = self.saved, {}, None, set()
        self.lives += 1
        self.replicas = dict.fromkeys(range(replicas), self.lives)
        self.change_view()


def happen(job: Job, event: str, data: st.DataObject) -> None:
    match event:
        case "step":
            job.commit()
        case "save":
            job.saved = job.committed
        case "restart":
            job.restart(data.draw(st.integers(1, 5)))
        case "rejoin":
            gone = [replica for replica in range(5) if replica not in job.replicas]
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
@given(st.integers(1, 5), st.lists(events, max_size=30), st.integers(5, 60), st.integers(0, 99), st.data())
def test_every_sample_of_every_data_epoch_is_trained_exactly_once(
    replicas: int, story: list[str], windows: int, seed: int, data: st.DataObject
) -> None:
    job = Job(replicas=dict.fromkeys(range(replicas), 1))
    job.change_view()
    for event in story:
        happen(job, event, data)
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
