"""The head of the queue has others yield: who is weighed, who is left alone, and what the decision says."""

import pytest

from controlplane.policy.plan import AskPreemption, PlaceAttempt
from controlplane.policy.queue.explain import explain
from controlplane.policy.queue.place import QueuePlace, Turn, Victim
from controlplane.policy.queue.preempt import lost_gpu_s, victims
from controlplane.policy.queue.room import Room, Types
from controlplane.policy.queue.rows import Holder, Lender, Pending, QueueConfig, QueueFleet, Stake, config_of
from controlplane.policy.queue.schedule import schedule
from controlplane.policy.rules import make_room
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol.states import JobState

from .builders import CONFIG, action, actions, change, job, node, only, running
from .test_queue import NOW_S, demand, fleet, holder
from .test_queue import job as waits

QUEUE = config_of(CONFIG)


def stake(**fields: object) -> Stake:
    """It has trained for hours."""
    base: dict[str, object] = {"attempt": 1, "begun_s": NOW_S - 9_000.0, "at_risk_s": 600.0}
    base |= {"save_s": 10.0, "step_s": 2.0, "again_s": 30.0}
    return Stake(**base | fields)  # type: ignore[arg-type]


def runs(name: str, nodes: int = 1, *, priority: int = 500, ends_s: float | None = None, **fields: object) -> Holder:
    return change(holder(name, nodes, priority=priority, ends_s=ends_s), stake=stake(**fields))


def named(lends: QueueFleet, *, nodes: int = 1, config: QueueConfig = QUEUE, priority: int = 900) -> list[str]:
    """Who yields to an urgent job of so many nodes."""
    urgent = waits("urgent", demand(nodes), priority=priority)
    return [victim.id for victim in schedule([urgent], lends, config, NOW_S).victims]


def test_the_price_is_a_save_and_a_step_and_a_start_or_what_is_at_risk_where_that_is_less() -> None:
    assert lost_gpu_s(runs("a")) == 8 * (10.0 + 2.0 + 30.0)
    assert lost_gpu_s(runs("a", at_risk_s=4.0)) == 8 * (4.0 + 30.0)
    assert lost_gpu_s(runs("a", save_s=None)) == 8 * (600.0 + 30.0), "no save is known to come"


def test_of_two_jobs_alike_the_one_that_just_saved_yields() -> None:
    assert named(fleet(0, runs("stale"), runs("fresh", at_risk_s=1.0))) == ["fresh"]


def test_one_dear_job_yields_where_all_cheap_ones_together_lose_more() -> None:
    many = [runs(f"small{number}", again_s=30.0 + number) for number in range(4)]
    large = runs("large", 4, at_risk_s=0.0, again_s=10.0)
    assert named(fleet(0, *many, large), nodes=4) == ["large"]
    assert named(fleet(0, *many, change(large, stake=stake(again_s=900.0))), nodes=4) == [each.id for each in many]


def test_only_as_many_yield_as_make_room_beside_what_is_free() -> None:
    assert named(fleet(1, runs("a"), runs("b", at_risk_s=1.0)), nodes=2) == ["b"]
    assert named(fleet(0, runs("a"), runs("b")), nodes=3) == [], "all of them are not enough"


@pytest.mark.parametrize(
    "fields",
    [
        {"priority": 900},
        {"priority": 950},
        {"begun_s": NOW_S - 60.0},
        {"begun_s": NOW_S - 600.0, "came_back": True},
        {"times": 2},
        {"kept_s": NOW_S - 10.0},
    ],
    ids=["equal", "higher", "young", "came back", "often", "asked"],
)
def test_who_is_left_alone(fields: dict[str, object]) -> None:
    assert named(fleet(0, runs("a", **fields))) == []  # type: ignore[arg-type]
    assert named(fleet(0, change(runs("a"), stake=None))) == []


def test_an_hours_preemptions_are_spent_by_the_whole_fleet() -> None:
    lends = fleet(0, runs("a"), runs("b"))
    assert named(change(lends, preempted=QUEUE.max_preemptions)) == []
    assert named(change(lends, preempted=QUEUE.max_preemptions - 1), nodes=2) == []


