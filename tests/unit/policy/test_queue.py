"""The plan of the queue: who may start, who keeps what from whom, and what people read of it."""

from collections.abc import Mapping

import pytest

from controlplane.policy.queue.demand import first_demand, later_demand
from controlplane.policy.queue.explain import explain
from controlplane.policy.queue.place import Turn
from controlplane.policy.queue.rows import Demand, Entry, Holder, Lender, Pending, QueueConfig, QueueFleet
from controlplane.policy.queue.schedule import schedule
from controlplane.policy.queue.shares import in_turn
from controlplane.policy.queue.words import place_of
from controlplane.protocol.spec import Parallelism, Resources, Spares, TrainSpec

NOW_S = 1000.0
CONFIG = QueueConfig()


def demand(nodes: int, of_each: int = 8, *, spares: int = 0, gpu_type: str | None = None) -> Demand:
    """So many devices on each of so many nodes."""
    most = nodes * of_each
    return Demand(
        devices=most, most=most, touches=nodes, nodes=nodes, of_each=of_each, spares=spares, gpu_type=gpu_type
    )


def job(name: str, needs: Demand, *, priority: int = 500, at_s: float = 0.0, held: str = "") -> Pending:
    """One that waits since `at_s`."""
    return Pending(id=name, name=name, priority=priority, submitted_s=at_s, demand=needs, held=held)


def fleet(free: int, *holders: Holder, size: int = 8, model: str = "H100") -> QueueFleet:
    """So many free nodes, and those that these jobs hold."""
    used = [node for holder in holders for node, _ in holder.devices]
    nodes = [Lender(id=node, usable={model: size}, free={}) for node in used]
    nodes += [Lender(id=f"free{number}", usable={model: size}, free={model: size}) for number in range(free)]
    return QueueFleet(nodes=tuple(nodes), holders=holders)


def holder(name: str, nodes: int, *, ends_s: float | None = None, priority: int = 500, leaves: bool = False) -> Holder:
    """A job on so many whole nodes of eight."""
    devices = tuple((f"{name}-{number}", 8) for number in range(nodes))
    return Holder(id=name, name=name, priority=priority, devices=devices, ends_s=ends_s, leaves=leaves)


def plan(lends: QueueFleet, *queue: Pending) -> Mapping[str, Entry]:
    """By job."""
    return {entry.job.id: entry for entry in schedule(queue, lends, CONFIG, NOW_S).entries}


def test_the_higher_priority_is_first_then_the_older_then_the_smaller_id() -> None:
    one = demand(1)
    queue = [
        job("c", one, at_s=1.0),
        job("b", one, at_s=1.0),
        job("old", one, at_s=0.0),
        job("urgent", one, priority=900, at_s=9.0),
    ]
    assert [each.id for each in in_turn(queue)] == ["urgent", "old", "b", "c"]


def test_of_two_jobs_for_the_last_node_the_second_waits_for_the_first() -> None:
    found = plan(fleet(1), job("late", demand(1), at_s=2.0), job("early", demand(1), at_s=1.0))
    assert found["early"].may_start and found["early"].turn is Turn.FIRST
    assert not found["late"].may_start and found["late"].behind == "early"


def test_where_there_is_room_for_all_nobody_waits_for_anybody() -> None:
    found = plan(fleet(6), job("a", demand(2)), job("b", demand(1)), job("c", demand(3)))
    assert {entry.turn for entry in found.values()} == {Turn.FIRST, Turn.BESIDE}
    assert all(entry.may_start for entry in found.values())


def test_a_gang_that_lacks_one_node_or_its_spares_is_not_started_in_part() -> None:
    found = plan(fleet(2, holder("r", 3)), job("gang", demand(3)), job("spared", demand(2, spares=8), at_s=1.0))
    assert found["gang"].turn is Turn.NO_ROOM
    assert found["spared"].turn is Turn.NO_ROOM
    assert plan(fleet(3), job("spared", demand(2, spares=8)))["spared"].turn is Turn.FIRST


def test_the_first_that_lacks_room_is_expected_when_the_jobs_that_end_soonest_have_made_it() -> None:
    running = (holder("soon", 1, ends_s=1010.0), holder("later", 2, ends_s=1050.0), holder("never", 4))
    found = plan(fleet(1, *running), job("head", demand(3)))
    assert found["head"].expected_s == 1050.0


