"""One committed step, and what the ranks of my replica agreed on before it."""

from dataclasses import dataclass

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
    intent: Intent
    leaving: bool
    everyone_leaves: bool
    copy_wait_s: float = 0.0