def test_nobody_yields_for_what_is_expected_soon_or_on_its_way() -> None:
    assert named(fleet(0, runs("a"), runs("soon", ends_s=NOW_S + 30.0))) == []
    assert named(fleet(0, runs("a"), holder("gone", 1, leaves=True))) == []
    assert named(fleet(0, runs("a"), runs("later", ends_s=NOW_S + 900.0))) != []


def test_what_fits_when_those_that_leave_have_left_takes_nobody_more() -> None:
    urgent = waits("urgent", demand(1), priority=900)
    for leaves in (True, False):
        lends = fleet(0, runs("a"), holder("gone", 1, leaves=leaves))
        room = Room(lends.nodes, Types(["H100"]), [urgent.demand])
        assert [each.id for each in victims(urgent, room, lends, QUEUE, NOW_S)] == ([] if leaves else ["a"])


def test_only_the_head_has_others_yield_and_only_when_nobody_ahead_is_about_to_start() -> None:
    queue = [waits("first", demand(1), priority=900), waits("second", demand(2), priority=800)]
    assert schedule(queue, fleet(1, runs("a")), QUEUE, NOW_S).victims == ()
    plan = schedule(queue, fleet(0, runs("a")), QUEUE, NOW_S)
    assert (plan.head, [victim.id for victim in plan.victims]) == ("first", ["a"])


def test_devices_of_another_type_or_on_anothers_spare_node_are_worth_nothing() -> None:
    other = Lender(id="a-0", usable={"A100": 8}, free={})
    spare = Lender(id="a-0", usable={"H100": 8}, free={}, reserved_for="b")
    urgent = waits("urgent", demand(1, gpu_type="H100"), priority=900)
    for lender in (other, spare):
        lends = QueueFleet(nodes=(lender, Lender(id="b-0", usable={"H100": 8}, free={})), holders=(runs("a"),))
        assert schedule([urgent], lends, QUEUE, NOW_S).victims == ()


def test_where_too_many_sets_would_have_to_be_weighed_a_good_one_is_taken() -> None:
    lends = fleet(0, *(runs(f"r{number:03}", at_risk_s=float(number)) for number in range(100)))
    assert named(lends, nodes=10, config=change(QUEUE, weighed=1)) == [f"r{number:03}" for number in range(10)]


def test_the_explanation_names_who_is_asked_and_who_saves_already() -> None:
    urgent = waits("urgent", demand(1), priority=900)
    found = explain([urgent], fleet(0, runs("a")), QUEUE, NOW_S, "urgent")
    assert found is not None and [victim.id for victim in found.preempts] == ["a"] and found.yields == ()
    asked = change(holder("a", 1, leaves=True), yields_to="urgent")
    found = explain([urgent], fleet(0, asked), QUEUE, NOW_S, "urgent")
    assert found is not None and found.preempts == () and [each.id for each in found.yields] == ["a"]


def why_none(lends: QueueFleet, *queue: Pending, config: QueueConfig = QUEUE) -> tuple[str, list[tuple[str, object]]]:
    """Of the last of these in the queue: why nobody yields to it, and who is left alone until when from now."""
    found = explain(queue, lends, config, NOW_S, queue[-1].id)
    assert found is not None
    alone = [(f"{each.id} {each.why}", each.until_s and each.until_s - NOW_S) for each in found.spared]
    return found.no_preemption, alone


URGENT = waits("urgent", demand(1), priority=900)


def test_the_explanation_says_who_is_left_alone_why_and_until_when() -> None:
    young, back = runs("young", begun_s=NOW_S - 100.0), runs("back", begun_s=NOW_S - 400.0, came_back=True)
    often, kept = runs("often", times=2), runs("kept", kept_s=NOW_S - 20.0)
    never = holder("never", 1)
    why, alone = why_none(fleet(0, young, back, often, kept, never), URGENT)
    assert why == "all of lower priority are left alone"
    assert sorted(alone) == [
        ("back trains again since a preemption less than 1800 s ago", 1400.0),
        ("kept was asked a moment ago, for nothing", 40.0),
        ("never does not allow it, or does not train now", None),
        ("often yielded as often within an hour as it may be asked (2)", None),
        ("young began less than 300 s ago", 200.0),
    ]


