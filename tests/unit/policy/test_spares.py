"""Warm spares are a desired state that is kept."""

import pytest

from controlplane.policy.decide import decide
from controlplane.policy.plan import KeepSpares, StartReplica
from controlplane.protocol.spec import Resources, Spares
from controlplane.protocol.states import JobState, NodeState
from tests.unit.policy.builders import (
    CONFIG,
    NOW_S,
    action,
    attempt,
    change,
    decisions,
    job,
    node,
    only,
    running,
    shrunk,
    spec,
)
from tests.unit.policy.test_give_replicas import without

RULE = "spares"
WANTS = job(spec=spec(spares=2))


def spare(index: int = 3, **fields):
    """A free node reserved for the job, warmed a while ago."""
    return change(node(index), **({"reserved_for": "job_1", "warm": True, "warmed_s": NOW_S - 60.0} | fields))


def world(*extra, **fields):
    base = running(spares=0, **({"job": WANTS} | fields))
    return change(base, nodes=(*base.nodes, *extra))


def test_with_all_that_is_asked_for_warm_nothing_is_done():
    assert decisions(world(spare())) == ()


def test_a_used_spare_is_replaced_and_the_new_one_warmed():
    """Replica 1 trains on what was the spare; its old node is free again."""
    kept = action(only(world(node(4)), RULE), KeepSpares)
    assert (kept.reserve, kept.warm, kept.release) == (("n4",), ("n4",), ())


def test_a_spare_goes_cold_after_hours_and_is_warmed_before():
    asked = {"warmed_s": NOW_S - CONFIG.warm_again_s, "warm_asked_s": NOW_S - CONFIG.warm_again_s}
    decision = only(world(spare(**asked)), RULE)
    assert action(decision, KeepSpares) == KeepSpares(warm=("n3",))
    assert "warmed again" in decision.sentence
    assert CONFIG.warm_again_s < 14_400.0, "before agents let it go"


def test_the_moment_of_the_next_warming_is_a_moment_of_the_next_pass():
    warmed_s = NOW_S - CONFIG.warm_again_s + 20.0
    plan = decide(world(spare(warmed_s=warmed_s)), CONFIG)
    assert plan.next_pass_s is not None and plan.next_pass_s <= NOW_S + 20.0


@pytest.mark.parametrize(("asked_s_ago", "again"), [(10.0, False), (301.0, True)])
def test_one_that_did_not_come_up_is_asked_again_after_a_while(asked_s_ago, again):
    silent = spare(warm=False, warmed_s=None, warm_asked_s=NOW_S - asked_s_ago)
    assert bool(decisions(world(silent), rule=RULE)) is again


@pytest.mark.parametrize(
    "bad",
    [{"state": NodeState.CORDONED}, {"connected": False}, {"unhealthy": "its store is full"}],
    ids=["cordoned", "out of reach", "unfit"],
)
def test_a_spare_that_is_no_use_is_given_up_for_another(bad):
    kept = action(only(world(spare(**bad), node(4)), RULE), KeepSpares)
    assert (kept.reserve, kept.release, kept.warm) == (("n4",), ("n3",), ("n4",))


def test_one_that_nothing_can_replace_is_kept_and_the_lack_is_told_once():
    decision = only(world(spare(connected=False)), RULE)
    assert (decision.choice, decision.reason_code, decision.actions) == ("short", "spares_short", ())


def test_what_is_free_is_for_a_missing_replica_first():
    lacking = shrunk(spares=1, job_state=JobState.RUNNING, failed_starts=3, state_since_s=NOW_S)
    assert decisions(change(lacking, job=change(lacking.job, spec=WANTS.spec)), rule=RULE) == ()


def test_while_replicas_of_it_do_not_run_for_now_nothing_more_is_reserved():
    """Replica 2 has left for an urgent job, which takes the node that is free now, or else replica 2 does."""
    yields = without(job=WANTS, queue=None)
    assert action(only(change(yields, attempt=attempt()), "replace"), StartReplica).replica == 2
    assert decisions(yields) == ()
    (grows,) = decisions(without(job=WANTS))
    assert grows.rule == "grow"


def test_nothing_is_reserved_on_nodes_of_the_job_or_of_another():
    other = change(node(4), reserved_for="job_2")
    decision = only(world(other), RULE)
    assert decision.actions == ()


def test_cold_spares_are_reserved_and_not_warmed():
    wish = Resources(nodes=3, gpus_per_node=2, min_replicas=1, spares=Spares(gpus=2, warm=False))
    cold = job(spec=change(WANTS.spec, resources=wish))
    assert action(only(world(node(4), job=cold), RULE), KeepSpares) == KeepSpares(reserve=("n4",))


def test_a_thousand_spares_are_kept_in_one_decision():
    many = job(spec=spec(spares=2000))
    extra = tuple(node(index) for index in range(4, 1104))
    kept = action(only(world(*extra, job=many), RULE), KeepSpares)
    assert len(kept.reserve) == 1000 == len(kept.warm)
