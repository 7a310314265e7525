"""One cause that many share comes before individual blame; a plan has one voice; limits know each other."""

import pytest

from controlplane.policy.failures import find_failures
from controlplane.policy.plan import EndAttempt, PlaceAttempt, RequestCheckpoint, SetNodeState, SettleSignals
from controlplane.policy.snapshot import LearnedTimes, SaveFact
from controlplane.protocol.spec import Parallelism, Resiliency, Timeouts
from controlplane.protocol.states import JobState, Section
from tests.unit.policy.builders import (
    CONFIG,
    CONTRIBUTOR,
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
    view_of,
    with_replica,
)
from tests.unit.policy.test_one_of_many import fleet


def late(index: int, *, seen_s: float = NOW_S - 20.0, section: str = "checkpointing", rank: int = 0):
    return signal(
        "rank_overdue",
        100 * index + rank + 1,
        replica=index,
        incarnation=1,
        rank=rank,
        seen_s=seen_s,
        value=421.0,
        threshold=420.0,
        evidence={"section": section, "phase": "saving", "silent_s": 0.2},
    )


# --- a stall of what they share -----------------------------------------------------------------


@pytest.mark.parametrize("replicas", [3, 1000])
def test_a_stall_of_shared_storage_ends_nobody_and_is_told_as_what_it_is(replicas):
    world = fleet(replicas, signals=tuple(late(index) for index in range(replicas)))
    assert decisions(world, rule="restart") == () == decisions(world, rule="replica_failure")
    decision = only(world, "common_stall")
    assert (decision.choice, decision.reason_code, decision.actions) == ("hold", "storage_stall", ())
    assert f"{replicas} of {replicas} replicas are late in saving at once" in decision.sentence
    assert "restarts from its checkpoint" in decision.sentence


def test_most_of_them_are_enough_for_a_common_cause():
    world = running(signals=(late(0), late(2)))
    assert decisions(world, rule="replica_failure") == ()
    assert only(world, "common_stall").evidence["late"] == 2


def test_the_first_one_late_in_a_save_waits_for_the_others_to_be_late_too():
    assert decisions(running(signals=(late(1, seen_s=NOW_S - 2.0),))) == ()
    alone = only(running(signals=(late(1, seen_s=NOW_S - 6.0),)), "replica_failure")
    assert alone.reason_code == "hang"


@pytest.mark.parametrize("replicas", [3, 1000])
def test_where_one_replica_saves_for_all_its_ranks_late_at_once_are_the_storages_fault_first(replicas):
    """The others wait for it in their exchange, so nobody else can be late there. To end it would only
    give the stalled storage to the next one."""
    world = fleet(replicas, signals=(late(0), late(0, rank=1)))
    assert decisions(world, rule="replica_failure") == () == decisions(world, rule="restart")
    decision = only(world, "common_stall")
    assert (decision.choice, decision.reason_code, decision.actions) == ("hold", "storage_stall", ())
    assert "2 of 2 ranks that save are late in saving at once" in decision.sentence
    assert "if it lasts 5 min their replica is replaced" in decision.sentence


def gone_on(finding, *, since_s: float = NOW_S - 0.5):
    """Its rank began another phase after it was found late."""
    return change(finding, evidence={**finding.evidence, "phase_since_s": since_s})


@pytest.mark.parametrize(
    "before",
    [(late(0), late(0, rank=1)), (late(0), late(1), late(2))],
    ids=["one replica saves for all", "all save"],
)
def test_who_comes_out_of_a_stall_last_is_not_to_blame_for_it(before):
    """The first one's finding is refuted already; it stays open until the others had a moment."""
    *over, last = before
    world = running(signals=(*map(gone_on, over), last))
    assert decisions(world, rule="replica_failure") == () == decisions(world, rule="void")
    everybody = running(signals=tuple(map(gone_on, before)))
    assert decisions(everybody, rule="replica_failure") == ()
    assert len(only(everybody, "void").actions[0].signal_ids) == len(before)


def test_one_that_stays_behind_when_the_stall_is_over_is_late_by_itself():
    world = running(signals=(gone_on(late(0), since_s=NOW_S - 6.0), late(0, rank=1)))
    assert only(world, "replica_failure").reason_code == "hang"
    assert only(world, "void")


def test_a_stall_is_told_once_though_the_others_exchange_gives_up_meanwhile():
    """They wait for the saver for as long as an exchange may take; then the same members get a new view."""
    signals = (late(0), late(0, rank=1))
    before = running(signals=signals, view=view_of((0, 1, CONTRIBUTOR), (1, 1, CONTRIBUTOR), (2, 1, CONTRIBUTOR)))
    after = change(before, view=change(before.view, epoch=before.view.epoch + 1))
    assert only(before, "common_stall").key == only(after, "common_stall").key


