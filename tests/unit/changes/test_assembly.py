"""What is concluded from rows, for the database and for memory alike."""

from itertools import islice, repeat

import pytest

from controlplane.changes.assembly import nodes
from controlplane.changes.assembly.counted import Announced, Try, idle, is_suspicion, refused, reissued
from controlplane.changes.assembly.measured import Saves, Times, learned_times, saves_found
from controlplane.changes.assembly.replicas import FRESH_S, Readings, reading_key, replicas_of, signal_facts
from controlplane.changes.assembly.rows import Hosts, Incarnation, Ranks, Reading, Slot
from controlplane.changes.assembly.snapshot import End, bars_found, carried
from controlplane.policy.plan import ORDERED
from controlplane.policy.snapshot import Placement, ReplicaFact, SignalFact
from controlplane.policy.void import PHASE_SINCE, READ
from controlplane.protocol.states import UNFIT, ReplicaState
from controlplane.simulator.world import job_spec

HERE = tuple(Placement(rank=rank, node_id="n1", device_index=rank) for rank in range(2))


def incarnation(number: int = 1, state: ReplicaState = ReplicaState.ACTIVE, **changes: object) -> Incarnation:
    known = {
        "index": 0,
        "incarnation": number,
        "state": state,
        "state_since_s": 0.0,
        "contributing": False,
        "contributed": False,
        "role": "",
        "committed_step": 0,
        "times_out": 0,
        "out_s": None,
        "asked_out": "",
        "asked_s": None,
        "refused": False,
        "relieved": "",
    }
    return Incarnation(**(known | changes))  # type: ignore[arg-type]


def replica(
    *older: Incarnation, newest: Incarnation | None = None, ranks: Ranks | None = None, readings: Readings = ()
) -> ReplicaFact:
    lives = [newest or incarnation(1 + len(older)), *older]
    slot = Slot(lives=lives, ranks=ranks or Ranks(2, 2, 0, 0), placements=HERE, readings=readings)
    (found,) = replicas_of([slot], None)
    return found


def reading(phase: str, *, silent_s: float = 0.0, since_s: float = 5.0, section: str = "step") -> Reading:
    return Reading(phase=phase, section=section, silent_s=silent_s, phase_since_s=since_s, at=10.0)


def xid(device_index: int = 0, **changes: object) -> SignalFact:
    return SignalFact(id="s1", kind="xid", seen_s=1.0, node_id="n1", device_index=device_index, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("readings", "waits", "working_since_s", "silent_s"),
    [
        ((), False, None, None),
        ((reading("exchange"), reading("exchange", silent_s=1.0)), True, None, 1.0),
        ((reading("exchange"), reading("exchange", silent_s=FRESH_S)), False, 5.0, FRESH_S),
        ((reading("exchange"), reading("compute", since_s=7.0)), False, 7.0, 0.0),
        ((reading("exchange"), None), False, None, None),
        ((reading("compute"), reading("compute", section="setup")), False, None, 0.0),
    ],
)
def test_who_waits_and_who_works_follows_from_what_its_ranks_said_last(
    readings: Readings, waits: bool, working_since_s: float | None, silent_s: float | None
) -> None:
    found = replica(readings=readings)
    assert (found.waiting, found.working_since_s, found.silent_s) == (waits, working_since_s, silent_s)


@pytest.mark.parametrize(
    ("readings", "mute"),
    [
        ((reading("exchange", silent_s=FRESH_S), reading("compute", silent_s=1.0)), (0,)),
        ((reading("compute", silent_s=FRESH_S), reading("compute", silent_s=FRESH_S)), ()),
        ((reading("exchange", silent_s=FRESH_S), None), ()),
    ],
)
def test_who_says_nothing_is_known_where_another_of_its_replica_speaks(
    readings: Readings, mute: tuple[int, ...]
) -> None:
    assert replica(readings=readings).silent_ranks == mute


def test_starts_that_came_to_nothing_are_counted_back_to_the_last_life_that_contributed() -> None:
    out = ReplicaState.EVICTED
    before = (
        incarnation(4, out, refused=True),
        incarnation(3, out, asked_out="user:ada"),
        incarnation(2, out),
        incarnation(1, out),
    )
    found = replica(*before, newest=incarnation(5, ReplicaState.FORMING))
    assert (found.failed_starts, found.refused_starts) == (3, 1)
    trained = (incarnation(2, out), incarnation(1, out, contributed=True))
    assert replica(*trained, newest=incarnation(3, ReplicaState.FORMING)).failed_starts == 1


