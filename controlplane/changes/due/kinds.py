"""The changes that deadlines alone make (`changes.kinds` has all others)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.changes.due.checks import Check
from controlplane.changes.kinds import Enqueue
from controlplane.protocol.commands import VerifyCheckpoint


@dataclass(frozen=True, slots=True)
class CloseSession:
    """A node's connection is over, unless a newer one has replaced it."""

    node_id: str
    session: str


@dataclass(frozen=True, slots=True)
class ObserveSave:
    """Columns of a checkpoint that are no state; an event of the kind `publish` says so, where there is one."""

    save: str
    columns: Mapping[str, Any]
    publish: str = ""


@dataclass(frozen=True, slots=True)
class MoveSave:
    """A checkpoint climbs the ladder, or leaves it."""

    save: str
    to: str
    reason: str


@dataclass(frozen=True, slots=True)
class AskReader:
    """A node is ordered to read a checkpoint back; that command becomes the only one that counts for it. It is
    inspected again in `within_s` at the latest."""

    save: str
    node_id: str
    body: VerifyCheckpoint
    attempt: int
    words: str
    within_s: float


@dataclass(frozen=True, slots=True)
class EndReading:
    """Nobody waits for what this command makes its node read any more."""

    command: str
    node_id: str


@dataclass(frozen=True, slots=True)
class ReadHere:
    """No change: the server's own machine reads it, beside the transaction. `others`: what nodes have said of it;
    `again_s`: when to seek again where nobody has the bytes."""

    save: str
    others: str
    again_s: float | None


Reads = ObserveSave | MoveSave | AskReader | EndReading
Deadline = CloseSession | ObserveSave | MoveSave | AskReader | EndReading


@dataclass(frozen=True, slots=True)
class KeepFor:
    """An incident needs this checkpoint; its ranks are ordered so at once."""

    incident: str
    checkpoint: str


@dataclass(frozen=True, slots=True)
class LetGo:
    """These incidents need theirs no more; `why` it was given up, "" if it was not."""

    incidents: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Rebase:
    """These incidents need that checkpoint."""

    incidents: tuple[str, ...]
    checkpoint: str


@dataclass(frozen=True, slots=True)
class KeepNext:
    """The job's needs are due again in so many seconds: what is `held`, and the `rest`, which was let go; None: not."""

    held_s: float | None
    rest_s: float | None


@dataclass(frozen=True, slots=True)
class Certify:
    """The certificate of an incident, about steps up to `step`; judged again in `again_s`, None: never again."""

    incident: str
    state: str
    checks: tuple[Check, ...]
    step: int
    again_s: float | None


Keeps = KeepFor | LetGo | Rebase | KeepNext | Enqueue
