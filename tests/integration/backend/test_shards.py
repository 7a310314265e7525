"""A fleet in shards: what the leaders of several tell is read as one."""

import pytest
from pytest_django.fixtures import Settings

from controlplane.api import specs
from controlplane.fleet.models import Node
from controlplane.fleet.selectors import node_views
from controlplane.jobs import selectors
from controlplane.jobs.models import Job
from controlplane.policy.signals.nodes import NodeSilent
from controlplane.recovery import health_gate, signals
from controlplane.recovery.models import Signal
from controlplane.runtime import beats, bus
from controlplane.runtime.clock import now_s
from controlplane.runtime.models import ProcessBeat
from controlplane.runtime.shards import shard_of
from controlplane.sentinel import history
from controlplane.sentinel.fleetmap import FleetMap, MapFollower, read_map
from controlplane.sentinel.heard import Heard
from controlplane.sentinel.leadership import Leadership
from controlplane.sentinel.publishing import Publisher
from controlplane.telemetry.models import TelemetryChunk
from tests.findings import finding
from tests.integration.backend.builders import live_ranks, make_fleet, run_job
from tests.integration.backend.sentinels import Redis, Scene

pytestmark = pytest.mark.django_db(transaction=True)
COUNT = 3


@pytest.fixture
def redis(monkeypatch: pytest.MonkeyPatch) -> Redis:
    return Redis(monkeypatch)


@pytest.fixture
def sharded(settings: Settings) -> None:
    settings.SENTINEL_SHARDS = COUNT


@pytest.fixture
def spread(sharded: None, redis: Redis) -> Scene:
    """Two sentinels that lead three shards of a fleet on which a job trains."""
    run_job(make_fleet(9), steps=20)
    scene = Scene(COUNT, "a", "b")
    scene.lead("a", 0, 2, term=1)
    scene.lead("b", 1, term=4)
    for _ in range(2):
        heard = scene.frames()
        for name in ("a", "b"):
            copies = [Heard(node_id=x.node_id, session_id="s", at_s=x.at_s, frame=x.frame) for x in heard]
            scene.turn(name, [x for x in copies if scene.sentinels[name]._hears(x.node_id)])
    return scene