def test_what_every_rank_has_left_is_stopped() -> None:
    assert not replica(ranks=Ranks(2, 2, 2, released=1)).stopped
    assert replica(ranks=Ranks(2, 2, 2, released=2)).stopped


def test_an_error_that_ended_the_rank_on_its_device_is_still_the_jobs_to_judge() -> None:
    """No unreleased rank is on the device any more. Were it the fleet's, whoever evicts the replica would settle the
    finding, and the device would never be barred nor reset."""
    mine = replica()
    (found,) = signal_facts([xid()], owned=(), replicas=[mine], readings={})
    assert not found.of_fleet
    (beside,) = signal_facts([xid(device_index=5)], owned=(), replicas=[mine], readings={})
    (other,) = signal_facts([xid(device_index=5)], owned={("n1", 5)}, replicas=[mine], readings={})
    (gone,) = signal_facts(
        [xid()], owned=(), replicas=[replica(newest=incarnation(1, ReplicaState.EVICTED))], readings={}
    )
    assert (beside.of_fleet, other.of_fleet, gone.of_fleet) == (True, False, True)


def test_a_late_rank_is_told_with_the_phase_that_it_is_in_now() -> None:
    late = SignalFact(id="s1", kind="rank_overdue", seen_s=1.0, replica=0, incarnation=1, rank=1)
    (found,) = signal_facts([late], (), (), {reading_key(0, 1, 1): reading("compute", since_s=9.0)})
    assert (found.evidence[PHASE_SINCE], found.evidence[READ]) == (9.0, 10.0)


def test_attempts_count_as_idle_back_to_one_that_saved_and_are_read_no_further() -> None:
    dead, live = Try(True, "crash", False), Try(False, "", False)
    assert idle([live, dead, Try(True, ORDERED, False), Try(True, UNFIT, False), dead]) == 2
    assert idle(islice(repeat(Try(True, "crash", True)), 1)) == 0
    assert refused([UNFIT, UNFIT, "crash", UNFIT]) == 2
    read = iter([Try(False, "", True), dead])
    assert (idle(read), list(read)) == (0, [dead])


def test_views_count_as_reissued_while_members_stay_and_nothing_commits() -> None:
    same, other = Announced(("a",), resumed=False), Announced(("a", "b"), resumed=False)
    assert reissued([same, same, other]) == 1
    assert reissued([same, same._replace(resumed=True), same]) == 1
    assert reissued([same._replace(resumed=True), same]) == 0


def test_a_few_steps_teach_nothing_yet() -> None:
    spec = job_spec()
    few, enough = Times(steps=[1.0, 2.0]), Times(steps=[1.0, 2.0, 3.0], saves=[5.0, 1.0])
    assert learned_times(few).step_s is None
    told = learned_times(enough)
    assert (told.step_s, told.step_max_s, told.save_s, told.save_p95_s) == (2.0, 3.0, 3.0, 5.0)
    saves = saves_found(Saves(started_s=3.0, writing=True), enough, spec)
    assert (saves.interval_s, saves.in_progress) == (2.0 * spec.checkpoint.interval_steps, True)


def test_a_finding_about_hardware_is_a_suspicion_also_once_it_was_acted_on() -> None:
    assert is_suspicion(xid(), settled=False)
    assert not is_suspicion(xid(), settled=True)
    assert is_suspicion(xid(incident_id="inc_1"), settled=True)
    silent = SignalFact(id="s2", kind="node_silent", seen_s=1.0, node_id="n1", incident_id="inc_1")
    assert not is_suspicion(silent, settled=True)
    assert nodes.suspect_devices([("n1", None), ("n2", 3)], {"n1": 2}) == {("n1", 0), ("n1", 1), ("n2", 3)}


def test_a_rank_host_is_up_where_a_start_succeeded_or_it_was_warmed_lately() -> None:
    hosts = Hosts(used={"a", "b"}, started={"b", "c"}, warmed={"d": 100.0, "e": 50.0})
    assert nodes.hosts_up(hosts, 60.0 + nodes.WARM_KEPT_S) == {"b", "d"}


def test_ends_that_accuse_a_place_bar_it_and_commands_tell_what_became_of_a_request() -> None:
    (bar,) = bars_found([End(rank=1, code=201, at_s=7.0, beside=HERE), End(rank=0, code=1, at_s=8.0, beside=HERE)])
    assert (bar.node_id, bar.device_index, bar.code, bar.since_s) == ("n1", 1, 201, 7.0)
    assert carried([]) == carried([("delivered", ""), ("failed", "no")]) == ""
    assert carried([("failed", "no room"), ("expired", "")]) == "failed: no room"
    assert carried([("failed", "no room"), ("succeeded", "")]) == "succeeded"
