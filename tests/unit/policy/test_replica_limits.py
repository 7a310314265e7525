"""Time limits of views, starts and catch-ups; what the governor and the mode hold back."""

import pytest

from controlplane.policy.config import PolicyConfig
from controlplane.policy.decide import decide
from controlplane.policy.plan import (
    AnnounceView,
    StartReplica,
    StopReplica,
)
from controlplane.policy.snapshot import LearnedTimes
from controlplane.protocol.membership import Donor
from controlplane.protocol.spec import Resiliency, Timeouts
from controlplane.protocol.states import Mode, ReplicaState

from .builders import (
    CONFIG,
    CONTRIBUTOR,
    JOINER,
    NOW_S,
    action,
    actions,
    change,
    decisions,
    flush,
    job,
    only,
    replica,
    running,
    signal,
    spec,
    view_of,
    with_replica,
)

RULE = "replica_failure"


def exited(index: int = 1, number: int = 1, **fields):
    return signal("rank_exit", number, replica=index, incarnation=1, rank=0, value=137.0, **fields)


def silent(index: int = 1, number: int = 1, **fields):
    return signal("node_silent", number, node_id=f"n{index}", value=3.0, threshold=2.0, **fields)


def others_wait(snapshot, index: int = 1):
    rows = tuple(change(row, waiting=row.index != index) for row in snapshot.replicas)
    return change(snapshot, replicas=rows)


def overdue(index: int = 1, number: int = 1, **fields):
    return signal("rank_overdue", number, replica=index, incarnation=1, rank=1, value=7.0, threshold=5.0, **fields)


# --- view protocol -----------------------------------------------------------------------


def unflushed(age_s: float, **fields):
    return running(install=None, view_since_s=NOW_S - age_s, **fields)


def flushed_but(index: int):
    return tuple(flush(i, rank) for i in range(3) if i != index for rank in range(2))


@pytest.mark.parametrize(("age_s", "evicted"), [(4.0, False), (6.0, False), (31.0, True)])
def test_a_member_that_can_be_heard_has_long_to_flush(age_s, evicted):
    assert bool(decisions(unflushed(age_s, flushes=flushed_but(1)), rule=RULE)) is evicted


@pytest.mark.parametrize(("age_s", "evicted"), [(4.0, False), (6.0, True)])
def test_a_silent_member_has_little_time_to_flush(age_s, evicted):
    found = decisions(unflushed(age_s, flushes=flushed_but(1), signals=(silent(),)), rule="leave_out")
    assert [decision.reason_code for decision in found] == (["unflushed"] if evicted else [])


@pytest.mark.parametrize(("silent_s", "evicted"), [(None, False), (7.0, False), (11.0, True)])
def test_a_closed_connection_is_a_reason_to_wait_until_the_lease_has_run_out(silent_s, evicted):
    late = unflushed(6.0, flushes=flushed_but(1))
    nodes = tuple(change(n, connected=False, silent_s=silent_s) if n.id == "n1" else n for n in late.nodes)
    assert bool(decisions(change(late, nodes=nodes), rule=RULE)) is evicted


def test_a_replica_that_fell_behind_is_left_out():
    late = tuple(flush(1, rank, committed_step=48) for rank in range(2))
    decision = only(unflushed(1.0, flushes=flushed_but(1) + late), RULE)
    assert decision.reason_code == "behind"


# --- setup and catch-up -------------------------------------------------------------------


def forming(age_s: float, joined: int = 1):
    snapshot = running(view=view_of((0, 1, CONTRIBUTOR), (2, 1, CONTRIBUTOR)))
    return with_replica(
        snapshot,
        1,
        state=ReplicaState.FORMING,
        state_since_s=NOW_S - age_s,
        joined_ranks=joined,
        contributing=False,
    )


@pytest.mark.parametrize(("age_s", "evicted"), [(599.0, False), (601.0, True)])
def test_setup_has_a_time_limit(age_s, evicted):
    found = decisions(forming(age_s), rule=RULE)
    assert [decision.reason_code for decision in found] == (["setup_timeout"] if evicted else [])


@pytest.mark.parametrize(("age_s", "evicted"), [(601.0, False), (749.0, False), (751.0, True)])
def test_a_setup_that_was_learned_to_last_long_is_given_that_long(age_s, evicted):
    slow = spec(resiliency=Resiliency(timeouts=Timeouts(setup_s="auto")))
    world = change(forming(age_s), job=job(spec=slow), learned=LearnedTimes(setup_limit_s=750.0))
    assert bool(decisions(world, rule=RULE)) is evicted
    assert evicted or decide(world, CONFIG).next_pass_s == NOW_S - age_s + 750.0