def test_a_saver_that_is_late_for_longer_than_the_storage_is_given_is_replaced_by_another():
    """Its node alone may have lost the storage."""
    world = running(signals=tuple(late(0, rank=rank, seen_s=NOW_S - 301.0) for rank in (0, 1)))
    assert decisions(world, rule="common_stall") == ()
    assert only(world, "replica_failure").reason_code == "hang"


def test_a_rank_that_hangs_alone_in_a_step_is_blamed_at_once():
    world = running(signals=(late(1, seen_s=NOW_S - 0.1, section="step"),))
    assert only(world, "replica_failure").reason_code == "hang"


def at_work(world, *indexes: int):
    """These are at their step, by the word of their agents; the others wait for them in the exchange."""
    members = tuple(
        change(each, working_since_s=NOW_S - 30.0, waiting=each.index not in indexes) for each in world.replicas
    )
    return change(world, replicas=members)


@pytest.mark.parametrize("replicas", [3, 24, 1000])
def test_the_first_one_late_in_a_step_at_which_another_still_is_waits_for_it_to_be_late_too(replicas):
    """A network or an input that all share stands still, and their limits are over one after the other."""
    first = fleet(replicas, signals=(late(1, seen_s=NOW_S - 1.0, section="step"),))
    assert decisions(at_work(first, *range(replicas)), rule="replica_failure") == ()
    most = range(replicas // 2 + 1)
    assert decisions(at_work(first, *most), rule="replica_failure") == (), "more than half are at it"
    assert only(at_work(first, 1), "replica_failure").reason_code == "hang", "all others wait for it"
    assert decisions(at_work(first, 1, 2), rule="replica_failure") == (), "one other is at it"
    later = fleet(replicas, signals=(late(1, seen_s=NOW_S - CONFIG.common_grace_s, section="step"),))
    assert only(at_work(later, *range(replicas)), "replica_failure").reason_code == "hang", "it stayed alone"
    all_late = fleet(replicas, signals=tuple(late(n, seen_s=NOW_S - 1.0, section="step") for n in most))
    assert only(at_work(all_late, *most), "common_stall").choice == "hold"


def test_while_the_storage_stands_still_a_step_that_lasts_is_no_hang_of_its_own():
    """The saver's ranks are all late in their save; another one's step waits for the same storage."""
    stalled = (late(0), late(0, rank=1))
    waits = late(1, section="step", seen_s=NOW_S - 2.0)
    assert [f.replica.index for f in find_failures(running(signals=(waits,)), CONFIG)] == [1]
    assert find_failures(running(signals=(*stalled, waits)), CONFIG) == ()
    assert only(running(signals=(*stalled, waits)), "common_stall").reason_code == "storage_stall"
    stopped = change(waits, evidence={**waits.evidence, "silent_s": 9.0})
    assert [f.replica.index for f in find_failures(running(signals=(*stalled, stopped)), CONFIG)] == [1]
    dead = signal("rank_exit", 900, replica=1, incarnation=1, rank=0, value=137.0)
    assert [f.kind for f in find_failures(running(signals=(*stalled, waits, dead)), CONFIG)] == ["rank_exit"]


def test_the_only_replica_of_a_job_is_not_restarted_for_a_stalled_save_either():
    alone = running(
        replicas=(replica(0),),
        view=view_of((0, 1, CONTRIBUTOR)),
        attempt=attempt(replicas=1),
        signals=(late(0), late(0, rank=1)),
    )
    assert decisions(alone, rule="restart") == ()
    assert "2 of 2 ranks are late in saving at once" in only(alone, "common_stall").sentence


def test_a_stall_that_outlasts_its_limit_restarts_once():
    world = running(signals=tuple(late(index, seen_s=NOW_S - 1801.0) for index in range(3)))
    assert decisions(world, rule="common_stall") == ()
    assert actions(only(world, "restart"), PlaceAttempt)


def test_a_death_in_the_middle_of_a_stall_is_acted_on():
    dead = signal("rank_exit", 9, replica=1, incarnation=1, rank=0, value=-9.0)
    world = running(signals=(late(0), late(2), dead))
    decision = only(world, "replica_failure")
    assert decision.reason_code == "rank_exit" and decisions(world, rule="restart") == ()
    assert only(world, "common_stall").evidence["of"] == 3


# --- the last holder saves first ------------------------------------------------------------------


def alone(*, mild: bool = True, **fields):
    """One replica computes; its device asks for a reset (XID 48) half a second ago."""
    kind = {"kind": "xid", "value": 48.0} if mild else {"kind": "device_lost", "value": 0.0}
    fault = signal(kind["kind"], node_id="n0", device_index=0, value=kind["value"], seen_s=NOW_S - 0.5)
    base = {
        "replicas": (replica(0),),
        "view": view_of((0, 1, CONTRIBUTOR)),
        "attempt": attempt(replicas=1, layout=Parallelism(tp=1, pp=2, dp=1)),
        "job": job(spec=spec(nodes=1), progressed_s=NOW_S - 0.4),
        "checkpoints": (checkpoint(20),),
        "signals": (fault,),
    }
    return running(**(base | fields))


def test_the_last_holder_saves_before_it_is_ended_for_a_device_that_still_computes():
    decision = only(alone(), "restart")
    assert decision.choice == "save_first" and not actions(decision, EndAttempt)
    assert action(decision, RequestCheckpoint).kind == "emergency"
    assert "30 steps since the last checkpoint" in decision.sentence


@pytest.mark.parametrize(
    "world",
    [
        alone(saves=SaveFact(last_committed_s=NOW_S - 0.1)),
        alone(checkpoints=(checkpoint(50),)),
        alone(job=job(spec=spec(nodes=1), progressed_s=NOW_S - 9.0)),
        alone(mild=False),
        alone(now_s=NOW_S + 60.0, job=job(spec=spec(nodes=1), progressed_s=NOW_S + 59.9)),
    ],
    ids=["saved", "nothing newer", "the steps stopped", "the device is gone", "the save's time is over"],
)
def test_then_or_where_there_is_no_time_the_attempt_restarts(world):
    assert actions(only(world, "restart"), EndAttempt)


def test_where_others_hold_the_state_nothing_waits_for_a_save():
    fault = signal("xid", node_id="n1", device_index=0, value=48.0, seen_s=NOW_S - 0.5)
    world = running(signals=(fault,), job=job(progressed_s=NOW_S - 0.4))
    assert only(world, "replica_failure").choice == "evict_and_replace"


def test_the_save_may_take_what_its_saves_take():
    decision = only(alone(learned=LearnedTimes(save_p95_s=100.0)), "restart")
    assert decision.evidence["limit_s"] == 152.0


# --- one plan, one voice ----------------------------------------------------------------------------


def storm(**fields):
    fault = signal("xid", node_id="n1", device_index=0, value=79.0)
    return running(**({"signals": (fault,), "suspect_devices": 50} | fields))


def test_in_a_storm_a_plan_never_both_cordons_and_leaves_it_to_a_person():
    found = decisions(storm())
    assert not [move for decision in found for move in actions(decision, SetNodeState)]
    assert [decision.rule for decision in found] == ["replica_failure"]
    assert "a person decides about the nodes, none is cordoned" in found[0].sentence


def test_the_device_stays_suspected_until_the_storm_is_over_and_is_judged_then():
    decision = only(storm(), "replica_failure")
    assert not any("sig_1" in settle.signal_ids for settle in actions(decision, SettleSignals))
    after = with_replica(storm(suspect_devices=0), 1, placements=replica(1, home=3).placements)
    assert actions(only(after, "device_fault"), SetNodeState)


def test_without_a_storm_the_node_is_cordoned_and_nobody_is_asked():
    words = " ".join(decision.sentence for decision in decisions(storm(suspect_devices=0)))
    assert "a person decides" not in words


def test_a_device_that_nobody_of_us_runs_on_is_left_to_a_person_in_a_storm():
    fault = signal("xid", node_id="n3", device_index=0, value=79.0)
    assert only(storm(signals=(fault,)), "device_fault").choice == "hold"


# --- limits that know each other -----------------------------------------------------------------------


def flushing(age_s: float, *, saving: bool, checkpoint_s: float | str = 420.0):
    """Everybody but replica 1 has flushed the view announced `age_s` ago."""
    view = view_of(*((index, 1, CONTRIBUTOR) for index in range(3)))
    said = tuple(flush(index, rank) for index in (0, 2) for rank in range(2))
    patient = spec(resiliency=Resiliency(timeouts=Timeouts(checkpoint_s=checkpoint_s)))
    world = running(view=view, install=None, flushes=said, view_since_s=NOW_S - age_s, job=job(spec=patient))
    return with_replica(world, 1, saving=saving)


@pytest.mark.parametrize("checkpoint_s", [420.0, "auto"])
def test_a_member_that_saves_for_31_s_is_not_left_out_by_the_flush_limit(checkpoint_s):
    assert find_failures(flushing(31.0, saving=True, checkpoint_s=checkpoint_s), CONFIG) == ()
    assert [f.kind for f in find_failures(flushing(421.0, saving=True), CONFIG)] == ["unflushed"]


def test_one_that_neither_flushes_nor_saves_is_left_out_as_before():
    assert [f.kind for f in find_failures(flushing(31.0, saving=False), CONFIG)] == ["unflushed"]


def test_the_agent_of_a_member_that_saves_too_long_is_believed():
    world = flushing(31.0, saving=True)
    told = change(late(1), value=421.0)
    assert find_failures(change(world, signals=(told,)), CONFIG)
    assert (told.evidence["section"], world.job.state) == (Section.CHECKPOINTING, JobState.RUNNING)
    assert install_of(world.view).contributors == (0, 1, 2) and node(1).connected
