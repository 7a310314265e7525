"""When the attempt cannot go on."""

import pytest

from controlplane.policy.plan import EndAttempt, PlaceAttempt, ResolveIncident, SetJobState, SetNodeState, SettleSignals
from controlplane.policy.snapshot import BudgetFact
from controlplane.protocol.spec import Budget, Model, Parallelism, Resiliency, Timeouts
from controlplane.protocol.states import AttemptState, CheckpointState, JobState, NodeState, ReplicaState

from .builders import (
    CONTRIBUTOR,
    JOINER,
    NOW_S,
    action,
    actions,
    attempt,
    change,
    checkpoint,
    decisions,
    flush,
    install_of,
    job,
    node,
    only,
    replica,
    running,
    signal,
    spec,
    starting,
    view_of,
)

RULE = "restart"


def all_dead(**fields):
    dead = tuple(signal("rank_exit", i + 1, replica=i, incarnation=1, rank=0, value=1.0) for i in range(3))
    return running(signals=dead, **fields)


def test_no_contributor_left_restarts_from_the_newest_trusted_checkpoint():
    found = (checkpoint(40), checkpoint(50, CheckpointState.CORRUPT))
    decision = only(all_dead(checkpoints=found), RULE)
    order = action(decision, PlaceAttempt)
    assert (order.number, order.epoch, order.resume_step) == (2, 3, 40)
    assert action(decision, EndAttempt).number == 1
    assert action(decision, SetJobState).to is JobState.STARTING


def test_without_a_checkpoint_it_starts_over():
    decision = only(all_dead(), RULE)
    assert action(decision, PlaceAttempt).resume_path is None
    assert "from step 0" in decision.sentence


def test_below_min_replicas_restarts():
    dead = signal("rank_exit", replica=1, incarnation=1, rank=0, value=1.0)
    gone = signal("device_lost", 2, node_id="n1", device_index=0)
    decision = only(running(spares=0, job=job(spec=spec(min_replicas=3)), signals=(dead, gone)), RULE)
    assert decision.reason_code == "below_min_replicas"


def test_a_restart_evicts_nobody_besides():
    assert decisions(all_dead(), rule="replica_failure") == ()


def test_a_joiner_cannot_carry_the_job_alone():
    view = view_of((0, 1, CONTRIBUTOR), (1, 1, JOINER))
    rows = (replica(0), replica(1, state=ReplicaState.CATCHING_UP, contributing=False))
    dead = signal("rank_exit", replica=0, incarnation=1, rank=0, value=1.0)
    assert only(running(view=view, replicas=rows, signals=(dead,)), RULE).reason_code == "no_contributor"


def test_members_that_all_joined_without_state_restart():
    view = view_of((0, 1, CONTRIBUTOR), (1, 1, CONTRIBUTOR), (2, 1, CONTRIBUTOR))
    said = tuple(flush(i, rank, role=JOINER) for i in range(3) for rank in range(2))
    assert only(running(view=view, install=None, flushes=said), RULE).reason_code == "no_contributor"


def lost_nodes(*indices: int):
    return tuple(node(i, free=False, connected=False) if i in indices else node(i, free=False) for i in range(3))


def test_fewer_devices_keep_tp_and_pp_and_shrink_dp():
    order = action(only(all_dead(nodes=lost_nodes(2)), RULE), PlaceAttempt)
    assert (order.layout.tp, order.layout.pp, order.layout.dp) == (1, 2, 2)


def test_a_restart_takes_no_device_that_a_dead_rank_has_released_and_another_job_holds():
    replicas = tuple(replica(index, exited_ranks=1, released=(1,)) for index in range(3))
    decision = only(running(spares=0, replicas=replicas), RULE)
    placed = {
        (p.node_id, p.device_index) for placements in action(decision, PlaceAttempt).placements for p in placements
    }
    assert {index for _, index in placed} == {0}


def test_a_replica_that_fits_nowhere_is_re_planned():
    wide = spec(parallelism=Parallelism(tp=2, pp=2, dp=1), model=Model(heads=4, layers=4))
    rows = (replica(0, world_size=4),)
    dead = signal("rank_exit", replica=0, incarnation=1, rank=0, value=1.0)
    nodes = (node(0, free=False), node(1, free=False, connected=False))
    snapshot = running(
        job=job(spec=wide), replicas=rows, view=view_of((0, 1, CONTRIBUTOR)), nodes=nodes, signals=(dead,)
    )
    order = action(only(snapshot, RULE), PlaceAttempt)
    assert order.layout.tp * order.layout.pp == 2


def test_re_planning_needs_the_jobs_leave():
    fixed = spec(parallelism=Parallelism(tp=2, pp=2, dp=1), resiliency=Resiliency(allow_relayout=False))
    dead = signal("rank_exit", replica=0, incarnation=1, rank=0, value=1.0)
    snapshot = running(
        job=job(spec=fixed),
        replicas=(replica(0, world_size=4),),
        view=view_of((0, 1, CONTRIBUTOR)),
        nodes=(node(0, free=False),),
        signals=(dead,),
    )
    decision = only(snapshot, RULE)
    assert decision.choice == "queue"
    assert action(decision, SetJobState).to is JobState.PENDING
    assert "does not allow another layout" in decision.sentence


def test_no_device_at_all_goes_back_to_the_queue():
    decision = only(all_dead(nodes=lost_nodes(0, 1, 2)), RULE)
    assert action(decision, SetJobState).to is JobState.PENDING
    assert actions(decision, PlaceAttempt) == ()