def test_a_start_that_fails_needs_no_new_view():
    decision = only(with_replica(forming(5.0), 1, exited_ranks=1), RULE)
    assert actions(decision, AnnounceView) == ()


def test_a_slot_that_failed_its_last_start_is_not_started_at_once():
    decision = only(with_replica(forming(5.0), 1, exited_ranks=1, failed_starts=1), RULE)
    assert actions(decision, StartReplica) == ()


@pytest.mark.parametrize(("age_s", "evicted"), [(599.0, False), (601.0, True)])
def test_catching_up_has_a_time_limit(age_s, evicted):
    view = view_of((0, 1, CONTRIBUTOR), (1, 1, JOINER), (2, 1, CONTRIBUTOR), donors=(Donor(1, 0),))
    snapshot = with_replica(
        running(view=view), 1, state=ReplicaState.CATCHING_UP, contributing=False, state_since_s=NOW_S - age_s
    )
    assert bool(decisions(snapshot, rule=RULE)) is evicted


def test_a_joiner_gets_another_donor_when_its_own_dies():
    view = view_of((0, 1, CONTRIBUTOR), (1, 1, JOINER), (2, 1, CONTRIBUTOR), donors=(Donor(1, 0),))
    snapshot = running(view=view, signals=(exited(0),))
    snapshot = with_replica(snapshot, 1, state=ReplicaState.CATCHING_UP, contributing=False)
    following = action(only(snapshot, RULE), AnnounceView).view
    assert following.donors == (Donor(1, 2),)


# --- governor and modes ---------------------------------------------------------------------


def test_a_storm_holds_what_rests_on_silence():
    snapshot = change(running(signals=(overdue(),)), suspect_devices=11)
    decision = only(snapshot, RULE)
    assert decision.choice == "hold"
    assert decision.actions == ()


@pytest.mark.parametrize(
    ("fields", "title"),
    [
        ({"suspect_devices": 11}, "Automation is stopped: 11 of 100 devices look bad at once"),
        ({"acts_last_window": 20}, "Automation is stopped: 20 destructive acts within the window"),
    ],
)
def test_stopped_automation_is_called_by_what_stopped_it_and_names_whom_a_finding_names(fields, title):
    concluded = others_wait(unflushed(31.0, flushes=flushed_but(1)))
    decision = only(change(concluded, **fields), RULE)
    assert (decision.choice, decision.title, decision.signal_ids) == ("hold", title, ())
    assert decision.sentence.startswith(f"{title}. Nothing is evicted")
    assert "eplica" not in decision.title + decision.sentence, "no finding names one"
    told = only(change(running(signals=(overdue(),)), **fields), RULE)
    assert told.title == title
    assert told.sentence.endswith("Findings are open about replica 1.")
    away = unflushed(6.0, flushes=flushed_but(2), signals=(silent(2),))
    assert only(change(away, **fields), RULE).sentence.endswith("Findings are open about node-2.")


def test_a_storm_does_not_hold_a_proved_death():
    snapshot = change(running(signals=(exited(),)), suspect_devices=11)
    assert only(snapshot, RULE).choice == "evict_and_replace"


def test_too_many_acts_hold_the_next_one():
    snapshot = change(running(signals=(overdue(),)), acts_last_window=20)
    assert only(snapshot, RULE).choice == "hold"


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.RECOMMEND])
def test_the_jobs_mode_is_on_the_decision(mode):
    careful = job(spec=spec(resiliency=Resiliency(mode=mode)))
    assert only(running(job=careful, signals=(exited(),)), RULE).mode is mode


def test_a_rules_ceiling_is_obeyed():
    config = PolicyConfig(rule_modes={RULE: Mode.RECOMMEND})
    assert only(running(signals=(exited(),)), RULE, config).mode is Mode.RECOMMEND


def test_a_cancelled_job_is_not_mended():
    assert decisions(running(job=job(cancel_requested=True), signals=(exited(),)), rule=RULE) == ()


def complaints(*replicas, **evidence):
    return tuple(
        signal("outer_error", n, replica=n, incarnation=1, seen_s=NOW_S - 2.0, evidence=evidence) for n in replicas
    )