def test_an_end_that_is_overdue_or_under_way_is_expected_now() -> None:
    for running in (holder("late", 2, ends_s=900.0), holder("gone", 2, leaves=True)):
        assert plan(fleet(0, running), job("head", demand(2)))["head"].expected_s == NOW_S


def test_a_smaller_job_starts_beside_what_the_head_will_need() -> None:
    running = (holder("r", 4, ends_s=1010.0),)
    found = plan(fleet(2, *running), job("head", demand(5)), job("small", demand(1), at_s=1.0))
    assert found["head"].turn is Turn.NO_ROOM
    assert found["small"].turn is Turn.BACKFILL and found["small"].may_start


def test_a_smaller_job_that_would_delay_the_head_waits_though_there_is_room_for_it() -> None:
    running = (holder("r", 4, ends_s=1010.0),)
    found = plan(fleet(2, *running), job("head", demand(6)), job("small", demand(1), at_s=1.0))
    assert found["small"].turn is Turn.BEHIND and not found["small"].may_start
    assert found["small"].behind == "head"


def test_only_so_many_are_let_past_the_head_as_it_can_spare_together() -> None:
    running = (holder("r", 4, ends_s=1010.0),)
    queue = [job(f"small{number}", demand(1), at_s=number + 1.0) for number in range(3)]
    found = plan(fleet(3, *running), job("head", demand(5)), *queue)
    assert [found[f"small{number}"].may_start for number in range(3)] == [True, True, False]


def test_where_no_end_is_known_nothing_that_the_head_could_use_is_given_away() -> None:
    found = plan(fleet(2, holder("r", 4)), job("head", demand(3)), job("small", demand(1), at_s=1.0))
    assert found["head"].expected_s is None
    assert not found["small"].may_start


def test_devices_of_a_type_that_the_head_cannot_use_are_given_to_whoever_is_next() -> None:
    hopper, ampere = fleet(1, holder("r", 4), model="NVIDIA H100"), fleet(1, model="NVIDIA A100")
    both = QueueFleet(nodes=hopper.nodes + tuple(_renamed(ampere)), holders=hopper.holders)
    head, other = job("head", demand(3, gpu_type="H100")), job("other", demand(1, gpu_type="A100"), at_s=1.0)
    found = plan(both, head, other, job("any", demand(1), at_s=2.0))
    assert found["other"].may_start
    assert not found["any"].may_start, "it might be placed on what the head waits for"


def _renamed(of: QueueFleet) -> list[Lender]:
    return [Lender(id=f"other-{node.id}", usable=node.usable, free=node.free) for node in of.nodes]


def test_a_job_that_no_end_could_make_room_for_keeps_nothing_from_those_behind_it() -> None:
    found = plan(fleet(2), job("huge", demand(3), priority=900), job("small", demand(2)))
    assert found["huge"].turn is Turn.TOO_LARGE
    assert found["small"].turn is Turn.FIRST


def test_nodes_that_take_no_work_are_no_room_even_when_their_job_ends() -> None:
    drained = holder("r", 2, ends_s=1010.0)
    lends = QueueFleet(nodes=fleet(1).nodes, holders=(drained,))
    assert plan(lends, job("j", demand(2)))["j"].turn is Turn.TOO_LARGE


def test_a_job_that_waits_for_a_person_lets_those_behind_it_start() -> None:
    found = plan(fleet(1), job("sealed", demand(1), priority=900, held="an administrator"), job("next", demand(1)))
    assert found["sealed"].turn is Turn.HELD
    assert found["next"].turn is Turn.FIRST


def test_a_job_that_has_trained_is_elastic_and_waits_for_its_smallest_number_of_replicas() -> None:
    spec = TrainSpec(
        resources=Resources(nodes=4, gpus_per_node=8, min_replicas=2, spares=Spares(gpus=8)),
        parallelism=Parallelism(tp=4),
    )
    first, later = first_demand(spec), later_demand(spec)
    assert (first.nodes, first.of_each, first.spares) == (4, 8, 8)
    assert (later.nodes, later.devices) == (0, 8)
    assert plan(fleet(1, holder("r", 3)), job("again", later))["again"].may_start
    assert plan(fleet(1, holder("r", 9)), job("new", first))["new"].turn is Turn.NO_ROOM


