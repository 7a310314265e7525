"""States are honest (N15): what decides enters and leaves each one in some seed, or it stands here by name with
who does instead. `tests/integration/backend/test_states.py` holds the same of every machine for the backend."""

from collections import defaultdict

import pytest

from controlplane.policy import transitions
from controlplane.policy.transitions import TABLES, is_final
from controlplane.simulator import asked, processes
from controlplane.simulator.world import World

WORLDS = (*((seed, None) for seed in range(1, 15)), (2, 24), (11, 24))
"""Seed and number of faults (None: the usual one); with twenty-four the restart budget may be spent."""
# Not entered or left by what the simulator plays, and who does it.
BY_OTHERS: dict[tuple[str, str, str], str] = {
    ("job", "entered", "cancelled"): "a person cancels, which no seed does",
    ("node", "entered", "degraded"): "a finding of the fleet's own pass, which no seed plays",
    ("node", "left", "degraded"): "the fleet's own pass, or a person",
    ("node", "entered", "quarantined"): "a finding of the fleet's own pass, or a doubt who the node is",
    ("node", "left", "quarantined"): "a person vouches for it, or its events arrive again",
    ("node", "entered", "draining"): "a person asks that it be emptied (`recovery.requests`)",
    ("node", "left", "cordoned"): "the device is back, or a person returns it",
}


def test_every_state_that_is_decided_is_entered_and_left_in_some_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[tuple[str, str], set[str]] = defaultdict(set)

    def check(machine: str, before: str, after: str) -> str:
        seen[machine, "entered"].add(str(after))
        seen[machine, "left"].add(str(before))
        return transitions.check(machine, before, after)

    monkeypatch.setattr(processes, "check", check)
    monkeypatch.setattr(asked, "check", check)
    for seed, faults in WORLDS:
        assert (
            World(seed, standing_by=(seed - 1) % 3).run(faults, orders=0 if faults else 3 * ((seed - 1) % 2)).violations
            == ()
        )
    parked = World(7007, steps=100_000)
    parked.kernel.after(25.0, parked.people.preempt, 20.0)
    assert parked.run(0).violations == ()
    never = set()
    for machine in ("job", "attempt", "replica", "node"):
        states = [str(state) for state in TABLES[machine]]
        never |= {(machine, "entered", state) for state in states[1:] if state not in seen[machine, "entered"]}
        left = seen[machine, "left"]
        never |= {(machine, "left", s) for s in states if s not in left and not is_final(machine, s)}
    assert never == set(BY_OTHERS)