def test_who_an_exchange_error_names_is_ended_when_new_views_do_not_help():
    decision = only(running(reissued_views=3, signals=complaints(0, suspect_replica=1)), RULE)
    assert (decision.reason_code, decision.key) == ("unreachable", "1:evict:1.1")
    assert "the others name it" in decision.sentence


def accusations(*pairs):
    """Each names the other."""
    return tuple(
        signal("outer_error", n, replica=who, incarnation=1, seen_s=NOW_S - 2.0, evidence={"suspect_replica": named})
        for n, (who, named) in enumerate(pairs)
    )


@pytest.mark.parametrize(
    ("pairs", "out"),
    [
        (((0, 1), (1, 0), (2, 0)), 0),
        (((0, 1), (0, 1), (1, 0), (2, 0)), 0),
        (((1, 1), (1, 0), (2, 0)), 0),
        (((0, 1), (1, 2)), 1),
        (((0, 7), (2, 1)), 1),
    ],
    ids=["most accusers", "one of many ranks", "none about itself", "not the word of the accused", "a member only"],
)
def test_where_errors_name_different_ones_most_accusers_decide(pairs, out):
    decision = only(running(reissued_views=3, signals=accusations(*pairs)), RULE)
    assert (decision.reason_code, decision.key) == ("unreachable", f"1:evict:{out}.1")


@pytest.mark.parametrize("pairs", [((1, 2), (2, 1)), ((0, 1), (1, 2), (2, 0))])
def test_where_as_many_name_each_it_is_a_guess_and_is_left_out_first(pairs):
    snapshot = running(reissued_views=3, signals=accusations(*pairs))
    assert decisions(snapshot, rule=RULE) == ()
    decision = only(snapshot, "leave_out")
    (action,) = [a for a in decision.actions if isinstance(a, AnnounceView)]
    named = sorted({named for _, named in pairs})
    assert [member.replica for member in action.view.members] == [n for n in range(3) if n != named[0]]
    assert decision.evidence["named"] is False
    assert f"replicas {', '.join(map(str, named))} are named as often" in decision.sentence


@pytest.mark.parametrize(
    ("reporters", "out", "words"),
    [((0, 2), 1, "it alone did not report it"), ((0, 1, 2), 0, "nobody is named: that it is this one is a guess")],
)
def test_who_is_only_inferred_is_left_out_first_and_nothing_of_it_is_ended(reporters, out, words):
    snapshot = running(reissued_views=3, signals=complaints(*reporters))
    assert decisions(snapshot, rule=RULE) == ()
    decision = only(snapshot, "leave_out")
    (action,) = [a for a in decision.actions if isinstance(a, AnnounceView)]
    assert [member.replica for member in action.view.members] == [n for n in range(3) if n != out]
    assert not [a for a in decision.actions if isinstance(a, StopReplica)]
    assert (decision.reason_code, decision.evidence["named"]) == ("unreachable", False)
    assert words in decision.sentence
    assert "is ended if the exchange then fails with it again" in decision.sentence


@pytest.mark.parametrize(("ago_s", "ended"), [(600.0, True), (601.0, False)])
def test_when_the_exchange_fails_with_it_again_within_ten_minutes_it_is_ended(ago_s, ended):
    rows = (replica(0, times_out=1, out_s=NOW_S - ago_s), replica(1), replica(2))
    snapshot = running(replicas=rows, reissued_views=3, signals=complaints(0, 1, 2))
    assert bool(decisions(snapshot, rule=RULE)) is ended
    assert bool(decisions(snapshot, rule="leave_out")) is not ended


def test_where_the_job_cannot_go_on_with_one_less_the_guess_is_ended_as_it_must_be():
    snapshot = running(job=job(spec=spec(min_replicas=3)), reissued_views=3, signals=complaints(0, 1, 2))
    decision = only(snapshot, RULE)
    assert (decision.reason_code, decision.key) == ("unreachable", "1:evict:0.1")
    assert "that it is this one is a guess" in decision.sentence


def test_no_free_device_means_fewer_replicas():
    found = signal("device_lost", node_id="n1", device_index=0)
    assert only(running(spares=0, signals=(found,)), RULE).choice == "evict"


def test_replicas_of_one_node_are_judged_by_their_own_devices():
    rows = (replica(0), replica(1), replica(2, home=1))
    found = signal("device_lost", node_id="n1", device_index=5)
    assert decisions(running(replicas=rows, signals=(found,)), rule=RULE) == ()