def test_a_plan_weighs_so_many_and_leaves_the_rest_to_the_next_one() -> None:
    queue = [job(f"j{number:03}", demand(1, 1), at_s=float(number)) for number in range(200)]
    found = schedule(queue, fleet(100), QueueConfig(at_once=16), NOW_S).entries
    assert sum(entry.may_start for entry in found) == 17
    assert found[-1].turn is Turn.NEXT


@pytest.mark.parametrize(
    ("lends", "words"),
    [
        (fleet(2, holder("r", 4)), "what is free is kept for head (priority 900), which is ahead of it"),
        (fleet(0, holder("r", 4)), "too few devices are free, and head (priority 900) is ahead of it"),
    ],
)
def test_a_waiting_job_says_whom_it_waits_for(lends: QueueFleet, words: str) -> None:
    queue = [job("head", demand(3), priority=900), job("mine", demand(1))]
    place = place_of(schedule(queue, lends, CONFIG, NOW_S), "mine")
    assert place is not None and not place.may_start
    assert place.sentence.startswith("Waits in the queue: ") and words in place.sentence
    assert (place.place, place.waiting) == (2, 2)
    assert place_of(schedule(queue, lends, CONFIG, NOW_S), "another") is None


def test_a_job_that_might_be_placed_where_an_earlier_one_must_go_waits_until_that_is_placed() -> None:
    half = Lender(id="half", usable={"H100": 8}, free={"H100": 4})
    lends = QueueFleet(nodes=(*fleet(1).nodes, half))
    queue = [job("whole", demand(1, 8), priority=900), job("mine", demand(1, 4))]
    place = place_of(schedule(queue, lends, CONFIG, NOW_S), "mine")
    assert place is not None and place.turn is Turn.NEXT
    assert "there is room for it, and jobs ahead of it are placed first: whole (priority 900)" in place.sentence
    assert plan(lends, queue[1])["mine"].may_start


def test_an_explanation_names_what_is_needed_what_would_free_it_and_whom_it_outranks() -> None:
    running = (
        holder("dear", 2, priority=900, ends_s=1500.0),
        holder("cheap", 1, priority=100),
        holder("soon", 2, priority=400, ends_s=1200.0),
    )
    queue = [job("a", demand(9), priority=950), job("mine", demand(2, spares=8), priority=500)]
    told = explain(queue, fleet(1, *running), CONFIG, NOW_S, "mine")
    assert told is not None
    assert told.needs == "2 nodes with 8 free devices each, and 8 spare devices on other nodes"
    assert (told.nodes_free, told.devices_free) == (1, 8)
    assert [each.id for each in told.frees] == ["soon"] and told.frees[0].ends_s == 1200.0
    assert [each.id for each in told.outranks] == ["cheap", "soon"]
    assert ([each.id for each in told.ahead], told.ahead_count, told.waiting) == (["a"], 1, 2)


def test_nothing_is_promised_of_jobs_whose_end_nobody_knows_and_that_outrank_it() -> None:
    told = explain([job("mine", demand(2))], fleet(1, holder("r", 4)), CONFIG, NOW_S, "mine")
    assert told is not None and told.frees == () and told.outranks == ()
    assert told.entry.expected_s is None and "first to start when there is room" in told.sentence


def test_a_job_with_room_is_said_to_start_with_its_next_pass() -> None:
    told = explain([job("mine", demand(2))], fleet(2), CONFIG, NOW_S, "mine")
    assert told is not None and "there is room" in told.sentence and told.entry.expected_s == NOW_S
    assert explain([], fleet(2), CONFIG, NOW_S, "mine") is None


def test_only_the_first_in_line_is_said_to_start_first() -> None:
    queue = [job("urgent", demand(2), priority=900), job("mine", demand(2))]
    lends = fleet(1, holder("r", 3, ends_s=NOW_S + 60.0))
    first, second = (explain(queue, lends, CONFIG, NOW_S, name) for name in ("urgent", "mine"))
    assert first is not None and "it is the first to start when there is room" in first.sentence
    assert second is not None and "first to start" not in second.sentence and "Place 2 of 2" in second.sentence
