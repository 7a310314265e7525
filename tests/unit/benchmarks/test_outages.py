"""What one killed rank cost, from records."""

import pytest

from benchmarks.outages import Kill, alone_step_s, is_full_again, normal_step_s, outage, progress
from benchmarks.records import Record

REPLICAS = 3
VICTIM = 1
OLD, NEW = 101, 999


def step(
    number: int, at_s: float, *, replica: int = 0, pid: int = 100, contributors: int = REPLICAS, batch: float = 1.0
) -> Record:
    return Record(
        kind="step",
        at_s=at_s,
        replica=replica,
        rank=0,
        pid=pid,
        ticks=1,
        step=number,
        contributors=contributors,
        batch=batch,
    )


def event(kind: str, at_s: float, *, replica: int, pid: int) -> Record:
    return Record(kind=kind, at_s=at_s, replica=replica, rank=0, pid=pid, ticks=1)


def undisturbed(count: int) -> list[Record]:
    """A step a second by a survivor and by the victim, from 1 s on."""
    return [step(n, float(n), replica=r, pid=100 + r) for n in range(1, count + 1) for r in (0, VICTIM)]


KILL = Kill(at_s=10.5, replica=VICTIM, rank=0, pid=OLD)


def test_progress_counts_a_step_once_and_never_backwards() -> None:
    records = [step(1, 1.0), step(1, 1.1, replica=2), step(2, 2.0), step(1, 3.0), step(3, 4.0)]
    assert [(item.step, item.at_s) for item in progress(records)] == [(1, 1.0), (2, 2.0), (3, 4.0)]


def test_a_normal_step_is_the_median_gap_before_the_moment() -> None:
    records = [*undisturbed(6), step(7, 60.0)]
    assert normal_step_s(records, until_s=7.0) == 1.0


def test_survivors_that_go_on_pay_a_stall_and_no_step() -> None:
    records = [
        *undisturbed(10),
        event("start", 11.0, replica=VICTIM, pid=NEW),
        step(11, 12.5, contributors=2),
        step(12, 14.0, contributors=2),
        step(13, 15.5, replica=VICTIM, pid=NEW),
        step(14, 16.5),
        step(15, 17.5),
    ]
    cost = outage(records, KILL, replicas=REPLICAS, normal_s=1.0)
    assert cost is not None
    assert cost.stall_s == 1.5
    assert cost.full_s == 5.0
    assert cost.lost_s == 2.0
    assert (cost.redone, cost.discarded, cost.skipped) == (0, 0, 0.0)


@pytest.mark.parametrize(("alone_s", "rejoin_s"), [(1.5, 0.25), (None, 0.75)])
def test_a_rejoin_costs_what_a_step_of_as_many_replicas_does_not_take(alone_s: float | None, rejoin_s: float) -> None:
    records = [
        *undisturbed(10),
        step(11, 12.5, contributors=2),
        step(12, 14.25, contributors=2),
        step(13, 15.25, replica=VICTIM, pid=NEW),
        step(14, 16.25),
    ]
    cost = outage(records, KILL, replicas=REPLICAS, normal_s=1.0, alone_s=alone_s)
    assert cost is not None
    assert cost.rejoin_s == rejoin_s


def test_a_step_alone_is_known_once_enough_were_trained_with_a_replica_less() -> None:
    alone = [step(number, 20.0 + 1.5 * number, contributors=2) for number in range(11, 21)]
    assert alone_step_s([*undisturbed(10), *alone[:-1]], replicas=REPLICAS) is None
    assert alone_step_s([*undisturbed(10), *alone], replicas=REPLICAS) == 1.5
    assert alone_step_s([*undisturbed(10), *alone, step(21, 60.0)], replicas=REPLICAS) is None


def test_a_restart_from_a_checkpoint_redoes_steps() -> None:
    again = [step(n, 40.0 + n - 7, replica=r, pid=NEW + r) for n in range(7, 14) for r in (0, VICTIM)]
    starts = [event("start", 30.0, replica=r, pid=NEW + r) for r in (0, VICTIM)]
    cost = outage([*undisturbed(10), *starts, *again], KILL, replicas=REPLICAS, normal_s=1.0)
    assert cost is not None
    assert cost.redone == 4
    assert cost.stall_s == 44.0 - 10.0 - 1.0
    assert cost.full_s == 44.0 - KILL.at_s


def test_a_commit_already_on_its_way_is_not_the_end_of_the_stall() -> None:
    records = [
        *undisturbed(10),
        step(11, 10.6),
        step(12, 13.0, contributors=2),
        step(13, 14.0, replica=VICTIM, pid=NEW),
    ]
    cost = outage(records, KILL, replicas=REPLICAS, normal_s=1.0)
    assert cost is not None
    assert abs(cost.stall_s - 1.4) < 1e-9


def test_steps_of_a_smaller_batch_count_for_what_they_trained() -> None:
    records = [
        *undisturbed(10),
        step(11, 11.5, contributors=2, batch=0.5),
        step(12, 12.5, contributors=2, batch=0.5),
        step(13, 13.5, replica=VICTIM, pid=NEW),
    ]
    cost = outage(records, KILL, replicas=REPLICAS, normal_s=1.0)
    assert cost is not None
    assert cost.skipped == 1.0
    assert cost.lost_s == 1.0


def test_discarded_steps_are_the_survivors_own() -> None:
    records = [
        *undisturbed(10),
        event("discard", 10.8, replica=0, pid=100),
        event("discard", 10.8, replica=2, pid=102),
        event("discard", 12.8, replica=VICTIM, pid=NEW),
        event("discard", 12.9, replica=VICTIM, pid=NEW),
        step(11, 12.0, contributors=2),
        step(12, 13.0, replica=VICTIM, pid=NEW),
    ]
    cost = outage(records, KILL, replicas=REPLICAS, normal_s=1.0)
    assert cost is not None
    assert cost.discarded == 1


def test_full_strength_needs_a_new_process_of_the_killed_slot() -> None:
    only_survivors = [*undisturbed(10), step(11, 12.0, contributors=2), step(12, 13.0)]
    assert is_full_again(only_survivors, KILL, replicas=REPLICAS) is None
    assert outage(only_survivors, KILL, replicas=REPLICAS, normal_s=1.0) is None
