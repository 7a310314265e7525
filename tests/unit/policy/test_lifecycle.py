"""From pending to the first view, and the orderly ends."""

import msgspec
import pytest

from controlplane.policy.config import PolicyConfig
from controlplane.policy.deadlines import next_pass_s
from controlplane.policy.plan import (
    AnnounceView,
    EndAttempt,
    PlaceAttempt,
    ResolveIncident,
    SendInstall,
    SetJobState,
    SetReplicaState,
)
from controlplane.policy.queue.place import QueuePlace, Turn
from controlplane.protocol.membership import MemberRole
from controlplane.protocol.spec import Resiliency, Timeouts
from controlplane.protocol.states import AttemptState, CheckpointState, JobState, NodeState, ReplicaState

from .builders import (
    NOW_S,
    action,
    actions,
    attempt,
    change,
    checkpoint,
    decisions,
    flush,
    job,
    node,
    only,
    pending,
    running,
    signal,
    spec,
    starting,
    with_replica,
)

RULE = "lifecycle"


def test_a_pending_job_is_placed_whole():
    decision = only(pending(), RULE)
    order = action(decision, PlaceAttempt)
    assert (order.number, order.epoch, len(order.placements)) == (1, 1, 3)
    assert action(decision, SetJobState).to is JobState.STARTING


def test_each_replica_stays_on_one_node():
    order = action(only(pending(), RULE), PlaceAttempt)
    assert all(len({p.node_id for p in placements}) == 1 for placements in order.placements)


def test_no_device_is_given_twice():
    order = action(only(pending(), RULE), PlaceAttempt)
    slots = [(p.node_id, p.device_index) for placements in order.placements for p in placements]
    assert len(slots) == len(set(slots)) == 6


def test_equal_worlds_are_placed_alike():
    assert decisions(pending()) == decisions(pending())


def test_spares_are_reserved_beside_the_job():
    order = action(only(pending(job=job(state=JobState.PENDING, epoch=0, spec=spec(spares=2))), RULE), PlaceAttempt)
    used = {p.node_id for placements in order.placements for p in placements}
    assert len(order.spare_nodes) == 1
    assert not used & set(order.spare_nodes)


def test_a_job_waits_for_its_whole_gang_and_says_what_is_missing():
    decision = only(pending(nodes=tuple(node(i) for i in range(2))), RULE)
    assert decision.choice == "wait"
    assert "6 devices, 4 are free" in decision.sentence
    assert decision.actions == ()


def test_a_first_attempt_waits_for_its_spares():
    snapshot = pending(job=job(state=JobState.PENDING, epoch=0, spec=spec(spares=8)))
    assert "8 spare devices" in only(snapshot, RULE).sentence


@pytest.mark.parametrize("state", [NodeState.CORDONED, NodeState.QUARANTINED])
def test_nodes_out_of_service_take_no_work(state):
    nodes = tuple(node(i, state=state) for i in range(4))
    assert only(pending(nodes=nodes), RULE).choice == "wait"


def test_a_disconnected_node_takes_no_work():
    assert only(pending(nodes=tuple(node(i, connected=False) for i in range(4))), RULE).choice == "wait"


def test_degraded_nodes_are_used_last():
    nodes = (node(0, state=NodeState.DEGRADED), *(node(i) for i in range(1, 4)))
    order = action(only(pending(nodes=nodes), RULE), PlaceAttempt)
    assert "n0" not in {p.node_id for placements in order.placements for p in placements}


def test_the_newest_trusted_checkpoint_is_resumed():
    found = (checkpoint(40, CheckpointState.VERIFIED), checkpoint(50, CheckpointState.CORRUPT), checkpoint(30))
    decision = only(pending(checkpoints=found), RULE)
    assert action(decision, PlaceAttempt).resume_path == "/ck/40"
    assert "passed over as corrupt: step 50" in decision.sentence


def test_a_later_attempt_takes_what_is_left():
    ended = attempt(state=AttemptState.ENDED)
    order = action(only(pending(attempt=ended, nodes=(node(0), node(1))), RULE), PlaceAttempt)
    assert (order.number, order.layout.dp) == (2, 2)


def test_a_job_that_starts_is_not_placed_again():
    assert decisions(pending(job=job(state=JobState.STARTING)), rule=RULE) == ()


