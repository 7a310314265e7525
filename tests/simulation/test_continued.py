"""A recorded decision, continued by two policies in a simulated world that is made from its snapshot."""

from typing import Any

import pytest

from controlplane.policy.config import PolicyConfig
from controlplane.protocol.rest.policy import ReplayCase
from controlplane.simulator.continued import LOST_S, Priced, Switch, carried_on, moment_of
from controlplane.simulator.moments import Kind
from controlplane.simulator.rollout import Rollout
from tests.unit.policy.builders import running

OWN = PolicyConfig()
SHORT = PolicyConfig(lease_s=3.0)


def case(**fields: Any) -> ReplayCase:
    """Three replicas of eight devices train in steps of a second; node 1 is silent for 2.5 s and was left out. A start
    takes a minute, a transfer 30 s, and there is a free place."""
    known: dict[str, Any] = {
        "rule": "leave_out",
        "choice": "leave_out",
        "then_rule": "leave_out",
        "then_choice": "leave_out",
        "failed": {"1": "silent"},
        "silent_s": 2.5,
        "replicas": 3,
        "ranks": 8,
        "places": 1,
        "spares_kept": False,
        "needed": 1,
        "share": 2,
        "step_s": 1.0,
        "start_s": 60.0,
        "catch_up_s": 30.0,
        "measured": True,
        "gap_steps": 7,
        "interval_steps": 20,
        "steps_left": 10_000,
        "budget_spent": False,
        "fleet_devices": 1000,
        "acts": 0,
    }
    return ReplayCase(**(known | fields))


def crash(**fields: Any) -> ReplayCase:
    answer = {"rule": "replica_failure", "choice": "evict_and_replace"}
    then = {"then_rule": "replica_failure", "then_choice": "evict_and_replace"}
    return case(**(answer | then | {"failed": {"1": "crash"}, "silent_s": 0.0} | fields))


def priced(of: ReplayCase, other: PolicyConfig, *, seeds: int = 2, own: PolicyConfig = OWN) -> Priced:
    found = carried_on(of, own, other, seeds=seeds)
    assert isinstance(found, Priced), found
    return found


def test_a_lease_that_is_far_too_short_wastes_more_and_the_same_policy_wastes_the_same() -> None:
    short, same = priced(case(), SHORT, seeds=4), priced(case(), PolicyConfig(), seeds=4)
    assert short.change_gpu_s > 100.0 and short.spread_gpu_s is not None
    assert same.changes_gpu_s == (0.0,) * 4 and same.own_gpu_s == short.own_gpu_s, "worlds of one seed are one"
    assert same.missed == short.missed == 0


def test_a_replacement_costs_what_its_start_and_its_transfer_take() -> None:
    (cost_gpu_s, *_), *_ = (priced(crash(), PolicyConfig()).own_gpu_s,)
    moment = moment_of(crash(), part=0.25, seed=0)
    away_gpu_s = 8 * (moment.start_s + moment.catch_up_s)
    assert cost_gpu_s == pytest.approx(away_gpu_s, rel=0.25), "the replica's devices, and little of the others'"


def test_devices_are_counted_as_they_are_however_few_ranks_are_simulated() -> None:
    eight, sixteen = (priced(crash(ranks=ranks), SHORT).own_gpu_s for ranks in (8, 16))
    assert sixteen == pytest.approx([2.0 * each for each in eight])


def test_the_steps_since_the_checkpoint_are_lost_where_all_starts_again() -> None:
    alone: dict[str, Any] = {"replicas": 1, "failed": {"0": "crash"}, "rule": "restart", "choice": "restart"}
    again: dict[str, Any] = {"then_rule": "restart", "then_choice": "restart"}
    few, many = (priced(case(silent_s=0.0, gap_steps=gap, **alone, **again), SHORT).own_gpu_s for gap in (5, 35))
    for less, more in zip(few, many, strict=True):
        assert more - less == pytest.approx(30 * 8, rel=0.2)


def test_a_state_that_leads_to_another_decision_has_a_reason_and_no_figure() -> None:
    other = carried_on(crash(then_rule="restart", then_choice="restart"), OWN, SHORT, seeds=1)
    assert other == "the other policy decides otherwise in the simulated state than by the record"
    never = carried_on(crash(choice="hold_and_replace"), OWN, SHORT, seeds=1)
    assert isinstance(never, str) and "nothing was decided by" in never


def test_who_has_no_time_left_gets_no_figure_and_who_has_some_gets_those_seeds() -> None:
    assert carried_on(case(), OWN, SHORT, step=lambda: False) == "there was no time left for it"
    left = iter((True, False))
    found = carried_on(case(), OWN, SHORT, seeds=4, step=lambda: next(left))
    assert isinstance(found, Priced) and len(found.own_gpu_s) == 1 and found.spread_gpu_s is None


def test_a_silence_that_never_ends_is_a_lost_node_that_is_repaired() -> None:
    world = Rollout(moment_of(case(silent_s=LOST_S), part=0.5, seed=0))
    world.luck = type(world.luck)(weight=1.0, repair_s=700.0, strikes=world.moment.strikes, still_s=700.0)
    assert [strike.kind for strike in world.moment.strikes] == [Kind.SILENT]
    world.warm_up()
    world.steering.armed = True
    world.to_fork()
    assert list(world.lost) == [rank.node for p in world.world.trainer.processes.values() if p.index == 1
                                for rank in p.ranks.values()][:1]  # fmt: skip


def test_the_fleet_around_the_job_is_as_large_and_as_busy_as_it_was_recorded() -> None:
    of = case(fleet_devices=1000, acts=3)
    seen = Switch("", case=of, own=OWN, later=OWN).in_its_fleet(running(fleet_devices=6, acts_last_window=2))
    assert (seen.fleet_devices, seen.acts_last_window) == (250, 5), "two of eight devices of a replica are simulated"
    alone = Switch("", case=case(fleet_devices=6), own=OWN, later=OWN).in_its_fleet(running(fleet_devices=6))
    assert alone.fleet_devices == 6


def test_where_places_were_not_recorded_half_of_the_worlds_have_none() -> None:
    spares = [moment_of(case(places=None), part=0.5, seed=seed).spares for seed in range(4)]
    assert spares == [0, 1, 0, 1]
    assert moment_of(case(places=3), part=0.5, seed=0).spares == 3
