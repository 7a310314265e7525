"""Recoveries of simulated jobs are judged by the product's code, by what their ranks have told."""

from typing import Any

import pytest

from controlplane.simulator.certificates import Certificates
from controlplane.simulator.process import Group, Process, Rank
from controlplane.simulator.rows import Rows
from controlplane.simulator.world import World


def recovered(until_s: float = 90.0) -> World:
    """A world in which one rank was killed, and nothing else."""
    world = World(21)
    world.start()
    world.faults.schedule(400.0, 0)
    world.kernel.run(20.0)
    world.faults.kill_rank(next(iter(world.trainer.processes.values())))
    world.kernel.run(until_s)
    return world


def test_a_recovery_is_judged_by_all_but_an_undisturbed_run() -> None:
    world = recovered()
    (incident,) = world.server.rows.course.incidents.values()
    assert (incident.state, incident.due_s) == ("incomplete", None)
    assert {check.name: check.ok for check in incident.checks} == {
        "state_hashes_equal": True,
        "sample_ledger_exact": True,
        "loss_matches_reference": None,
        "no_step_lost": True,
        "old_incarnation_fenced": True,
    }
    assert world.checkers.violations == []
    assert world.checkers.judged == 1


def red(world: World) -> list[str]:
    return [text.partition(" is red: ")[2] for text in world.checkers.violations if "I-cert" in text]


def test_a_replica_that_holds_another_state_fails_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Process.state_hash

    def wrong(process: Process, rank: Rank) -> str | None:
        found = right(process, rank)
        return found and (f"{found}0" if process.index == 0 and process.committed > 28 else found)

    monkeypatch.setattr(Process, "state_hash", wrong)
    (why,) = red(recovered())
    assert why.startswith("state_hashes_equal: they differ after step ")


def test_a_micro_batch_that_is_in_a_step_twice_fails_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Group.trained
    monkeypatch.setattr(Group, "trained", lambda group, step: (*right(group, step), *((0,) if step == 28 else ())))
    (why,) = red(recovered())
    assert why == "sample_ledger_exact: step 28 holds [0, 0, 1, 2, 3, 4, 5], not [0, 1, 2, 3, 4, 5]"


def test_a_step_of_which_nobody_tells_what_it_holds_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Rows.note_step

    def without(rows: Rows, key: Any, said: Any, at_s: float) -> None:
        if said.step != 28 or key.rank:
            right(rows, key, said, at_s)

    monkeypatch.setattr(Rows, "note_step", without)
    world = recovered()
    (incident,) = world.server.rows.course.incidents.values()
    assert (red(world), incident.state, incident.checks[1].ok) == ([], "incomplete", None)
    assert incident.checks[1].detail == "what step 28 holds is not reported"


def test_a_step_that_nobody_tells_of_was_committed_and_one_that_an_attempt_begins_behind_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = Rows.note_step
    monkeypatch.setattr(
        Rows, "note_step", lambda rows, key, said, at_s: None if said.step == 28 else right(rows, key, said, at_s)
    )
    world = recovered()
    assert red(world) == []
    (incident,) = world.server.rows.course.incidents.values()
    assert (incident.state, incident.checks[3].ok) == ("incomplete", None)
    rows = world.server.rows.steps
    world.server.rows.steps = {(1 + (number > 28), number): row for (_, number), row in rows.items()}
    for (attempt, _), row in world.server.rows.steps.items():
        row.attempt = attempt
    incident.due_s = world.kernel.now_s
    Certificates(world.server.rows, world.kernel, world.checkers).sweep()
    (why,) = red(world)
    assert "no_step_lost: step 28 was never committed" in why


def test_a_step_of_one_that_was_left_out_fails_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Rows.note_step

    def as_of_before(rows: Rows, key: Any, said: Any, at_s: float) -> None:
        right(rows, key, said, at_s)
        if said.step == 28:
            rows.steps[key.attempt, 28].epoch = 1

    monkeypatch.setattr(Rows, "note_step", as_of_before)
    (why,) = red(recovered())
    assert "step 28 of an epoch before view" in why


def test_one_that_is_judged_for_good_lets_its_checkpoint_go() -> None:
    world = World(21)
    world.start()
    world.faults.schedule(400.0, 0)
    world.kernel.run(70.0)
    world.faults.kill_rank(next(iter(world.trainer.processes.values())))
    world.kernel.run(75.0)
    (need,) = world.server.rows.needs.values()
    assert not need.let_go
    world.kernel.run(140.0)
    assert (need.let_go, need.why) == (True, "")