# --- first view ----------------------------------------------------------------


def test_when_all_ranks_have_joined_all_contribute():
    view = action(only(starting(), RULE), AnnounceView).view
    assert view.epoch == 2
    assert {member.role for member in view.members} == {MemberRole.CONTRIBUTOR}
    assert view.donors == ()


def test_one_missing_rank_holds_the_first_view_back():
    assert decisions(with_replica(starting(), 2, joined_ranks=1), rule=RULE) == ()


def test_when_setup_time_is_over_those_who_came_begin():
    late = attempt(state=AttemptState.STARTING, started_s=NOW_S - 700.0)
    snapshot = with_replica(starting(attempt=late), 2, joined_ranks=1, state_since_s=NOW_S - 10.0)
    decision = only(snapshot, RULE)
    assert [member.replica for member in action(decision, AnnounceView).view.members] == [0, 1]
    assert decision.reason_code == "setup_time_over"


def test_fewer_than_min_replicas_do_not_begin():
    late = attempt(state=AttemptState.STARTING, started_s=NOW_S - 700.0)
    wants_three = job(state=JobState.STARTING, epoch=1, spec=spec(min_replicas=3))
    snapshot = with_replica(starting(attempt=late, job=wants_three), 2, joined_ranks=1, state_since_s=NOW_S)
    assert decisions(snapshot, rule=RULE) == ()


def test_an_empty_slot_that_can_be_started_is_waited_for():
    snapshot = with_replica(starting(), 2, state=ReplicaState.EVICTED, stopped=True)
    assert decisions(snapshot, rule=RULE) == ()


def test_an_empty_slot_without_devices_is_not_waited_for():
    nodes = tuple(node(i, free=False) for i in range(2))
    snapshot = with_replica(starting(nodes=nodes), 2, state=ReplicaState.EVICTED, stopped=True)
    view = action(only(snapshot, RULE), AnnounceView).view
    assert [member.replica for member in view.members] == [0, 1]


def test_a_view_of_an_older_attempt_is_history():
    snapshot = starting(attempt=attempt(number=2, state=AttemptState.STARTING, started_s=NOW_S))
    snapshot = change(snapshot, view=running().view, install=running().install)
    assert only(snapshot, RULE).choice == "first_view"


# --- install ---------------------------------------------------------------------


def all_flushed(**fields):
    return tuple(flush(index, rank, **fields) for index in range(3) for rank in range(2))


def test_the_last_flush_brings_the_install():
    decision = only(running(install=None, flushes=all_flushed()), "membership_install")
    assert action(decision, SendInstall).install.step == 50
    assert decision.routine


def test_one_missing_flush_holds_the_install_back():
    assert decisions(running(install=None, view_since_s=NOW_S, flushes=all_flushed()[:-1])) == ()


def test_flushes_of_another_epoch_do_not_count():
    assert decisions(running(install=None, view_since_s=NOW_S, flushes=all_flushed(epoch=1))) == ()


def test_the_first_install_makes_job_and_replicas_run():
    snapshot = starting(view=running().view, flushes=all_flushed(committed_step=0), view_since_s=NOW_S)
    decision = only(snapshot, "membership_install")
    assert action(decision, SetJobState).to is JobState.RUNNING
    assert {step.to for step in actions(decision, SetReplicaState)} == {ReplicaState.ACTIVE}


def test_an_installed_view_is_not_installed_again():
    assert decisions(running(flushes=all_flushed())) == ()


# --- ends --------------------------------------------------------------------------


def test_cancelling_ends_the_attempt_with_its_grace():
    decision = only(running(job=job(cancel_requested=True)), RULE)
    assert action(decision, EndAttempt).grace_s == 60.0
    assert action(decision, SetJobState).to is JobState.CANCELLED


def test_cancelling_a_pending_job_ends_no_attempt():
    snapshot = pending(job=job(state=JobState.PENDING, cancel_requested=True))
    assert actions(only(snapshot, RULE), EndAttempt) == ()


def test_all_steps_committed_is_success():
    decision = only(running(job=job(finished=True)), RULE)
    assert action(decision, SetJobState).to is JobState.SUCCEEDED
    assert actions(decision, ResolveIncident)


