"""What a rank's core wants done.

An `Ask` keeps the rank until all ranks of its replica have the answer, which is an event; there is
at most one, and it is the last of its list. Everything else is done on the way.
"""

from dataclasses import dataclass
from enum import StrEnum

from controlplane.protocol.membership import Flush, MemberRole

Peer = tuple[int, int]  # replica, incarnation


@dataclass(frozen=True, slots=True)
class Seat:
    """My place in the group of an epoch: number `index` of `members`, who meet under `prefix`."""

    epoch: int
    prefix: str
    index: int
    members: int


# --- done on the way ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Connect:
    """Begin to build the group of a view that may be installed."""

    seat: Seat


@dataclass(frozen=True, slots=True)
class Await:
    """`ViewAwaited` when the view of `epoch` has been here for `MAX_AWAITED_S`."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Say:
    """What I hold, or shall hold."""

    flush: Flush


@dataclass(frozen=True, slots=True)
class Abandon:
    """What was asked last (`Build`, `Sum`, `Barrier`) comes to nothing: answer so."""


@dataclass(frozen=True, slots=True)
class Serve:
    """Serve these joiners, and nobody else, the state of `step`. `early`: while it is computed with;
    who brings the install must not wait for a copy, and need not: this comes again."""

    joiners: frozenset[Peer]
    step: int
    early: bool = False


@dataclass(frozen=True, slots=True)
class Fetch:
    """Begin to fetch the state of `step`, forgetting what was fetched and kept so far."""

    donors: tuple[Peer, ...]
    step: int


@dataclass(frozen=True, slots=True)
class GoOn:
    """Go on with the fetch, from `donors` alone."""

    donors: tuple[Peer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitStep:
    """The sum of `step` becomes the state, or is kept for later (`keeps`). `micro_batches` are mine;
    `members` and `holders` (replica indices) those of the epoch it was summed in."""

    step: int
    epoch: int
    micro_batches: tuple[int, ...]
    keeps: bool
    rolled_forward: bool
    members: tuple[int, ...]
    holders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Welcome:
    """These joiners hold the state from now on. `role`: mine, where I am one of them: replay the
    step that was just committed, and tell that I have caught up."""

    joined: frozenset[int]
    role: MemberRole | None


@dataclass(frozen=True, slots=True)
class Entered:
    """I am inside the epoch; `recomputed` are dealt to me of a step that I have a part of."""

    epoch: int
    step: int
    recomputed: tuple[int, ...]


# --- asked of the whole replica --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Agree:
    """Do we all have the install of `epoch`? Views are still answered meanwhile."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Confirm:
    """Do we all stand by it, and can we all go on with what we fetched?"""

    stands: bool
    keeps: bool


@dataclass(frozen=True, slots=True)
class Build:
    """Keep what is older from writing, then enter the group."""

    seat: Seat


@dataclass(frozen=True, slots=True)
class Compute:
    """`todo` of `step`; `fresh`: nothing of it is held yet."""

    step: int
    todo: tuple[int, ...]
    fresh: bool


@dataclass(frozen=True, slots=True)
class Meet:
    """Is the epoch over for one of us? (A joiner first works off what it has kept.)"""

    over: bool


@dataclass(frozen=True, slots=True)
class Sum:
    """Phase 1: my gradients, or zeros."""

    counts: bool


@dataclass(frozen=True, slots=True)
class Barrier:
    """Phase 2; `joins`: say whether I am level."""

    joins: bool


class Why(StrEnum):
    """Of leaving."""

    EVICTED = "evicted"
    VIOLATED = "violated"


@dataclass(frozen=True, slots=True)
class Leave:
    """It is over for this rank."""

    why: Why
    text: str


Ask = Agree | Confirm | Build | Compute | Meet | Sum | Barrier | Leave
Effect = Connect | Await | Say | Abandon | Serve | Fetch | GoOn | CommitStep | Welcome | Entered | Ask
ASKS = (Agree, Confirm, Build, Compute, Meet, Sum, Barrier, Leave)
