"""The script of a load test: the same for the same seed, of the size that was asked for, within its window."""

from collections import Counter

import pytest

from controlplane.bench import script
from controlplane.bench.script import Act, Faults, Fleet, Kind, ScriptInvalid, acts
from controlplane.policy.xid import XidBucket, look_up

FAULTS = Faults(xids=40, heated=3, silent=5, silence_s=4.0, drops=2, drop_ratio=0.5, hostile=4)
FLEET = Fleet(agents=200, duration_s=60.0, seed=7, faults=FAULTS)


def of(kind: Kind, fleet: Fleet = FLEET) -> list[Act]:
    return [act for act in acts(fleet) if act.kind is kind]


def test_one_seed_gives_one_script_and_another_seed_another() -> None:
    again = Fleet(agents=200, duration_s=60.0, seed=7, faults=FAULTS)
    other = Fleet(agents=200, duration_s=60.0, seed=8, faults=FAULTS)
    assert acts(FLEET) == acts(again) != acts(other)
    assert script.phase_s(FLEET, 3) == script.phase_s(again, 3) != script.phase_s(other, 3)


def test_there_are_as_many_faults_as_were_asked_for_in_the_order_of_time() -> None:
    counted = Counter(act.kind for act in acts(FLEET))
    assert (counted[Kind.XID], counted[Kind.HEAT], counted[Kind.SILENCE], counted[Kind.HOSTILE]) == (40, 3, 5, 4)
    assert [act.at_s for act in acts(FLEET)] == sorted(act.at_s for act in acts(FLEET))
    assert all(0.0 <= act.at_s <= FLEET.duration_s * script.ENDING for act in acts(FLEET) if act.kind is not Kind.DROP)


def test_a_storm_takes_its_share_of_the_fleet_at_one_moment() -> None:
    moments = Counter(act.at_s for act in of(Kind.DROP))
    assert list(moments) == [20.0, 40.0]
    assert all(70 <= number <= 130 for number in moments.values()), moments


def test_who_is_hostile_silent_or_heated_has_no_other_fault_of_these_and_no_xid() -> None:
    agents = [act.agent for act in acts(FLEET) if act.kind in (Kind.HOSTILE, Kind.SILENCE, Kind.HEAT, Kind.XID)]
    assert len(agents) == len(set(agents)) == 52


def test_more_xids_than_nodes_come_on_other_devices() -> None:
    few = Fleet(agents=4, devices=3, faults=Faults(xids=12))
    assert len({(act.agent, act.device) for act in of(Kind.XID, few)}) == 12


def test_every_second_xid_is_a_devices_and_leads_to_a_reset() -> None:
    buckets = [look_up(int(act.value)).bucket for act in of(Kind.XID)]
    assert set(buckets[::2]) == {XidBucket.APPLICATION} and set(buckets[1::2]) == {XidBucket.RESET}


def test_late_frames_are_their_share_and_no_later_than_was_asked_for() -> None:
    late = Fleet(agents=10, faults=Faults(late_ratio=0.1, late_s=2.0))
    drawn = [script.late_s(late, agent, beat) for agent in range(10) for beat in range(1000)]
    among = [late_s for late_s in drawn if late_s > 0.0]
    assert 850 <= len(among) <= 1150 and 1.9 < max(among) <= 2.0
    assert script.late_s(FLEET, 1, 1) == 0.0, "nobody asked for it"


@pytest.mark.parametrize(
    ("fleet", "named"),
    [
        (Fleet(agents=script.MAX_AGENTS + 1), "agents"),
        (Fleet(agents=1, interval_s=0.0), "interval"),
        (Fleet(agents=1, duration_s=1.0), "window"),
        (Fleet(agents=2, devices=2, faults=Faults(xids=5)), "xids"),
        (Fleet(agents=3, faults=Faults(hostile=3)), "hostile"),
        (Fleet(agents=3, faults=Faults(silent=2, heated=2)), "more than there are"),
        (Fleet(agents=3, faults=Faults(late_ratio=1.5)), "late"),
    ],
)
def test_what_is_out_of_range_is_refused_and_named(fleet: Fleet, named: str) -> None:
    with pytest.raises(ScriptInvalid, match=named):
        acts(fleet)
