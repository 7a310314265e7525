"""Every rung is in the ledger, and a spent budget starts nothing."""

import pytest

from controlplane.policy.budget import Entry, Rung, entries, spent
from controlplane.policy.decide import decide
from controlplane.policy.plan import ORDERED, AnnounceView, EndAttempt, PlaceAttempt, SetJobState
from controlplane.policy.snapshot import BudgetFact, JobSnapshot
from controlplane.protocol.spec import Budget, Resiliency, Timeouts
from controlplane.protocol.states import EXIT_PEER_LOST, AttemptState, JobState, NodeState, ReplicaState
from tests.unit.policy.builders import (
    CONFIG,
    NOW_S,
    action,
    actions,
    attempt,
    change,
    job,
    node,
    only,
    pending,
    running,
    signal,
    spec,
    with_replica,
)

SPENT = BudgetFact(restarts_total=1000)


def ledger(snapshot: JobSnapshot) -> tuple[Entry, ...]:
    return tuple(entry for decision in decide(snapshot, CONFIG).decisions for entry in entries(decision, snapshot))


def killed(**fields: object) -> JobSnapshot:
    """Rank 0 of replica 1 was killed."""
    return running(signals=(signal("rank_exit", replica=1, incarnation=1, rank=0, value=-9.0),), **fields)


def blip() -> JobSnapshot:
    """The exchange failed and nobody is dead."""
    return running(signals=(signal("outer_error", replica=0, incarnation=1, rank=0),))


def empty_slot(**fields: object) -> JobSnapshot:
    """Replica 1 was evicted a while ago and its devices are free."""
    world = with_replica(running(**fields), 1, state=ReplicaState.EVICTED, stopped=True, state_since_s=NOW_S - 500.0)
    return change(world, nodes=tuple(node(int(n.id[1:]), free=True) if n.id == "n1" else n for n in world.nodes))


def all_dead(**fields: object) -> JobSnapshot:
    dead = tuple(signal("rank_exit", number, replica=number, incarnation=1, rank=0, value=-9.0) for number in range(3))
    return running(signals=dead, **fields)


def test_a_replica_that_starts_elsewhere_is_charged_once_with_the_view_change_of_the_others():
    found = ledger(running(signals=(signal("device_lost", node_id="n1", device_index=0),)))
    assert [(entry.rung, entry.charged) for entry in found] == [(Rung.REPLICA, True), (Rung.VIEW_CHANGE, False)]
    assert (found[0].replica, found[0].incarnation) == (1, 2)


def test_a_replica_that_starts_again_where_it_was_is_the_rung_of_its_ranks():
    found = ledger(killed())
    assert [(entry.rung, entry.charged) for entry in found] == [(Rung.RANK, True), (Rung.VIEW_CHANGE, False)]


def test_survivors_that_build_new_groups_and_nothing_else_are_a_view_change():
    assert ledger(blip()) == (Entry(rung=Rung.VIEW_CHANGE, charged=True),)


def test_a_new_attempt_is_one_entry_however_many_replicas_it_has():
    assert [(entry.rung, entry.charged) for entry in ledger(all_dead())] == [(Rung.ATTEMPT, True)]


def test_the_first_attempt_and_its_first_view_are_no_restarts():
    assert ledger(pending()) == ()


def ordered(index: int = 1, world: JobSnapshot | None = None, **fields: object) -> JobSnapshot:
    """A person had a replica evicted; its processes are gone."""
    return with_replica(world or running(**fields), index, ordered_out="ada: slow", exited_ranks=2)


def test_an_eviction_a_person_ordered_is_written_down_and_not_charged():
    assert [(entry.rung, entry.charged) for entry in ledger(ordered())] == [
        (Rung.RANK, False),
        (Rung.VIEW_CHANGE, False),
    ]
    assert "leaves as requested (ada: slow)" in only(ordered(), "ordered_eviction").sentence


def test_the_start_that_an_ordered_eviction_had_to_wait_for_is_not_charged_either():
    world = with_replica(empty_slot(), 1, ordered_out="ada: slow")
    assert [(entry.rung, entry.charged) for entry in ledger(world)] == [(Rung.RANK, False)]


def test_a_failure_beside_an_ordered_eviction_is_charged():
    dead = signal("rank_exit", replica=2, incarnation=1, rank=0, value=-9.0)
    found = {(entry.replica, entry.charged) for entry in ledger(ordered(signals=(dead,)))}
    assert found == {(1, False), (2, True), (None, False)}


def test_a_replica_that_crashed_before_the_order_came_is_a_failure():
    assert only(ordered(world=killed()), "replica_failure").reason_code == "rank_exit"


def test_ranks_of_another_node_that_die_of_their_killed_peers_are_part_of_the_order():
    world = ordered(world=killed())
    seen_s = world.signals[0].seen_s
    assert only(with_replica(world, 1, ordered_s=seen_s - 1.0), "ordered_eviction").reason_code == ORDERED
    assert only(with_replica(world, 1, ordered_s=seen_s + 1.0), "replica_failure").reason_code == "rank_exit"


def test_an_order_is_carried_out_from_a_spent_budget():
    assert only(ordered(budget=SPENT), "ordered_eviction").choice == "evict_and_replace"
    assert only(with_replica(empty_slot(budget=SPENT), 1, ordered_out="ada: slow"), "replace").choice == "start"


def test_an_ordered_eviction_that_takes_a_new_attempt_is_not_charged():
    few = job(spec=spec(min_replicas=3, resiliency=Resiliency(timeouts=Timeouts(setup_s=60.0))), committed_step=2)
    world = ordered(job=few, budget=SPENT)
    stale = change(world, replicas=tuple(change(r, failed_starts=int(r.index == 1)) for r in world.replicas))
    assert [(entry.rung, entry.charged) for entry in ledger(stale)] == [(Rung.ATTEMPT, False)]


