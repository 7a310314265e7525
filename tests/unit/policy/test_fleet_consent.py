"""What the fleet's own pass only recommends: its price, whose word carries it out, and what that word does not lift."""

from typing import Any

import msgspec
import pytest

from controlplane.policy.config import PolicyConfig
from controlplane.policy.document import config_of
from controlplane.policy.fleet import FleetSnapshot, decide_fleet
from controlplane.policy.plan import BarDevice, Decision, SetNodeState
from controlplane.policy.recommendation import Recommendation
from controlplane.policy.snapshot import DeviceFact, NodeFact
from controlplane.protocol.states import Mode, NodeState, Verdict
from tests.unit.policy.builders import node, signal

MODES = {"rule_modes": {"device_fault": "recommend"}}
ASKS = config_of(MODES)
NOW_S = 5000.0


def here(**changes: Any) -> NodeFact:
    devices = tuple(DeviceFact(index=number, uuid=f"GPU-{number}", free=True) for number in range(8))
    return msgspec.structs.replace(node(0, id="n1", name="n1"), devices=devices, **changes)


def world(*said: Recommendation, **changes: Any) -> FleetSnapshot:
    """A dead device under no job, with what was recommended before and what people said."""
    found = signal("xid", node_id="n1", device_index=0, value=79.0, evidence={"xid": 79})
    fields = {"nodes": (here(),), "fleet_devices": 80, "recommended": said} | changes
    return FleetSnapshot(now_s=NOW_S, signals=(msgspec.structs.replace(found, of_fleet=True),), **fields)


def only(snapshot: FleetSnapshot, config: PolicyConfig = ASKS) -> Decision:
    (made,) = (each for each in decide_fleet(snapshot, config) if each.rule == "device_fault")
    return made


def told(verdict: Verdict = Verdict.NONE, *approvers: str, at_s: float = NOW_S) -> Recommendation:
    return Recommendation(key=only(world()).key, at_s=at_s, verdict=verdict, approvers=approvers)


def test_what_is_only_recommended_waits_with_its_price_and_what_it_would_do() -> None:
    made = only(world())
    assert made.mode is Mode.RECOMMEND
    assert {type(action) for action in made.actions} >= {SetNodeState, BarDevice}
    assert made.cost_gpu_s == 8 * ASKS.bar_s, "each device of the node, for as long as a repair is taken to last"
    (waits,) = (each for each in made.alternatives if each.action == "wait")
    assert waits.cost_gpu_s is None and waits.why_not
    assert only(world(told())).mode is Mode.RECOMMEND, "nobody has said anything"


def test_where_the_rule_acts_by_itself_nothing_is_priced_and_nobody_is_asked() -> None:
    made = only(world(), PolicyConfig())
    assert (made.mode, made.cost_gpu_s, made.alternatives) == (Mode.ENFORCE, None, ())


def test_an_approval_carries_out_what_this_pass_proposes_and_says_on_whose_word() -> None:
    approved = told(Verdict.APPROVED, "user:ada")
    made = only(world(approved))
    assert (made.mode, made.key) == (Mode.ENFORCE, approved.key)
    assert made.sentence.endswith("Approved by user:ada.") and made.evidence["consent"] == "Approved by user:ada."
    drained = only(world(approved, nodes=(here(state=NodeState.CORDONED),)))
    assert not any(isinstance(action, SetNodeState) for action in drained.actions), "on the facts of this pass"
    assert only(world(told(Verdict.REJECTED))).mode is Mode.RECOMMEND
    assert only(world(told(Verdict.HELD))).mode is Mode.RECOMMEND


def test_what_takes_more_out_of_use_than_one_may_decide_takes_two_people() -> None:
    config = config_of(MODES | {"second_approver_gpu_s": 8 * ASKS.bar_s - 1})
    assert only(world(told(Verdict.APPROVED, "user:ada")), config).mode is Mode.RECOMMEND
    made = only(world(told(Verdict.APPROVED, "user:ada", "user:bob")), config)
    assert made.mode is Mode.ENFORCE and made.sentence.endswith("Approved by user:ada and user:bob.")


@pytest.mark.parametrize(
    ("since_s", "verdict", "paused", "mode"),
    [
        (59.0, Verdict.NONE, False, Mode.RECOMMEND),
        (60.0, Verdict.NONE, False, Mode.ENFORCE),
        (60.0, Verdict.NONE, True, Mode.RECOMMEND),
        (3600.0, Verdict.HELD, False, Mode.RECOMMEND),
        (3600.0, Verdict.REJECTED, False, Mode.RECOMMEND),
    ],
)
def test_a_countdown_carries_out_what_nobody_has_objected_to(
    since_s: float, verdict: Verdict, paused: bool, mode: Mode
) -> None:
    config = config_of(MODES | {"fleet_act_after_s": 60})
    snapshot = world(told(verdict, at_s=NOW_S - since_s), paused=paused)
    assert only(snapshot, config).mode is mode
    assert only(snapshot).mode is Mode.RECOMMEND, "without a countdown it waits for a person"


def test_a_persons_word_lifts_no_breaker() -> None:
    approved = told(Verdict.APPROVED, "user:ada")
    storm = {"suspect_devices": 60, "suspect_nodes": tuple(f"n{number}" for number in range(8))}
    made = only(world(approved, **storm))
    assert (made.choice, made.actions) == ("hold", ())
