"""An order to compute committed steps again from a checkpoint, and what came of it.

The server makes the order after a recovery (`recovery.recompute`), the agent hands it to the ranks
of one replica, and those carry it out once all steps of the job are committed and saved
(`trainer.recompute`). Data alone: nothing here decides or computes.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from controlplane.protocol.bounds import Id, Index, Magnitude, MicroBatches, Number, Path, Seconds, Step

MAX_STEPS = 256
"""Of one order: what is recomputed, told and kept of a recovery stays bounded."""
MAX_ORDERS = 4
"""Of one replica: it carries them out one after the other."""
MAX_SPANS = 64
"""Of different shares: more changes of the membership than that are not told in one order."""
MAX_PARTS = 64


class Share(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `replica` put into a step: the micro-batches of each of its computations, in their order
    (a view change within the step brings another one)."""

    replica: Index
    parts: Annotated[tuple[MicroBatches, ...], Meta(max_length=MAX_PARTS)]


class Span(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The shares of every step from `first_step` up to the next span; replicas in the order of
    their seats in the exchange."""

    first_step: Step
    shares: Annotated[tuple[Share, ...], Meta(min_length=1, max_length=1_024)]


class Recompute(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Load the checkpoint at `path` (`from_step` committed steps), and compute the steps `from_step`
    to `until_step` - 1 with the shares of `spans`; begin none after `limit_s` seconds."""

    order_id: Id
    path: Path
    from_step: Step
    until_step: Step
    spans: Annotated[tuple[Span, ...], Meta(min_length=1, max_length=MAX_SPANS)]
    limit_s: Seconds


class RecomputedStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`loss` (mean per token) from the last pipeline stage alone; None too where it is no finite number,
    as `finite` says of both."""

    step: Step
    loss: Number | None = None
    grad_norm: Magnitude | None = None
    finite: bool = True


Recomputed = Annotated[tuple[RecomputedStep, ...], Meta(max_length=MAX_STEPS)]
