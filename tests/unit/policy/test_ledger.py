"""What a device's second is called, one case at a time."""

from typing import Any

import pytest

from controlplane.policy.ledger.account import account
from controlplane.policy.ledger.facts import Cause, Facts, Hold, JobFacts, Reserved, Role, Run, Standing, Turn
from controlplane.protocol.ledger import TimeClass


def job(**changes: Any) -> JobFacts:
    plain: dict[str, Any] = {
        "id": "job", "project": "default", "gpus": 4, "step_s": 1.0, "created_s": 0.0, "began_s": 0.0,
        "finished_s": None, "training": True,
    }  # fmt: skip
    return JobFacts(**plain | changes)


def hold(devices: int = 4, *, replica: int = 1, from_s: float = 0.0, until_s: float | None = None) -> Hold:
    return Hold(job="job", node="node", replica=replica, from_s=from_s, until_s=until_s, devices=devices)


TRAINS = {1: (Turn(0.0, Role.TRAINING),)}


def by_class(facts: Facts, *, until_s: float = 100.0) -> dict[str, float]:
    sums: dict[str, float] = {}
    for key, amount in account(facts, 0.0, until_s).amounts.items():
        sums[key.of] = sums.get(key.of, 0.0) + amount
    return {of: pytest.approx(amount) for of, amount in sums.items() if abs(amount) > 1e-9}


def run(from_s: float, until_s: float, kind: str = "degraded", **changes: Any) -> Run:
    return Run(job="job", from_s=from_s, until_s=until_s, kind=kind, **changes)


def world(*runs: Run, **changes: Any) -> Facts:
    plain: dict[str, Any] = {"judged_s": 100.0, "jobs": (job(),), "runs": runs, "holds": (hold(),), "turns": TRAINS}
    return Facts(**plain | changes)


def test_kept_steps_are_productive_saves_are_checkpoints_and_the_rest_is_what_it_was():
    found = by_class(world(run(0.0, 100.0, "stalled", steps=60, saved_s=5.0)))
    assert found == {TimeClass.PRODUCTIVE: 240.0, TimeClass.CHECKPOINT: 20.0, TimeClass.STALL: 140.0}


def test_half_the_devices_that_take_twice_as_long_are_wholly_productive():
    assert by_class(world(run(0.0, 100.0, steps=50), holds=(hold(2),))) == {TimeClass.PRODUCTIVE: 200.0}


def test_who_joins_recovers_and_a_spare_is_idle():
    holds = (hold(), hold(1, replica=2), hold(1, replica=3))
    turns = {**TRAINS, 2: (), 3: (Turn(0.0, Role.SPARE),)}
    found = by_class(world(run(0.0, 100.0, steps=100), holds=holds, turns=turns))
    assert found == {TimeClass.PRODUCTIVE: 400.0, TimeClass.RECOVERY: 100.0, TimeClass.IDLE_SPARE: 100.0}


def test_a_job_that_yields_is_preempted_and_due_to_whom_it_makes_room_for():
    urgent = Cause("job", "urgent")
    found = account(world(run(0.0, 100.0, "recovery", cause=urgent, preempted=True)), 0.0, 100.0)
    assert {(key.of, key.cause): amount for key, amount in found.amounts.items()} == {
        (TimeClass.PREEMPTED, urgent): pytest.approx(400.0)
    }


def test_two_runs_that_overlap_count_each_second_once():
    assert by_class(world(run(0.0, 80.0, steps=80), run(20.0, 40.0, "stalled"))) == {
        TimeClass.PRODUCTIVE: 320.0, TimeClass.STALL: 80.0,
    }  # fmt: skip


def test_steps_of_a_run_whose_time_is_another_ones_are_counted_all_the_same():
    """The clock was set back: what it said twice is one time, in which more was done."""
    found = by_class(world(run(0.0, 90.0, steps=80), run(20.0, 40.0, steps=10, saved_s=1.0), run(40.0, 100.0)))
    assert found[TimeClass.PRODUCTIVE] == 360.0
    assert found[TimeClass.CHECKPOINT] == 4.0


def test_steps_of_a_job_that_has_no_figure_yet_are_not_guessed_at():
    few = world(run(0.0, 10.0, "recovery"), run(10.0, 100.0, steps=2), jobs=(job(step_s=None),))
    assert by_class(few) == {TimeClass.RECOVERY: 40.0, TimeClass.NOT_OBSERVED: 360.0}
    assert account(few, 0.0, 100.0).jobs[0].ettr is None


def test_a_job_that_held_its_devices_and_kept_no_step_has_a_ratio_of_nothing():
    never = world(run(0.0, 100.0, "recovery"), jobs=(job(step_s=None),))
    assert account(never, 0.0, 100.0).jobs[0].ettr == 0.0


def test_a_replica_that_left_holds_nothing_of_a_node_that_is_down():
    standings = tuple(
        Standing(node="node", from_s=from_s, until_s=until_s, devices=4, down=down, cause=Cause("incident", "inc"))
        for from_s, until_s, down in ((0.0, 50.0, 0), (50.0, None, 4))
    )
    left = world(run(0.0, 100.0, "recovery"), turns={1: (Turn(0.0, Role.LEAVING),)}, standings=standings)
    assert by_class(left) == {TimeClass.RECOVERY: 200.0, TimeClass.DOWN: 200.0}


def test_what_is_idle_while_its_node_is_reserved_is_due_to_that():
    standing = Standing(node="node", from_s=0.0, until_s=None, devices=4, down=1, cause=Cause("incident", "inc"))
    kept = Reserved("node", 40.0, 70.0, "rsv_1")
    found = account(Facts(judged_s=100.0, standings=(standing,), reserved=(kept,)), 0.0, 100.0).amounts
    assert {(key.of, key.cause): amount for key, amount in found.items()} == {
        (TimeClass.DOWN, Cause("incident", "inc")): 100.0,
        (TimeClass.IDLE, Cause()): 210.0,
        (TimeClass.IDLE, Cause("reservation", "rsv_1")): 90.0,
    }


def test_a_step_in_progress_is_a_stall_once_it_takes_too_long():
    assert by_class(world(run(0.0, 98.0, steps=98))) == {TimeClass.PRODUCTIVE: 392.0, TimeClass.DEGRADED: 8.0}
    assert by_class(world(run(0.0, 90.0, steps=90))) == {TimeClass.PRODUCTIVE: 360.0, TimeClass.STALL: 40.0}


def test_before_its_first_commit_a_job_starts_and_before_it_was_counted_nobody_knows():
    assert by_class(world()) == {TimeClass.RECOVERY: 400.0}
    assert by_class(world(run(60.0, 100.0, steps=40))) == {TimeClass.NOT_OBSERVED: 240.0, TimeClass.PRODUCTIVE: 160.0}


def test_what_a_job_asked_for_and_did_not_hold_is_beside_the_sum():
    found = account(world(run(40.0, 100.0, steps=60), holds=(hold(from_s=40.0),)), 0.0, 100.0)
    assert found.jobs[0].queued_gpu_s == pytest.approx(160.0)
    assert found.known_gpu_s == pytest.approx(240.0)
    assert found.jobs[0].ettr == pytest.approx(0.6)
