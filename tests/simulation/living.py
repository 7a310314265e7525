"""What occurs in simulated worlds: of the fields of a snapshot those that take more than one value, the actions that
are planned, and the commands that are sent."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, get_args, get_type_hints

import msgspec

from controlplane.policy.config import PolicyConfig
from controlplane.policy.plan import Action, Decision, Plan
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol.commands import Body
from controlplane.protocol.spec import Parallelism, TrainSpec
from controlplane.simulator.server import Decide
from controlplane.simulator.world import World

WHOLE = (TrainSpec, Parallelism)
"""What a user writes has tests of its own (`tests/contracts`)."""
ACTIONS = {kind.__name__ for kind in get_args(Action)}
COMMANDS = {kind.__struct_config__.tag for kind in get_args(Body)}


@dataclass(slots=True)
class Living:
    """`first`: of each field that has had one value only so far, that; `alive`: the others, as "Record.field"."""

    first: dict[str, Any] = field(default_factory=dict)
    alive: set[str] = field(default_factory=set)
    actions: set[str] = field(default_factory=set)
    commands: set[str] = field(default_factory=set)
    violations: list[str] = field(default_factory=list)

    def watch(self, world: World) -> None:
        """Of each pass of the job and of the fleet what is decided on, and what is decided."""
        for run in world.runs.values():
            run.lens.judge = partial(self._watched, run.lens.judge)
        carry = world.server.fleet.store.carry

        def carried(decision: Decision, actions: Iterable[Action]) -> None:
            self.actions |= {type(action).__name__ for action in decision.actions}
            carry(decision, actions)

        world.server.fleet.store.carry = carried  # type: ignore[method-assign]

    def _watched(self, judge: Decide, snapshot: JobSnapshot, config: PolicyConfig) -> Plan:
        self._note(snapshot)
        plan = judge(snapshot, config)
        self._note(snapshot)
        self.actions |= {type(action).__name__ for decision in plan.decisions for action in decision.actions}
        return plan

    def ended(self, world: World) -> None:
        """What was sent, and whether all invariants held."""
        self.violations += world.checkers.violations
        rows = [row for run in world.runs.values() if run.is_here for row in run.rows.commands.values()]
        rows += world.server.fleet.rows.commands.values()
        self.commands |= {type(row.envelope.body).__struct_config__.tag for row in rows if row.send_due_s is not None}

    def _note(self, record: msgspec.Struct) -> None:
        name = type(record).__name__
        for each in record.__struct_fields__:
            value, path = getattr(record, each), f"{name}.{each}"
            if path not in self.alive and self.first.setdefault(path, value) != value:
                self.alive.add(path)
                del self.first[path]
            for inner in _records(value):
                self._note(inner)


def _records(value: object) -> Iterator[msgspec.Struct]:
    if isinstance(value, msgspec.Struct):
        if not isinstance(value, WHOLE):
            yield value
    elif isinstance(value, (tuple, dict)):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _records(each)


def fields(of: type = JobSnapshot) -> set[str]:
    """Every field of a snapshot and of the records in it, as "Record.field"."""
    found: set[str] = set()
    waiting, known = [of], {of, *WHOLE}
    while waiting:
        record = waiting.pop()
        for name, hint in get_type_hints(record).items():
            if name in record.__struct_fields__:
                found.add(f"{record.__name__}.{name}")
                inner = [kind for kind in _kinds(hint) if kind not in known]
                waiting += inner
                known.update(inner)
    return found


def _kinds(hint: object) -> Iterator[type]:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
    for each in get_args(hint):
        yield from _kinds(each)