def test_the_explanation_says_why_nobody_yields_where_some_may_be_asked() -> None:
    assert why_none(fleet(0, runs("a")), URGENT) == ("", []), "it is asked"
    assert why_none(fleet(0, runs("a")), URGENT, waits("next", demand(1), priority=800))[0] == (
        "others yield to the first of the queue alone"
    )
    assert why_none(fleet(0, runs("a", ends_s=NOW_S + 30.0)), URGENT)[0] == (
        "it is expected to start within 60 s without one"
    )
    spent = change(fleet(0, runs("a")), preempted=QUEUE.max_preemptions)
    assert why_none(spent, URGENT)[0] == "as many jobs were preempted within an hour as may be (20)"
    two = waits("urgent", demand(2), priority=900)
    assert (
        why_none(fleet(0, runs("a"), holder("never", 1)), two)[0] == "those that may be asked do not make room for it"
    )
    assert why_none(fleet(1, runs("a")), URGENT) == ("", []), "it starts"
    assert why_none(fleet(0, change(runs("a"), leaves=True, yields_to="urgent")), URGENT) == ("", []), "one saves"


VICTIM = Victim(
    id="job_2", name="sweep", priority=300, attempt=4, asked=1, devices=8, at_risk_s=60.0, save_s=None, lost_gpu_s=720.0
)
PLACE = QueuePlace(place=1, waiting=1, turn=Turn.NO_ROOM, victims=(VICTIM,))


def head(**fields: object) -> JobSnapshot:
    """A job that waits on a full fleet."""
    base = running(job=job(state=JobState.PENDING), attempt=None, replicas=(), view=None, install=None, queue=PLACE)
    return change(base, nodes=(node(0, free=False),), **fields)


def test_each_victim_is_asked_for_the_attempt_that_was_weighed_with_its_price() -> None:
    decision = only(head(), make_room.RULE)
    ask = action(decision, AskPreemption)
    assert (ask.victim, ask.attempt, ask.lost_gpu_s) == ("job_2", 4, 720.0)
    assert "no save of it was measured" in ask.why
    assert decision.cost_gpu_s == 720.0 and "sweep (priority 300)" in decision.sentence
    assert decision.alternatives[0].action == "wait"


def test_asked_again_in_another_attempt_it_is_another_decision() -> None:
    later = change(PLACE, victims=(change(VICTIM, attempt=5, asked=2),))
    keys = {only(head(), make_room.RULE).key, only(head(queue=later), make_room.RULE).key}
    assert len(keys) == 2


def test_nobody_is_asked_for_a_job_that_is_placed_cancelled_or_parked() -> None:
    assert not make_room.rule(head(queue=None), CONFIG)
    for fields in ({"cancel_requested": True}, {"parked_by": "user:ada: r"}, {"state": JobState.RUNNING}):
        assert not make_room.rule(change(head(), job=job(**{"state": JobState.PENDING} | fields)), CONFIG)
    roomy = change(head(), nodes=tuple(node(index) for index in range(3)))
    assert actions(only(roomy, "lifecycle"), PlaceAttempt)


def part(**fields: object) -> Victim:
    """One replica of three."""
    return change(VICTIM, gives=((2, 1),), trains=3, **fields)


def test_the_decision_says_how_many_replicas_are_asked_for_and_what_stays() -> None:
    decision = only(head(queue=QueuePlace(place=1, waiting=1, turn=Turn.NO_ROOM, victims=(part(),))), make_room.RULE)
    asks = action(decision, AskPreemption)
    assert asks.gives == ((2, 1),)
    assert "1 of 3 replicas" in decision.sentence and "give replicas to this job" in decision.sentence
    assert "2 of its 3 replicas train on" in asks.why


def test_the_decision_names_the_project_that_owes_the_devices() -> None:
    victim = change(VICTIM, borrows="red", priority=950)
    decision = only(head(queue=QueuePlace(place=1, waiting=1, turn=Turn.NO_ROOM, victims=(victim,))), make_room.RULE)
    assert "of red, which uses more than its quota" in decision.sentence
    assert action(decision, AskPreemption).why.startswith("red uses more than its quota")
