"""Where a rank stands in its job: what is committed, what is held, with whom.

Written by the core alone.
"""

from dataclasses import dataclass

from controlplane.protocol.launch import RankRef
from controlplane.protocol.membership import Flush, Member, MemberRole, View
from trainer.core.shares import share


@dataclass(slots=True)
class Standing:
    """`committed` counts committed steps, so it is the number of the step in progress.

    `done` are micro-batches of step `done_step` in the raw gradient sums; `prepared`: every rank of
    my replica has the sum of step `committed`; `todo` is what an install left me to compute of the
    step in progress (None: the ordinary share).
    `standbys` hold the state as contributors do, and compute nothing.
    """

    ref: RankRef
    committed: int
    role: MemberRole | None = None
    epoch: int = 0
    view: View | None = None
    contributors: tuple[int, ...] = ()
    standbys: tuple[int, ...] = ()
    prepared: bool = False
    done: tuple[int, ...] = ()
    done_step: int = 0
    todo: tuple[int, ...] | None = None

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

    @property
    def is_saver(self) -> bool:
        """The lowest-numbered contributor writes the checkpoints."""
        return bool(self.contributors) and self.contributors[0] == self.ref.replica

    def place_in(self, view: View) -> int | None:
        """Mine among the members of `view`; None where it leaves this incarnation out."""
        me = (self.ref.replica, self.ref.incarnation)
        peers = [(member.replica, member.incarnation) for member in view.members]
        return peers.index(me) if me in peers else None

    def returns_in(self, view: View) -> bool:
        """I was left out, and `view` takes me back: what I hold is older than what the others do,
        and what I had prepared may not be what they committed."""
        return self.ref.replica in view.returning

    def role_from(self, contributors: tuple[int, ...], standbys: tuple[int, ...]) -> MemberRole | None:
        """What these make of me; who is in neither stays what it is."""
        if self.ref.replica in contributors:
            return MemberRole.CONTRIBUTOR
        return MemberRole.STANDBY if self.ref.replica in standbys else self.role

    def share_of_step(self, micro_batch_count: int) -> tuple[int, ...]:
        """What I compute at the start of the step in progress."""
        if self.todo is not None:
            return self.todo
        return share(range(micro_batch_count), self.contributors, self.ref.replica)

    def flush(self, view: View, *, computing: tuple[int, ...] = ()) -> Flush:
        """What I hold, for this view, and what I am `computing` and so will hold."""
        assert self.role is not None, "the role is set when a view is first answered"
        back = self.returns_in(view)
        return Flush(
            job_id=self.ref.job_id,
            attempt=self.ref.attempt,
            epoch=view.epoch,
            replica=self.ref.replica,
            incarnation=self.ref.incarnation,
            rank=self.ref.rank,
            committed_step=self.committed,
            prepared=self.prepared and not back,
            role=MemberRole.JOINER if back else self.role,
            done_step=self.done_step,
            done_micro_batches=tuple(sorted({*self.done, *computing})),
        )
