"""What a decision says and rests on holds for the moment at which it is made."""

import pytest

from controlplane.policy.facts import is_correlated_failure
from controlplane.policy.fleet import FleetSnapshot, decide_fleet
from controlplane.policy.plan import ResolveIncident
from controlplane.policy.readings import READINGS
from controlplane.policy.snapshot import JobSnapshot, SignalFact
from controlplane.protocol.spec import Parallelism, Training
from controlplane.protocol.states import IncidentOutcome, JobState, ReplicaState
from tests.unit.policy.builders import (
    CONFIG,
    CONTRIBUTOR,
    JOINER,
    NOW_S,
    attempt,
    change,
    install_of,
    job,
    node,
    only,
    replica,
    running,
    signal,
    spec,
    view_of,
    with_replica,
)


def killed(index: int) -> SignalFact:
    """Rank 0 of this replica, on the node of the same number."""
    told = {"exit_code": None, "signal": 9}
    return signal(
        "rank_exit", 10 + index, replica=index, incarnation=1, rank=0, node_id=f"n{index}", value=-9.0, evidence=told
    )


def smaller(replicas: int, layout: Parallelism) -> JobSnapshot:
    """A later attempt, placed on what was free, has recovered: all of it trains."""
    view = view_of(*((index, 1, CONTRIBUTOR) for index in range(replicas)))
    return running(
        job=job(state=JobState.RECOVERING),
        attempt=attempt(replicas=replicas, layout=layout),
        replicas=tuple(replica(index) for index in range(replicas)),
        view=view,
        install=install_of(view),
    )


@pytest.mark.parametrize(
    ("world", "choice", "outcome", "words"),
    [
        (smaller(3, Parallelism(tp=1, pp=2, dp=3)), "full_strength", "recovered", "All 3 replicas train."),
        (smaller(2, Parallelism(tp=1, pp=2, dp=2)), "shrunk", "mitigated", "4 of the 6 devices"),
        (smaller(3, Parallelism(tp=1, pp=1, dp=3)), "shrunk", "mitigated", "3 of the 6 devices"),
        (smaller(1, Parallelism(tp=1, pp=2, dp=1)), "shrunk", "mitigated", "Its only replica trains, stable"),
    ],
)
def test_full_strength_is_what_the_job_asked_for_and_not_what_an_attempt_was_placed_with(world, choice, outcome, words):
    decision = only(world, "strength")
    assert decision.choice == choice
    assert words in decision.sentence
    (over,) = (action for action in decision.actions if isinstance(action, ResolveIncident))
    assert over.outcome == IncidentOutcome(outcome)


def test_of_a_job_in_which_some_stand_by_those_that_compute_are_its_full_strength() -> None:
    world = smaller(2, Parallelism(tp=1, pp=2, dp=2))
    wanted = spec(min_replicas=2, training=Training(steps=100, global_batch=6, batch_mode="spares"))
    assert only(change(world, job=change(world.job, spec=wanted)), "strength").choice == "full_strength"


def test_who_starts_yet_or_fetches_the_state_does_not_continue() -> None:
    view = view_of((0, 1, CONTRIBUTOR), (1, 1, CONTRIBUTOR), (2, 2, JOINER))
    two = running(signals=(killed(0),), view=view, install=install_of(view))
    two = with_replica(two, 0, exited_ranks=1)
    fetching = with_replica(two, 2, incarnation=2, state=ReplicaState.CATCHING_UP, contributing=False)
    starting = with_replica(two, 2, incarnation=2, state=ReplicaState.FORMING, contributing=False, joined_ranks=0)
    for world in (fetching, starting):
        assert ". 1 replica continues, 1 replica is on the way; " in only(world, "replica_failure").sentence
    whole = with_replica(running(signals=(killed(0),)), 0, exited_ranks=1)
    assert ". 2 replicas continue; " in only(whole, "replica_failure").sentence


def test_one_that_is_left_is_one_replica() -> None:
    world = with_replica(running(signals=(killed(0), killed(1)), spares=0), 0, exited_ranks=1)
    world = change(with_replica(world, 1, exited_ranks=1), job=job(spec=spec(min_replicas=2)))
    decision = only(change(world, nodes=tuple(node(i, free=False, connected=i == 2) for i in range(3))), "restart")
    assert "1 replica is left, 2 must be" in decision.sentence
    assert "1 replicas" not in str(decision.alternatives)


