"""What people said of a recommendation decides whether a pass that still proposes it carries it out."""

import pytest

from controlplane.policy.consent import approvers_needed
from controlplane.policy.decide import decide
from controlplane.policy.plan import Decision, StopReplica
from controlplane.policy.recommendation import Recommendation
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol.spec import Resiliency
from controlplane.protocol.states import Mode, Verdict

from .builders import CONFIG, NOW_S, actions, change, job, only, running, spec
from .test_replica_limits import exited

RULE = "replica_failure"


def lost(*, act_after_s: float = 0.0, **fields: object) -> JobSnapshot:
    """A rank of replica 1 has ended, and the job's policy only recommends."""
    careful = spec(resiliency=Resiliency(mode=Mode.RECOMMEND, act_after_s=act_after_s))
    return running(job=job(spec=careful), signals=(exited(),), **fields)


def said(
    verdict: Verdict, *approvers: str, since_s: float = 30.0, act_after_s: float = 0.0, **fields: object
) -> JobSnapshot:
    """As `lost`, recommended `since_s` ago, with what people said of it."""
    world = lost(act_after_s=act_after_s, **fields)
    key = only(world, RULE).key
    fact = Recommendation(key=key, at_s=NOW_S - since_s, verdict=verdict, approvers=approvers)
    return change(world, recommended=(fact,))


def test_what_nobody_approved_is_recorded_alone() -> None:
    for world in (lost(), said(Verdict.NONE), said(Verdict.HELD), said(Verdict.REJECTED)):
        assert only(world, RULE).mode is Mode.RECOMMEND


def test_what_was_approved_is_carried_out_and_says_by_whom() -> None:
    decision = only(said(Verdict.APPROVED, "user:ada"), RULE)
    assert decision.mode is Mode.ENFORCE and actions(decision, StopReplica)
    assert decision.sentence.endswith("Approved by user:ada.")
    assert decision.evidence["consent"] == "Approved by user:ada."


def test_an_approval_is_of_that_one_recommendation() -> None:
    world = said(Verdict.APPROVED, "user:ada")
    other = change(world, recommended=(change(world.recommended[0], key="1:evict:another"),))
    assert only(other, RULE).mode is Mode.RECOMMEND


def test_what_nobody_objects_to_is_carried_out_in_time() -> None:
    assert only(said(Verdict.NONE, since_s=59.0, act_after_s=60.0), RULE).mode is Mode.RECOMMEND
    decision = only(said(Verdict.NONE, since_s=60.0, act_after_s=60.0), RULE)
    assert decision.mode is Mode.ENFORCE
    assert decision.sentence.endswith("Nobody objected within 60 s of its recommendation.")
    for verdict in (Verdict.HELD, Verdict.REJECTED):
        assert only(said(verdict, since_s=600.0, act_after_s=60.0), RULE).mode is Mode.RECOMMEND


def test_silence_is_no_consent_while_the_control_plane_does_not_see() -> None:
    assert only(said(Verdict.NONE, since_s=600.0, act_after_s=60.0, blind=True), RULE).mode is Mode.RECOMMEND
    assert only(said(Verdict.APPROVED, "user:ada", blind=True), RULE).mode is Mode.ENFORCE


def test_the_next_pass_comes_when_a_countdown_ends() -> None:
    plan = decide(said(Verdict.NONE, since_s=59.8, act_after_s=60.0), CONFIG)
    assert plan.next_pass_s == pytest.approx(NOW_S + 0.2)


def test_a_countdown_goes_on_over_a_step_of_the_clock() -> None:
    world = said(Verdict.NONE, since_s=30.0, act_after_s=60.0)
    (fact,) = world.recommended
    ahead = change(world, recommended=(change(fact, at_s=fact.at_s - 3600.0),), clock_set_s=NOW_S - 1.0)
    assert only(change(ahead, clock_step_s=3600.0), RULE).mode is Mode.RECOMMEND


@pytest.mark.parametrize(("cost_gpu_s", "needed"), [(None, 1), (360_000.0, 1), (360_001.0, 2)])
def test_what_is_expected_to_cost_more_than_one_may_decide_takes_two(cost_gpu_s: float | None, needed: int) -> None:
    assert approvers_needed(cost_gpu_s, CONFIG) == needed
    assert approvers_needed(cost_gpu_s, change(CONFIG, second_approver_gpu_s=1e9)) == 1


def test_two_have_to_approve_what_is_above_the_limit() -> None:
    config = change(CONFIG, second_approver_gpu_s=0.001)
    one, two = said(Verdict.APPROVED, "user:ada"), said(Verdict.APPROVED, "user:ada", "user:bob")
    assert _mode(one, config) is Mode.RECOMMEND
    decision = only(two, RULE, config)
    assert decision.mode is Mode.ENFORCE and decision.sentence.endswith("Approved by user:ada and user:bob.")


def _mode(world: JobSnapshot, config: object) -> Mode:
    found: Decision = only(world, RULE, config)  # type: ignore[arg-type]
    return found.mode
