"""Membership of a job's outer group: view, flush, install.

Theory of operation. The control plane owns membership, off the step path. A
*view* (epoch, members, donors) is persisted, then announced. Every rank of every
member abandons what it was exchanging, answers with a *flush* (what it has), and
waits. One that is computing answers at once, with what it computes as done, and goes
on computing: it exchanges nothing more in the old epoch. When all ranks of all members
have flushed, the control plane answers with one *install*: the step the group stands
at, who contributes, and which micro-batches of that step are computed by whom. A member that had
prepared the step behind rolls forward. The micro-batches nobody has are dealt out
again, so the global batch stays constant. A newer view voids an older one at any
point. A view that leaves nobody out, or only one whose place is taken, may name the step with
which it begins; until then it is as if it had not come, so that nobody has to stop for it in
mid-step. Ranks build the
outer group under `outer/<job>/<attempt>/<epoch>/<rank>`.
"""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from controlplane.protocol.bounds import MAX_MEMBERS, CommandText, Epoch, Id, Index, MicroBatches, Replicas, Step

MAX_AWAITED_S = 3.0
"""So long a rank awaits the step that a view names; then the view is due all the same."""


class MemberRole(StrEnum):
    """A contributor's gradients count. A standby holds the state as a contributor does (it takes
    every optimizer step), and takes part with zeros and weight 0 until a view promotes it. A
    joiner takes part with zeros and weight 0 because it does not hold the state yet."""

    CONTRIBUTOR = "contributor"
    JOINER = "joiner"
    STANDBY = "standby"


class Member(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One incarnation of one replica in a view."""

    replica: Index
    incarnation: Index
    role: MemberRole


class Donor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`joiner` (replica index) fetches its state from `donor` (replica index). A joiner may have
    several pairs, in order of preference: it fetches from all of them at once."""

    joiner: Index
    donor: Index


class View(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Who trains in `epoch`. Members are sorted by replica; `reason` is for people. `at_step`: it
    is due to a rank that trains when that has committed so many steps (None: at once).
    `left_out`: incarnations that are out for now and may come back: they wait, and nobody ends
    them; each as what it was, or as a joiner where a view has been installed without it.
    `returning` (replica indices): joiners that were left out; whatever they hold is older
    than what the others do, so they fetch it anew."""

    job_id: Id
    attempt: Index
    epoch: Epoch
    members: Annotated[tuple[Member, ...], Meta(max_length=MAX_MEMBERS)]
    donors: Annotated[tuple[Donor, ...], Meta(max_length=MAX_MEMBERS)] = ()
    reason: CommandText = ""
    at_step: Step | None = None
    left_out: Annotated[tuple[Member, ...], Meta(max_length=MAX_MEMBERS)] = ()
    returning: Replicas = ()

    def waits(self, replica: int, incarnation: int) -> bool:
        """It is left out for now: it keeps what it has and awaits the view that takes it back."""
        return any((member.replica, member.incarnation) == (replica, incarnation) for member in self.left_out)

    def is_due(self, *, committed: int, awaited_s: float) -> bool:
        """To a rank that trains in an older epoch, has `committed` so many steps, and has known
        of this view for `awaited_s`."""
        return self.at_step is None or committed >= self.at_step or awaited_s >= MAX_AWAITED_S


class Flush(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="flush", gc=False):
    """What one rank holds when `epoch` is announced.

    `committed_step` counts committed optimizer steps (so it is the number of the
    step in progress). `done_micro_batches` are ids of step `done_step` whose
    gradients this rank holds, or is computing: those it holds before it enters the
    epoch, or it never does. They are void unless `done_step` is the installed step.
    """

    job_id: Id
    attempt: Index
    epoch: Epoch
    replica: Index
    incarnation: Index
    rank: Index
    committed_step: Step
    prepared: bool
    role: MemberRole
    done_step: Step = 0
    done_micro_batches: MicroBatches = ()


class ReplicaDone(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Micro-batches of the installed step whose gradients `replica` already holds."""

    replica: Index
    micro_batches: MicroBatches


class Install(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The group stands at `step`; train it with `contributors` (replica indices, sorted).
    `standbys` (sorted) hold the state too and compute nothing."""

    job_id: Id
    attempt: Index
    epoch: Epoch
    step: Step
    contributors: Replicas
    done: Annotated[tuple[ReplicaDone, ...], Meta(max_length=MAX_MEMBERS)] = ()
    standbys: Replicas = ()
