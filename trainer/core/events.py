"""What can happen to a rank, as its core is told.

What all ranks of a replica find out together (`Agreed` to `Passed`) is told to each of them alike.
"""

from dataclasses import dataclass

from controlplane.protocol.membership import Install, View


@dataclass(frozen=True, slots=True)
class ViewSeen:
    """A view has arrived."""

    view: View


@dataclass(frozen=True, slots=True)
class ViewAwaited:
    """The step with which the view of `epoch` begins has been awaited for as long as it may be."""

    epoch: int


@dataclass(frozen=True, slots=True)
class InstallSeen:
    """An install has arrived."""

    install: Install


@dataclass(frozen=True, slots=True)
class Unheard:
    """What was said last may be lost."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """The state that was fetched is whole in this rank."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """The answer to `Agree`: each rank of the replica has named the `same` epoch."""

    same: bool


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The answer to `Confirm`: whether every rank stands by the install; whether each can go on
    with what it has fetched."""

    stands: bool
    keeps: bool


@dataclass(frozen=True, slots=True)
class Built:
    """The answer to `Build`: every rank of the replica is `inside` its group, of the newest view."""

    inside: bool


@dataclass(frozen=True, slots=True)
class Begun:
    """The step in progress begins, or goes on: nothing else is left to do before it."""


@dataclass(frozen=True, slots=True)
class Computed:
    """The answer to `Compute`."""


@dataclass(frozen=True, slots=True)
class Met:
    """The answer to `Meet`: the epoch is `over` for some rank of the replica."""

    over: bool


@dataclass(frozen=True, slots=True)
class Summed:
    """The answer to `Sum`: every rank of the replica has `held` the sum."""

    held: bool


@dataclass(frozen=True, slots=True)
class Passed:
    """The answer to `Barrier`: which joiners (replica indices) were level with the others at it;
    None: it has passed on no rank of the replica."""

    level: tuple[int, ...] | None


Event = (
    ViewSeen
    | ViewAwaited
    | InstallSeen
    | Unheard
    | Fetched
    | Agreed
    | Confirmed
    | Built
    | Begun
    | Computed
    | Met
    | Summed
    | Passed
)