def test_the_end_is_not_disturbed_by_exits():
    dead = signal("rank_exit", replica=1, incarnation=1, value=9.0)
    found = decisions(running(job=job(finished=True), signals=(dead,)))
    assert [decision.choice for decision in found] == ["succeeded"]


def test_the_end_waits_for_a_replica_that_computes_steps_again_and_no_longer():
    dead = signal("rank_exit", replica=1, incarnation=1, value=9.0)
    held = running(job=job(finished=True, end_held_until_s=NOW_S + 5.0), signals=(dead,))
    assert decisions(held) == ()
    assert next_pass_s(held, PolicyConfig(), changed=False) <= NOW_S + 5.0
    over = running(job=job(finished=True, end_held_until_s=NOW_S), signals=(dead,))
    assert [decision.choice for decision in decisions(over)] == ["succeeded"]
    cancelled = running(job=job(finished=True, end_held_until_s=NOW_S + 5.0, cancel_requested=True))
    assert action(only(cancelled, RULE), SetJobState).to is JobState.CANCELLED


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED])
def test_nothing_is_decided_about_an_ended_job(state):
    assert decisions(running(job=job(state=state, cancel_requested=True))) == ()


def test_setup_limit_is_the_jobs_own():
    quick = spec(resiliency=Resiliency(timeouts=Timeouts(setup_s=1.0)))
    snapshot = starting(job=job(state=JobState.STARTING, epoch=1, spec=quick))
    assert only(with_replica(snapshot, 1, joined_ranks=0), "replica_failure").reason_code == "setup_timeout"


@pytest.mark.parametrize(
    ("model", "fits"),
    [
        ("NVIDIA H100 80GB HBM3", True),
        ("nvidia h100", True),
        ("NVIDIA GH100", False),
        ("NVIDIA A100-SXM4", False),
        ("", False),
    ],
)
def test_only_devices_of_the_type_that_was_asked_for_are_taken(model: str, fits: bool) -> None:
    snapshot = pending()
    nodes = tuple(
        msgspec.structs.replace(n, devices=tuple(msgspec.structs.replace(d, model=model) for d in n.devices))
        for n in snapshot.nodes
    )
    wanted = msgspec.structs.replace(snapshot.job.spec.resources, gpu_type="H100")
    typed = change(snapshot, job=change(snapshot.job, spec=change(snapshot.job.spec, resources=wanted)), nodes=nodes)
    decision = only(typed, RULE)
    assert (decision.choice == "place") is fits
    if not fits:
        assert "0 are free (of type H100)" in decision.sentence


def queued(place: int, *, may_start: bool) -> QueuePlace:
    """Of seven that wait."""
    sentence = "" if may_start else "Waits in the queue: job a (priority 900) is ahead of it."
    turn = Turn.BESIDE if may_start else Turn.BEHIND
    return QueuePlace(place=place, waiting=7, turn=turn, may_start=may_start, sentence=sentence, behind="a")


def test_a_job_whose_turn_it_is_not_waits_though_devices_are_free_and_says_behind_whom():
    decision = only(change(pending(), queue=queued(3, may_start=False)), RULE)
    assert (decision.choice, decision.reason_code, decision.actions) == ("wait", "queued", ())
    assert decision.sentence == "Waits in the queue: job a (priority 900) is ahead of it."
    assert (decision.evidence["behind"], decision.evidence["place"]) == ("a", 3)


def test_a_job_whose_turn_it_is_is_placed_as_if_it_were_alone():
    snapshot = pending()
    assert only(change(snapshot, queue=queued(3, may_start=True)), RULE) == only(snapshot, RULE)


def test_that_others_leave_the_queue_is_no_new_decision():
    keys = {only(change(pending(), queue=queued(place, may_start=False)), RULE).key for place in (2, 3)}
    assert len(keys) == 1


def test_only_the_first_in_line_and_those_with_room_look_for_devices_by_themselves():
    config, snapshot = PolicyConfig(), pending()
    cases = ((1, False), (99, True), (2, False))
    due = [next_pass_s(change(snapshot, queue=queued(place, may_start=go)), config, False) for place, go in cases]
    assert due == [NOW_S + config.capacity_retry_s, NOW_S + config.capacity_retry_s, None]
    lost = signal("node_silent", node_id="n9")
    assert next_pass_s(change(snapshot, queue=queued(2, may_start=False), signals=(lost,)), config, False) is None