def test_an_ordered_eviction_that_has_to_wait_for_devices_is_not_charged_and_not_failed_by_a_spent_budget():
    few = job(spec=spec(min_replicas=3))
    away = tuple(node(index, free=False, state=NodeState.CORDONED) for index in range(3))
    waits = only(ordered(job=few, budget=SPENT, nodes=away), "restart")
    assert (waits.choice, waits.reason_code, action(waits, SetJobState).to) == ("queue", ORDERED, JobState.PENDING)
    queued = pending(
        attempt=attempt(state=AttemptState.ENDED, end_code=ORDERED), job=job(state=JobState.PENDING), budget=SPENT
    )
    assert only(queued, "lifecycle").choice == "place"
    assert [(entry.rung, entry.charged) for entry in ledger(queued)] == [(Rung.ATTEMPT, False)]


@pytest.mark.parametrize("budget", [BudgetFact(), SPENT])
def test_an_order_beside_a_cause_that_ends_every_replica_alike_does_not_hide_it(budget):
    nan = signal("nan_loss", replica=0, incarnation=1, rank=0)
    decision = only(ordered(signals=(nan,), budget=budget), "restart")
    assert (decision.choice, decision.reason_code) == (
        ("fail", "budget_spent") if budget is SPENT else ("restart", "nan_loss")
    )
    assert all(entry.charged for entry in entries(decision, ordered()))


def test_a_job_of_which_nobody_is_left_fails_once_the_budget_is_spent():
    world = all_dead(budget=SPENT)
    decision = only(world, "restart")
    assert (decision.choice, decision.reason_code) == ("fail", "budget_spent")
    assert "1000 restarts are all its budget allows" in decision.sentence
    assert action(decision, SetJobState).to is JobState.FAILED
    assert actions(decision, EndAttempt)
    assert ledger(world) == ()


def test_an_undisturbed_job_trains_on_with_a_spent_budget():
    assert decide(running(budget=SPENT), CONFIG).decisions == ()


def test_an_empty_slot_is_not_filled_from_a_spent_budget_and_the_page_says_why():
    decision = only(empty_slot(budget=SPENT), "replace")
    assert (decision.choice, decision.reason_code, decision.actions) == ("give_up", "budget_spent", ())


def test_a_job_that_waits_for_devices_is_not_placed_again_from_a_spent_budget():
    world = pending(
        attempt=attempt(state=AttemptState.ENDED),
        job=job(state=JobState.PENDING),
        budget=BudgetFact(no_progress_cycles=3),
    )
    decision = only(world, "lifecycle")
    assert (decision.choice, decision.reason_code) == ("failed", "budget_spent")
    assert "no newer checkpoint" in decision.sentence
    assert not actions(decision, PlaceAttempt)
    assert not actions(decision, AnnounceView)


# --- limits on some kinds of restarts -------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "ledger_", "words"),
    [
        ("max_attempt_restarts", BudgetFact(attempt_restarts=2), "2 restarts of the whole job are all its budget"),
        ("restarts_per_attempt", BudgetFact(restarts_in_attempt=2), "2 restarts of replicas within one attempt"),
        ("program_restarts_per_window", BudgetFact(program_in_window=2), "the program is at fault"),
    ],
)
def test_a_kind_of_restarts_has_a_limit_of_its_own(limit: str, ledger_: BudgetFact, words: str):
    usual = job()
    strict = change(usual, spec=spec(resiliency=Resiliency(budget=Budget(**{limit: 2}))))
    world = all_dead(job=strict, budget=ledger_)
    assert words in spent(world)
    decision = only(world, "restart")
    assert decision.choice == "fail" and words in decision.sentence
    assert spent(all_dead(job=usual, budget=ledger_)) == ""
    more = change(usual, spec=spec(resiliency=Resiliency(budget=Budget(max_restarts=9000, restarts_per_window=9000))))
    many = BudgetFact(attempt_restarts=5000, restarts_in_attempt=5000, program_in_window=5000)
    assert spent(all_dead(job=more, budget=many)) == "", "without a limit of its own the limit on all counts alone"
    kept = killed(job=strict, budget=ledger_)
    assert only(kept, "replica_failure").choice == "evict", "the others train on"


def ended(code: float, **evidence: object):
    return signal("rank_exit", replica=1, incarnation=1, rank=0, node_id="n1", value=code, evidence=evidence)


@pytest.mark.parametrize(
    ("code", "program"),
    [
        (70.0, True),
        (1.0, True),
        (-11.0, True),
        (-6.0, True),
        (-9.0, False),
        (247.0, False),
        (201.0, False),
        (float(EXIT_PEER_LOST), False),
    ],
)
def test_a_restart_is_the_programs_where_its_exit_says_so(code: float, program: bool):
    found = ledger(running(signals=(ended(code),)))
    assert found and {entry.program for entry in found} == {program}


def test_a_program_that_ends_on_a_device_with_a_finding_is_not_at_fault():
    broken = signal("device_lost", 2, node_id="n1", device_index=0)
    found = [entry for entry in ledger(running(signals=(ended(70.0), broken))) if entry.charged]
    assert found and not any(entry.program for entry in found)


def test_what_the_node_knows_of_an_end_counts_more_than_its_code():
    found = ledger(running(signals=(ended(-6.0, cause="oom_killer"),)))
    assert found and not any(entry.program for entry in found)
