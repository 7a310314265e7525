"""What an engine is to the server: it is asked what it believes, and carries out intents. Pure.

An engine gives Holdfast nodes: who gets them, for how long, and what replaces a dead one is its own matter. What it
answers becomes rows (`record`); what Holdfast wants of it is rows too (`intents`), each of which it is asked for until
its own facts say that it is so.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from controlplane.engines.slurm.answers import Pilot
from controlplane.engines.slurm.health import Believed

RESIDENT, SLURM = "resident", "slurm"


class IntentKind(StrEnum):
    """What an engine can be asked for. Each has a producer: the first two are made of a node's verdicts (`compare`),
    the third by a person."""

    MARK_BAD = "mark_bad"
    CLEAR = "clear"
    RESIZE = "resize"


class IntentState(StrEnum):
    """`sent`: the engine took the order; `done`: its own facts say so; `void`: it is not wanted any more."""

    WANTED = "wanted"
    SENT = "sent"
    DONE = "done"
    VOID = "void"


OPEN = (IntentState.WANTED, IntentState.SENT)


class EngineError(RuntimeError):
    """The engine did not do it, or did not answer; the text says why, in the engine's own words where it has any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One look. `nodes`: by the name that each has in the engine; `pilots`: of all pools. None: no news, nothing is
    concluded of either, and `errors` says why."""

    nodes: Mapping[str, Believed] | None
    pilots: tuple[Pilot, ...] | None
    errors: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """An intent as the engine is asked for it. `node`: its name in the engine; `pool` and `size`: of a resize, with
    which the pilots `spare` of that pool are given back, by number."""

    id: str
    kind: IntentKind
    node: str = ""
    reason: str = ""
    pool: str = ""
    size: int = 0
    spare: tuple[int, ...] = ()


class Engine(Protocol):
    """A driver. Both calls may take a few seconds and are made with no transaction open."""

    name: str

    def observe(self) -> Observation:
        """What the engine believes now; it raises nothing."""

    def carry_out(self, change: Change) -> str:
        """Ask the engine for it, where it is not so already; what came of that, in words. May be called again for the
        same intent. Raises EngineError."""


class Resident:
    """Today's: agents run on their nodes for good, and no scheduler is asked."""

    name = RESIDENT

    def observe(self) -> Observation:
        """Nothing: nobody else knows of the nodes."""
        return Observation(nodes={}, pilots=())

    def carry_out(self, change: Change) -> str:
        """Nobody makes intents for it."""
        raise EngineError(f"the engine {RESIDENT} carries nothing out")