def test_those_that_are_left_out_together_are_spoken_of_as_several() -> None:
    silent = signal("node_silent", 20, node_id="n0", value=4.0, threshold=2.0)
    named = tuple(signal("outer_error", 30 + i, replica=2, incarnation=1, evidence={"suspect": i}) for i in range(2))
    world = running(
        signals=(silent, *named),
        job=job(progressed_s=NOW_S - 5.0),
        replicas=(replica(0), replica(1, home=0), replica(2)),
    )
    told = only(world, "leave_out").sentence
    assert ". 1 replica continues without them; nothing of them is ended: each comes back when it is heard" in told
    alone = only(change(world, replicas=(replica(0), replica(1), replica(2)), signals=(silent, named[0])), "leave_out")
    assert ". 2 replicas continue without it; nothing of it is ended: it comes back when it is heard" in alone.sentence


def slow(**fields: object) -> JobSnapshot:
    """Rank 0 of replica 1 holds each step up by half a second, and a device is free."""
    told = {"score": "relative", "cause": "compute", "late_s": 0.5, "relative": 0.4, "epoch": 2}
    found = signal(
        "straggler", replica=1, incarnation=1, rank=0, node_id="n1", device_index=0, value=0.4, threshold=0.7,
        evidence=told,
    )  # fmt: skip
    world = {"signals": (found,), "job": job(spec=spec(training=Training(steps=10_000, global_batch=6)))}
    return running(**(world | fields))


@pytest.mark.parametrize("spares", [0, 1])
def test_nothing_is_ended_for_slowness_while_the_control_plane_does_not_see(spares: int) -> None:
    lasted = tuple(change(found, seen_s=NOW_S - 4000.0, renewed_s=NOW_S - 9.0) for found in slow().signals)
    assert only(slow(spares=spares, signals=lasted), "straggler").actions
    decision = only(slow(spares=spares, signals=lasted, blind=True), "straggler")
    assert (decision.choice, decision.actions) == ("tell", ())
    assert "the control plane does not see all of it now" in str(decision.alternatives)


def risky(**fields: object) -> JobSnapshot:
    """Device 0 under replica 0 is likely to fail."""
    alarm = signal("device_risk", node_id="n0", device_index=0, value=0.7, threshold=0.3, evidence={"part_ecc": 0.7})
    return running(signals=(alarm,), **fields)


def test_one_silent_node_with_many_devices_keeps_no_other_device_from_an_emergency_save() -> None:
    world = risky(fleet_devices=64, suspect_devices=16, suspect_nodes=("n9",))
    assert not is_correlated_failure(world, CONFIG)
    assert only(world, "device_risk").choice == "save"
    wide = change(world, suspect_nodes=("n8", "n9"))
    decision = only(wide, "device_risk")
    assert (decision.choice, decision.reason_code) == ("skip", "fleet_cap")
    assert "16 of 64 devices look bad at once" in decision.sentence
    assert "alarm" not in decision.sentence, "most of them are not heard, and raise no alarm"


@pytest.mark.parametrize("fields", [{"acts_last_window": 20}, {"suspect_devices": 50}])
def test_a_person_is_asked_about_hardware_by_what_holds_us_back(fields: dict[str, int]) -> None:
    lost = signal("xid", node_id="n3", device_index=0, value=79.0)
    decision = only(running(signals=(lost,), **fields), "device_fault")
    assert decision.choice == "hold"
    assert "devices look bad" not in decision.sentence
    assert "too much at once in the fleet; a person decides" in decision.sentence


@pytest.mark.parametrize(
    ("reading", "value", "words"),
    [
        ("row_remap_failure", 1.0, "A row that could not be remapped"),
        ("row_remap_pending", 1.0, "A row that waits to be remapped"),
        ("ecc_uncorrected", 1.0, "1 uncorrectable memory error"),
        ("ecc_uncorrected", 3.0, "3 uncorrectable memory errors"),
        ("retired_pages", 60.0, "60 retired memory pages"),
    ],
)
def test_a_reading_past_its_limit_reads_as_english(reading: str, value: float, words: str) -> None:
    told = {"reading": reading, "uuid": "u"}
    found = signal("device_reading", node_id="n3", device_index=0, value=value, threshold=1.0, evidence=told)
    decision = only(running(signals=(found,)), "device_fault")
    assert decision.title == f"{words} on device 0 of node-3"
    assert decision.sentence.startswith(f"{words} (limit 1) on device 0 of node-3: ")
    assert READINGS[reading].is_in(decision.sentence), "when the state is over, the device is known by it"


def test_a_risky_device_without_a_job_is_told_with_the_parts_of_its_score() -> None:
    (alarm,) = risky().signals
    (decision,) = decide_fleet(FleetSnapshot(now_s=NOW_S, signals=(alarm,), nodes=(node(0),)), CONFIG)
    assert decision.evidence["part_ecc"] == 0.7