def test_what_several_tell_is_read_as_one(spread: Scene, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = set(Node.objects.values_list("id", flat=True))
    assert {shard_of(node, COUNT) for node in nodes} == {0, 1, 2}
    assert set(health_gate.silent_by_node() or {}) == nodes
    job = Job.objects.get()
    ranks = {f"{r.replica.index}.{r.replica.incarnation}.{r.rank}" for r in live_ranks(job)}
    assert set(selectors.live_ranks(job.id)) == ranks
    assert len({shard_of(r.node_id, COUNT) for r in live_ranks(job)}) > 1, "the job lies in several shards"
    assert not health_gate.is_blind()
    views = node_views(list(Node.objects.order_by("pk")))
    assert len(views) == 9
    asked: list[str] = []
    mine = Node.objects.order_by("pk")[0]
    with monkeypatch.context() as counting:
        counting.setattr(bus, "read_live_of", lambda names: asked.extend(names) or {})
        node_views([mine])
    assert asked == [f"node:{mine.id}", f"nodes/{shard_of(mine.id, COUNT)}"], "of no shard but its own"
    risks = {name: part for name, part in redis.live.items() if name.startswith("fleet/")}
    assert len(risks) == COUNT
    assert specs.reachable_risk() == 1.0, "shards whose devices were not scored yet"
    redis.live |= {name: {"reachable_risk": None} for name in risks}
    redis.live["fleet/1"] = {"reachable_risk": 0.4}
    redis.live["fleet/2"] = {"reachable_risk": 0.7}
    assert specs.reachable_risk() == 0.7
    del redis.live["fleet/1"]
    assert specs.reachable_risk() == 1.0, "what the devices of a shard that is not heard can score is not known"


def test_one_shard_that_nobody_leads_or_whose_leader_is_blind_makes_blind(spread: Scene, redis: Redis) -> None:
    sight = redis.live.pop("sight/1")
    assert health_gate.is_blind()
    redis.live["sight/1"] = sight | {"blind": True}
    assert health_gate.is_blind()
    redis.live["sight/1"] = sight | {"at_s": sight["at_s"] - 60.0}
    assert health_gate.is_blind()
    redis.live["sight/1"] = sight | {"clock_set_s": 5.0, "clock_step_s": 3.0}
    assert not health_gate.is_blind()
    assert health_gate.clock_step() == (5.0, 3.0)
    for at_s in (-0.5, 0.5):
        # Whichever leader has written last, and whatever it saw of a clock that was set back since.
        redis.live["sight/0"] = sight | {"clock_set_s": 4.0, "clock_step_s": 9.0, "at_s": sight["at_s"] + at_s}
        redis.live["sight/2"] = sight | {"clock_set_s": sight["at_s"] + 7200.0, "clock_step_s": 1.0}
        assert health_gate.clock_step() == (5.0, 3.0)


def test_of_a_job_in_several_shards_one_tells_the_page_and_rings(
    spread: Scene, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job.objects.get()
    redis.said.clear()
    rung: list[str] = []
    monkeypatch.setattr("controlplane.runtime.wakeup.wake", lambda job_id, sure=False: rung.append(job_id))
    monkeypatch.setattr(Publisher, "hear_watched", lambda *_: None)
    for sentinel in spread.sentinels.values():
        for shard in sentinel.shards.values():
            shard.scanner.alone, shard.publisher.watched = frozenset(), None
    heard = spread.frames()
    for name in ("b", "a"):
        copies = [Heard(node_id=x.node_id, session_id="s", at_s=x.at_s, frame=x.frame) for x in heard]
        spread.turn(name, [x for x in copies if spread.sentinels[name]._hears(x.node_id)])
    told = [message for topic, message in redis.said if topic == f"job:{job.id}" and message["type"] == "ranks"]
    assert len(told) == 1
    places = {(rank["replica"], rank["incarnation"], rank["rank"]) for rank in told[0]["ranks"]}
    assert places == {(r.replica.index, r.replica.incarnation, r.rank) for r in live_ranks(job)}
    assert {frozenset(rank) for rank in told[0]["ranks"]} == {frozenset(told[0]["ranks"][0])}, "of each the same"
    assert rung == [job.id], "replica 0 works while all others wait"


def test_only_frames_of_shards_that_are_heard_are_read(spread: Scene) -> None:
    for name, wanted in (("a", {0, 2}), ("b", {1})):
        sentinel = spread.sentinels[name]
        for number, shard in sentinel.shards.items():
            assert {shard_of(node, COUNT) for node in shard.live_state.nodes} == {number}
        assert {n for n in range(COUNT) if n in sentinel.shards} == wanted
        hears = {node: sentinel._hears(node) for node in Node.objects.values_list("id", flat=True)}
        assert {shard_of(node, COUNT) for node, is_heard in hears.items() if is_heard} == wanted


def test_a_silence_in_another_shard_is_not_refuted(spread: Scene, redis: Redis) -> None:
    """Who judges a node refutes it, nobody else."""
    job = Job.objects.get()
    theirs = next(r.node_id for r in live_ranks(job) if shard_of(r.node_id, COUNT) == 1)
    signals.raise_signal(finding(NodeSilent, job_id=job.id, node_id=theirs))
    spread.turn("a", [])
    assert Signal.objects.get(kind="node_silent").settled_at is None
    spread.turn("b", [])
    assert Signal.objects.get(kind="node_silent").settled_at is not None


def test_so_many_silent_at_once_are_counted_over_all_shards(spread: Scene) -> None:
    counts = spread.sentinels["a"]._counts(now_s())
    assert {number: nodes for number, (_, nodes) in counts.items()} == {
        number: sum(shard_of(node, COUNT) == number for node in Node.objects.values_list("id", flat=True))
        for number in range(COUNT)
    }
    assert spread.sentinels["a"]._counts(now_s() + 60.0) == {}


def test_maps_of_shards_are_together_the_map_of_the_fleet(sharded: None) -> None:
    run_job(make_fleet(9))
    follower, whole, joined = MapFollower(COUNT), read_map(), FleetMap()
    follower.turn()
    for number, part in enumerate(follower.maps):
        assert {shard_of(node, COUNT) for node in part.nodes} <= {number}
        for name in ("nodes", "devices", "placed", "jobs_on", "limits", "error_s", "nodes_of"):
            getattr(joined, name).update(getattr(part, name))
    assert joined == whole
    job = Job.objects.get()
    assert follower.shards_of(job.id) == {shard_of(r.node_id, COUNT) for r in live_ranks(job)}


def test_a_sentinel_with_another_number_of_shards_leads_nothing_and_says_why(settings: Settings) -> None:
    right, wrong = Leadership("right", 2), Leadership("wrong", 4)
    for _ in range(2):
        right.turn()
        wrong.turn()
    assert set(right.held) == {0, 1}
    assert wrong.held == {}
    detail = ProcessBeat.objects.get(name="wrong").detail
    assert "HOLDFAST_SENTINEL_SHARDS" in detail["why"]
    settings.SENTINEL_SHARDS = 2
    assert health_gate.blind_reason() == ""
    settings.SENTINEL_SHARDS = 4
    assert "HOLDFAST_SENTINEL_SHARDS differs" in health_gate.blind_reason()


def test_a_shard_without_a_leader_is_named(settings: Settings) -> None:
    settings.SENTINEL_SHARDS = 4
    leads = Leadership("a", 4)
    leads.turn()
    assert health_gate.blind_reason() == ""
    detail = ProcessBeat.objects.get(name="a").detail
    beats.beat("sentinel", "a", detail | {"shards": {"0": 1, "2": 1}})
    assert health_gate.blind_reason() == "no sentinel leads shard 1, 3"


def test_who_ends_stores_its_history_in_parts_and_says_what_it_had_no_time_for(
    spread: Scene, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = spread.sentinels["a"].shards[0]
    heard = set(shard.history.nodes)
    assert shard.store(until_s=0.0) == len(heard) > 0
    assert not TelemetryChunk.objects.exists()
    monkeypatch.setattr(history, "FORCED_AT_ONCE", 1)
    first = next(iter(shard.history.nodes))
    shard.history.force(known=shard.fleet.nodes, unit=shard.fence.unit_of_work)
    assert set(TelemetryChunk.objects.values_list("node_id", flat=True)) == {first}, (
        "it stays if this process is killed"
    )
    assert shard.store() == 0
    assert set(TelemetryChunk.objects.values_list("node_id", flat=True)) == heard
    assert TelemetryChunk.objects.count() == len(heard), "each once"
