"""Where this rank stands in its job: what is committed, what is held, with whom.

Written by membership and exchange in the training thread only; read by the link's thread
while that computes.
"""

from dataclasses import dataclass, field

import torch

from controlplane.protocol.launch import RankRef
from controlplane.protocol.membership import Flush, Member, MemberRole, View
from trainer.core.shares import share
from trainer.engine import Applied


@dataclass(frozen=True, slots=True)
class Intent:
    """What the ranks of my replica agreed on before an exchange."""

    leaving: bool = False
    leave_now: bool = False
    leave_save: bool = False
    save_emergency: bool = False
    save_manual: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One committed step. `micro_batches` are mine, `trained` those in the reduced gradient;
    `everyone_leaves`: each contributor has asked to leave. `copy_wait_s`: the copy of the state
    for a joiner was still under way for so long."""

    step: int
    epoch: int
    micro_batches: tuple[int, ...]
    trained: tuple[int, ...]
    applied: Applied | None
    leaving: bool
    everyone_leaves: bool
    copy_wait_s: float = 0.0


@dataclass(slots=True)
class Standing:
    """`committed` counts committed steps, so it is the number of the step in progress.

    `done` are micro-batches of step `done_step` in the raw gradient sums; `prepared` is the
    reduced vector of step `committed` once every rank of my replica has it; `todo` is what
    an install left me to compute of the step in progress (None: the ordinary share).
    `standbys` hold the state as contributors do, and compute nothing.
    """

    ref: RankRef
    committed: int
    role: MemberRole | None = None
    epoch: int = 0
    view: View | None = None
    contributors: tuple[int, ...] = ()
    standbys: tuple[int, ...] = ()
    prepared: torch.Tensor | None = None
    done: tuple[int, ...] = ()
    done_step: int = 0
    todo: tuple[int, ...] | None = None
    intent: Intent = field(default_factory=Intent)

    @property
    def members(self) -> tuple[Member, ...]:
        """Of the installed view."""
        return self.view.members if self.view else ()

    @property
    def my_index(self) -> int:
        """My place among the members of the installed view."""
        return [member.replica for member in self.members].index(self.ref.replica)

    @property
    def is_joiner(self) -> bool:
        """Catching up: zero gradients, weight 0."""
        return self.role is MemberRole.JOINER

    @property
    def is_contributor(self) -> bool:
        """My gradients count."""
        return self.role is MemberRole.CONTRIBUTOR

    @property
    def holders(self) -> tuple[int, ...]:
        """Replicas that hold the state of the step in progress."""
        return tuple(sorted({*self.contributors, *self.standbys}))

    def come_back(self, view: View) -> None:
        """Of a view that takes me back after I was left out: what I hold is older than what the
        others do, and what I had prepared may not be what they committed. Else nothing."""
        if self.returns_in(view):
            self.role, self.prepared = MemberRole.JOINER, None

    def returns_in(self, view: View) -> bool:
        """I was left out, and `view` takes me back."""
        return self.ref.replica in view.returning

    def take_role(self) -> None:
        """What `contributors` and `standbys` make of me; a joiner that is in neither stays one."""
        if self.ref.replica in self.contributors:
            self.role = MemberRole.CONTRIBUTOR
        elif self.ref.replica in self.standbys:
            self.role = MemberRole.STANDBY

    @property
    def is_saver(self) -> bool:
        """The lowest-numbered contributor writes the checkpoints."""
        return bool(self.contributors) and self.contributors[0] == self.ref.replica

    def share_of_step(self, micro_batch_count: int) -> tuple[int, ...]:
        """What I compute at the start of the step in progress."""
        if self.todo is not None:
            return self.todo
        return share(range(micro_batch_count), self.contributors, self.ref.replica)

    def flush(self, view: View, *, computing: tuple[int, ...] = ()) -> Flush:
        """What I hold, for this view, and what I am `computing` and so will hold."""
        assert self.role is not None, "the role is set when a view is first seen"
        back = self.returns_in(view)
        return Flush(
            job_id=self.ref.job_id,
            attempt=self.ref.attempt,
            epoch=view.epoch,
            replica=self.ref.replica,
            incarnation=self.ref.incarnation,
            rank=self.ref.rank,
            committed_step=self.committed,
            prepared=self.prepared is not None and not back,
            role=MemberRole.JOINER if back else self.role,
            done_step=self.done_step,
            done_micro_batches=tuple(sorted({*self.done, *computing})),
        )
