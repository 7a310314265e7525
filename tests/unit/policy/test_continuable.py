"""Which decisions can be continued in the simulator: what a case holds, and why there is none."""

import base64
from pathlib import Path
from typing import Any

import pytest

from controlplane.policy.config import PolicyConfig
from controlplane.policy.continuable import WAITS, answer_among, case_of, is_act, same_act
from controlplane.policy.plan import Decision
from controlplane.policy.snapshot import JobSnapshot, LearnedTimes
from controlplane.protocol.rest.policy import ReplayCase
from controlplane.protocol.spec import Training
from controlplane.protocol.states import Mode
from controlplane.recovery.snapshots import unpacked

from .builders import CONFIG, change, checkpoint, decisions, job, node, running, signal, spec, with_replica

LEARNED = LearnedTimes(step_s=2.0, step_max_s=3.0, start_replica_s=40.0, catch_up_s=20.0)
SNAPSHOTS = Path(__file__).parent / "snapshots"


def crashed(**fields: Any) -> JobSnapshot:
    """Replica 1 of three lost a rank at step 50, 12 steps after the newest checkpoint."""
    exits = signal("rank_exit", replica=1, incarnation=1, rank=0, value=9.0, evidence={"exit_code": -9})
    base: dict[str, Any] = {"signals": (exits,), "learned": LEARNED, "checkpoints": (checkpoint(38),)}
    return with_replica(running(**(base | fields)), 1, exited_ranks=1)


def answer(snapshot: JobSnapshot, config: PolicyConfig = CONFIG) -> Decision:
    found = answer_among(decisions(snapshot, config))
    assert found is not None, decisions(snapshot, config)
    return found


def why(snapshot: JobSnapshot, after: Decision | None = None) -> str:
    found = case_of(snapshot, CONFIG, answer(snapshot), after)
    assert isinstance(found, str), found
    return found


def test_a_case_holds_the_job_what_failed_and_its_times() -> None:
    snapshot = crashed()
    made = answer(snapshot)
    found = case_of(snapshot, CONFIG, made, None)
    assert isinstance(found, ReplayCase)
    assert (found.rule, found.choice, found.then_rule) == (made.rule, made.choice, "")
    assert (found.failed, found.silent_s) == ({"1": "crash"}, 0.0)
    assert (found.replicas, found.ranks, found.places, found.needed) == (3, 2, 1, 1)
    assert (found.step_s, found.start_s, found.catch_up_s, found.measured) == (2.0, 40.0, 20.0, True)
    assert (found.gap_steps, found.steps_left, found.fleet_devices) == (12, 50, 100)


def test_what_was_not_measured_is_the_policys_default_and_says_so() -> None:
    found = case_of(crashed(learned=change(LEARNED, catch_up_s=None)), CONFIG, answer(crashed()), None)
    assert isinstance(found, ReplayCase)
    assert (found.catch_up_s, found.measured) == (CONFIG.default_catch_up_s, False)


def test_a_spare_that_is_kept_for_the_job_is_a_place_and_one_of_another_job_is_none() -> None:
    kept = crashed(nodes=(*running(spares=0).nodes, node(3, free=False, reserved_for="job_1")))
    spare = change(kept.nodes[3], devices=tuple(change(device, held=False) for device in kept.nodes[3].devices))
    mine = change(kept, nodes=(*kept.nodes[:3], spare))
    other = change(kept, nodes=(*kept.nodes[:3], change(spare, reserved_for="job_2")))
    places = [
        found.places for s in (mine, other) if isinstance(found := case_of(s, CONFIG, answer(s), None), ReplayCase)
    ]
    assert places == [1, 0]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"learned": LearnedTimes()}, "a step of the job is not measured yet"),
        ({"learned": change(LEARNED, step_s=0.01)}, "steps shorter than 0.1 s"),
        ({"checkpoints": (), "job": job(committed_step=1001, spec=spec(training=Training(steps=5000)))}, "1000 steps"),
        ({"job": job(spec=spec(min_replicas=2, training=Training(steps=100, batch_mode="spares")))}, "stand by"),
    ],
)
def test_what_a_world_cannot_be_given_is_a_reason(fields: dict[str, Any], reason: str) -> None:
    assert reason in why(crashed(**fields))


def test_a_replica_that_was_away_before_is_a_reason() -> None:
    snapshot = with_replica(crashed(), 2, contributing=False)
    made = answer(crashed())
    assert case_of(snapshot, CONFIG, made, None) == "replicas were on their way back"


def test_a_failure_that_is_not_simulated_is_named() -> None:
    snapshot = with_replica(running(learned=LEARNED), 1, ordered_out="ada", ordered_s=990.0, exited_ranks=1)
    found = case_of(snapshot, CONFIG, answer(crashed()), None)
    assert isinstance(found, str) and found.startswith("no such failure is simulated: ")


def test_what_waits_for_a_person_has_no_price() -> None:
    snapshot = crashed()
    asked = change(answer(snapshot), mode=Mode.RECOMMEND)
    held = change(answer(snapshot), choice="hold", actions=())
    assert {why(snapshot, asked), why(snapshot, held)} == {WAITS}


def test_what_other_rules_do_is_not_simulated() -> None:
    assert "straggler" in why(crashed(), change(answer(crashed()), rule="straggler"))
    assert case_of(crashed(), CONFIG, None, None) == "what nothing answers is not simulated"


def test_two_act_alike_by_what_is_carried_out() -> None:
    made = answer(crashed())
    other, asked = change(made, sentence="Otherwise."), change(made, mode=Mode.RECOMMEND)
    assert is_act(made) and not is_act(asked) and not is_act(None)
    assert same_act(made, other) and same_act(asked, None) and same_act(None, None)
    assert not same_act(made, asked) and not same_act(None, made)
    assert not same_act(made, change(made, choice="restart"))


@pytest.mark.parametrize("shape", ["0", "1"])
def test_a_snapshot_of_each_shape_has_a_case_or_a_reason(shape: str) -> None:
    snapshot = unpacked(base64.b64decode((SNAPSHOTS / f"{shape}.b64").read_text()), JobSnapshot)
    found = case_of(snapshot, CONFIG, answer(crashed()), None)
    assert isinstance(found, ReplayCase) or found
