"""What the ledger is made of. Moments are Unix seconds by the server's present clock; None as an end: it goes on.

Tens of thousands are made for one answer: Python's collector of cycles does not follow them, as none is in one.
"""

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec

from controlplane.protocol.ledger import CauseKind


class Cause(NamedTuple):
    """`id` of the incident, decision, job or reservation; of a person or a node what they gave as the reason."""

    kind: str = CauseKind.NONE
    id: str = ""


NOBODY = Cause()


class Role(StrEnum):
    """What a replica does with the devices that it holds."""

    TRAINING = "training"
    JOINING = "joining"
    LEAVING = "leaving"
    SPARE = "spare"


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, gc=False):
    """Gaps between commits of one kind (`policy.spent.KINDS`) that follow one another. `steps` were kept that it
    committed, `lost_steps` of them only until a restart went back behind them (due to `lost_cause`); saves that
    came within it held training up for `saved_s`. `preempted`: the job yielded, or came back from it.
    `restated`: it was first counted otherwise."""

    job: str
    from_s: float
    until_s: float
    kind: str
    steps: int = 0
    lost_steps: int = 0
    saved_s: float = 0.0
    cause: Cause = NOBODY
    lost_cause: Cause = NOBODY
    preempted: bool = False
    restated: bool = False


class Hold(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A replica's incarnation (`replica`: its key) holds so many devices of a node."""

    job: str
    node: str
    replica: int
    from_s: float
    until_s: float | None
    devices: int


class Turn(NamedTuple):
    """From that moment on a replica has the role."""

    from_s: float
    role: str


class Standing(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, gc=False):
    """Of a node's `devices`: so many are of no use (`down`), may take no work (`cordoned`), are kept for a job
    (`spare`) or were not seen (`unseen`); the others are free for work. Who holds which is not said here."""

    node: str
    from_s: float
    until_s: float | None
    devices: int
    down: int = 0
    cordoned: int = 0
    spare: int = 0
    unseen: int = 0
    cause: Cause = NOBODY


class Reserved(NamedTuple):
    """What of the node was free was so for the jobs of one project alone, by the reservation `id`."""

    node: str
    from_s: float
    until_s: float
    id: str


class JobFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`gpus` of its full strength; `step_s`: its undisturbed step (None: too few were seen); `training`: it runs or
    has ended; `began_s`: its first attempt (None: it has none); `tail`: what its time since the newest commit
    is due to, which is on account of a preemption where `yields`."""

    id: str
    project: str
    gpus: int
    step_s: float | None
    created_s: float
    began_s: float | None
    finished_s: float | None
    training: bool
    tail: Cause = NOBODY
    yields: bool = False


class Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All that touches a window, in any sequence. `turns` by replica. `judged_s`: nothing is known of later."""

    judged_s: float
    jobs: tuple[JobFacts, ...] = ()
    runs: tuple[Run, ...] = ()
    holds: tuple[Hold, ...] = ()
    turns: Mapping[int, tuple[Turn, ...]] = {}
    standings: tuple[Standing, ...] = ()
    reserved: tuple[Reserved, ...] = ()


def end_s(until_s: float | None) -> float:
    """As a number."""
    return math.inf if until_s is None else until_s