@pytest.mark.parametrize(
    ("ledger", "words"),
    [
        (BudgetFact(no_progress_cycles=3), "made no progress"),
        (BudgetFact(restarts_total=1000), "1000 restarts"),
        (BudgetFact(restarts_in_window=30), "within 3600 s"),
    ],
)
def test_a_spent_budget_fails_the_job_with_the_reason(ledger, words):
    decision = only(all_dead(budget=ledger), RULE)
    assert action(decision, SetJobState).to is JobState.FAILED
    assert words in decision.sentence
    assert decision.reason_code == "budget_spent"
    assert actions(decision, ResolveIncident)


@pytest.mark.parametrize("ledger", [BudgetFact(no_progress_cycles=2), BudgetFact(restarts_total=999)])
def test_an_unspent_budget_restarts(ledger):
    assert only(all_dead(budget=ledger), RULE).choice == "restart"


def test_the_budget_is_the_jobs_own():
    strict = job(spec=spec(resiliency=Resiliency(budget=Budget(max_restarts=1))))
    assert only(all_dead(job=strict, budget=BudgetFact(restarts_total=1)), RULE).choice == "fail"


def test_exit_93_is_not_requeued():
    asks = tuple(signal("rank_exit", i + 1, replica=i, incarnation=1, rank=0, value=93.0) for i in range(3))
    decision = only(running(signals=asks), RULE)
    assert action(decision, SetJobState).to is JobState.FAILED
    assert (decision.choice, decision.reason_code) == ("fail", "do_not_requeue")


def test_a_loss_that_is_no_number_restarts():
    assert only(running(signals=(signal("nan_loss"),)), RULE).reason_code == "nan_loss"


def test_all_starts_lost_restart_the_attempt():
    dead = tuple(signal("rank_exit", i + 1, replica=i, incarnation=1, rank=0, value=1.0) for i in range(3))
    assert only(starting(signals=dead), RULE).reason_code == "all_lost"


def too_few(*, since_s: float = 120.0, min_replicas: int = 2, resiliency: Resiliency | None = None, **fields):
    """Started `since_s` ago: replica 0 is up, 1 and 2 are gone with their nodes."""
    spread = spec(min_replicas=min_replicas, resiliency=resiliency or Resiliency(timeouts=Timeouts(setup_s=60.0)))
    rows = tuple(
        replica(i, state=state, contributing=False, in_view=False, stopped=i > 0)
        for i, state in enumerate((ReplicaState.FORMING, ReplicaState.EVICTED, ReplicaState.EVICTED))
    )
    base = {
        "job": job(spec=spread, state=JobState.STARTING, epoch=1, committed_step=0),
        "attempt": attempt(state=AttemptState.STARTING, started_s=NOW_S - since_s),
        "replicas": rows,
        "nodes": lost_nodes(1, 2),
    }
    return starting(**(base | fields))


def test_too_few_that_came_up_start_over_in_a_layout_that_fits_their_devices():
    decision = only(too_few(), RULE)
    order = action(decision, PlaceAttempt)
    assert (decision.reason_code, order.layout.pp, order.layout.dp) == ("below_min_replicas", 1, 2)


def test_too_few_that_came_up_go_back_to_the_queue_where_the_layout_is_fixed():
    fixed = Resiliency(allow_relayout=False, timeouts=Timeouts(setup_s=60.0))
    decision = only(too_few(resiliency=fixed), RULE)
    assert (decision.choice, action(decision, SetJobState).to) == ("queue", JobState.PENDING)
    assert "1 of 3 replicas came up, 2 must be" in decision.sentence


@pytest.mark.parametrize(
    "fields",
    [
        {"since_s": 59.0},
        {"min_replicas": 1},
        {"nodes": (*lost_nodes(1, 2), node(3))},
    ],
    ids=["its set-up time is not over", "enough came up", "another can still start"],
)
def test_a_start_goes_on_while(fields):
    assert decisions(too_few(**fields), rule=RULE) == ()


def test_a_dead_device_is_cordoned_and_not_used_again():
    found = tuple(signal("device_lost", i + 1, node_id=f"n{i}", device_index=0) for i in range(3))
    nodes = tuple(node(i, free=False) for i in range(3)) + tuple(node(i) for i in range(3, 6))
    decision = only(running(nodes=nodes, signals=found), RULE)
    placed = {p.node_id for placements in action(decision, PlaceAttempt).placements for p in placements}
    assert placed == {"n3", "n4", "n5"}
    assert {step.to for step in actions(decision, SetNodeState)} == {NodeState.CORDONED}


def test_what_was_said_about_the_old_attempt_is_settled():
    assert set(action(only(all_dead(), RULE), SettleSignals).signal_ids) == {"sig_1", "sig_2", "sig_3"}


def test_a_restart_names_its_alternatives():
    others = {other.action: other.why_not for other in only(all_dead(), RULE).alternatives}
    assert others["evict"] == "no replica with the newest state would be left"


def test_nothing_restarts_a_job_that_is_done():
    assert decisions(change(all_dead(), job=job(finished=True)), rule=RULE) == ()


def test_silence_during_blindness_restarts_nothing():
    silent = tuple(signal("node_silent", i + 1, node_id=f"n{i}", seen_s=NOW_S - 60.0) for i in range(3))
    assert decisions(running(blind=True, signals=silent), rule=RULE) == ()


def test_the_last_replica_is_looked_at_before_its_hang_restarts_the_job():
    stuck = signal("rank_overdue", replica=0, incarnation=1, rank=1, value=30.0, threshold=5.0)
    view = view_of((0, 1, CONTRIBUTOR))
    alone = running(replicas=(replica(0),), view=view, install=install_of(view), signals=(stuck,))
    kinds = [type(step).__name__ for step in only(alone, RULE).actions]
    assert kinds.index("GatherStacks") < kinds.index("EndAttempt")
