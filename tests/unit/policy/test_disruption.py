"""The disruption budget by kind of act, hour and failure domain, and when its breaker opens and closes."""

import pytest

from controlplane.policy.breaker import RULE as BREAKER
from controlplane.policy.config import PolicyConfig
from controlplane.policy.decide import decide
from controlplane.policy.disruption import exceeds, is_held, why_held
from controlplane.policy.disruption_counts import Act, ActKind, DisruptionCounts, OpenedBreaker
from controlplane.policy.fleet import FleetSnapshot, decide_fleet
from controlplane.policy.plan import CloseBreaker, OpenBreaker, SetNodeState, StopReplica
from tests.unit.policy.builders import CONFIG, NOW_S, actions, change, node, only, running, signal

OVERDUE = signal("rank_overdue", replica=1, incarnation=1, rank=0, value=70.0, threshold=60.0)
EXITED = signal("rank_exit", 2, replica=2, incarnation=1, rank=0, value=-9.0)
OPEN = OpenedBreaker(id="brk_1", code="evict", segment="", opened_s=NOW_S - 900.0, sentence="100 replicas were ended")


def counted(**acts: int) -> DisruptionCounts:
    return DisruptionCounts(acts=acts)


def fleet(**fields) -> FleetSnapshot:
    return FleetSnapshot(**({"now_s": NOW_S, "nodes": (node(1), node(2)), "fleet_devices": 100} | fields))


@pytest.mark.parametrize(("kind", "cap"), [("evict", 100), ("restart", 60), ("cordon", 40), ("save", 100)])
def test_a_cap_that_is_met_holds_the_next_act_and_opens_the_breaker(kind, cap):
    below, met = counted(**{kind: cap - 1}), counted(**{kind: cap})
    assert only(running(signals=(OVERDUE,), disruption=below), "replica_failure").choice != "hold"
    held = only(running(signals=(OVERDUE,), disruption=met), "replica_failure")
    assert (held.choice, held.actions) == ("hold", ())
    assert f"{cap} " in held.title and "until a person closes the breaker" in held.sentence
    assert decide_fleet(fleet(disruption=below), CONFIG) == ()
    (opened,) = decide_fleet(fleet(disruption=met), CONFIG)
    (act,) = opened.actions
    assert isinstance(act, OpenBreaker) and (act.code, act.segment) == (kind, "")
    assert opened.evidence[f"acts_{kind}"] == cap


def test_an_open_breaker_holds_what_is_not_proved_and_lets_a_proved_death_pass():
    world = running(signals=(OVERDUE, EXITED), disruption=DisruptionCounts(breakers=(OPEN,)))
    held, done = decide(world, CONFIG).decisions[-1], decide(world, CONFIG).decisions[0]
    stopped = {stop.replica for d in decide(world, CONFIG).decisions for stop in actions(d, StopReplica)}
    assert stopped == {2} and done.rule == held.rule == "replica_failure"
    assert "the breaker is open: 100 replicas were ended" in held.sentence


def test_an_open_breaker_takes_no_node_out_however_well_its_fault_is_proved():
    xid = signal("xid", node_id="n2", device_index=1, value=79.0, of_fleet=True)
    free = decide_fleet(fleet(signals=(xid,)), CONFIG)
    assert any(actions(decision, SetNodeState) for decision in free)
    held = decide_fleet(fleet(signals=(xid,), disruption=DisruptionCounts(breakers=(OPEN,))), CONFIG)
    assert [decision.choice for decision in held] == ["hold"]


def test_a_pass_over_many_faults_takes_no_more_nodes_out_than_the_cap_leaves():
    nodes = tuple(node(number) for number in range(6))
    xids = tuple(
        signal("xid", number, node_id=f"n{number}", device_index=0, value=79.0, of_fleet=True) for number in range(6)
    )
    world = fleet(nodes=nodes, signals=xids, disruption=counted(cordon=1))
    choices = [decision.choice for decision in decide_fleet(world, PolicyConfig(max_cordons=3))]
    assert choices.count("cordon") == 2 and choices.count("hold") == 4


def test_a_failure_domains_cap_holds_what_touches_it_alone():
    world = fleet(
        segments={"n1": "a", "n2": "b"},
        disruption=DisruptionCounts(of_segments={"a": {"evict": 50}, "b": {"evict": 49}}),
    )
    assert is_held(world, CONFIG, ("n1",)) and not is_held(world, CONFIG, ("n2",)) and not is_held(world, CONFIG)
    (opened,) = decide_fleet(world, CONFIG)
    assert opened.actions == (
        OpenBreaker(
            code="evict",
            segment="a",
            sentence="50 replicas were ended of a within an hour, as many as `max_evictions_of_segment` allows",
        ),
    )
    standing = change(OPEN, segment="a")
    later = change(world, disruption=DisruptionCounts(breakers=(standing,), opened={"a": 1}))
    assert decide_fleet(later, CONFIG) == () and is_held(later, CONFIG, ("n1",))


def test_only_a_correlated_failures_breaker_closes_by_itself_and_only_when_its_findings_are_over():
    mine = change(OPEN, code="correlated")
    over = DisruptionCounts(breakers=(mine,), opened={"": 1})
    (closed,) = decide_fleet(fleet(disruption=over), CONFIG)
    assert closed.rule == BREAKER and closed.actions == (CloseBreaker(breaker="brk_1"),)
    stands = change(over, still_devices=11, still_nodes=("n1", "n2"))
    assert decide_fleet(fleet(disruption=stands), CONFIG) == ()
    assert decide_fleet(fleet(disruption=over, suspect_devices=11), CONFIG) == ()
    assert decide_fleet(fleet(disruption=DisruptionCounts(breakers=(OPEN,))), CONFIG) == (), (
        "a cap's waits for a person"
    )


def test_each_opening_has_a_key_of_its_own():
    first, again = (
        decide_fleet(fleet(disruption=DisruptionCounts(acts={"evict": 100}, opened={"": n} if n else {})), CONFIG)[0]
        for n in (0, 1)
    )
    assert first.key != again.key


def test_an_emergency_save_is_held_by_its_own_cap_alone():
    risky = signal("device_risk", node_id="n1", device_index=0, value=0.8, threshold=0.3)
    saves = change(OPEN, code="save", sentence="100 emergency saves were requested")
    assert (
        only(running(signals=(risky,), disruption=DisruptionCounts(breakers=(OPEN,))), "device_risk").choice == "save"
    )
    for fact in (DisruptionCounts(breakers=(saves,)), counted(save=100)):
        held = only(running(signals=(risky,), disruption=fact), "device_risk")
        assert (held.choice, held.reason_code) == ("skip", "saves_held")


def test_the_weightiest_reason_is_named():
    world = fleet(acts_last_window=20, suspect_devices=50, disruption=DisruptionCounts(breakers=(OPEN,)))
    assert why_held(world, CONFIG).code == "burst"
    assert why_held(change(world, acts_last_window=0), CONFIG).code == "correlated"
    assert why_held(change(world, acts_last_window=0, suspect_devices=0), CONFIG).sentence.startswith("the breaker is")


def test_what_is_proved_is_charged_and_exceeds_nothing_alone():
    config = PolicyConfig(max_evictions=2)
    proved, doubted = Act(kind=ActKind.EVICT, proved=True), Act(kind=ActKind.EVICT)
    assert exceeds((proved, proved, proved), counted(), config) == ""
    assert exceeds((proved, proved, doubted), counted(), config)
    assert exceeds((doubted,), counted(evict=1), config) == "" and exceeds((doubted,), counted(evict=2), config)
