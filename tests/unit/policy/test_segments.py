"""Which segment a replica, its spare and its next place are in."""

from controlplane.policy.placement import build_pool, choose_spares, place_gang, place_replica
from controlplane.policy.plan import PlaceAttempt, StartReplica
from controlplane.policy.snapshot import Placement
from controlplane.protocol.spec import Parallelism
from controlplane.protocol.states import JobState, NodeState, ReplicaState
from tests.unit.policy.builders import action, attempt, change, job, node, only, pending, running, spec, with_replica


def nodes_of(placements: tuple[Placement, ...]) -> list[str]:
    return sorted({place.node_id for place in placements})


def fleet(*segments: str, devices: int = 2) -> tuple:
    return tuple(node(index, devices=devices, segment=name) for index, name in enumerate(segments))


def test_a_replica_wider_than_a_node_stays_in_one_segment() -> None:
    pool = build_pool(fleet("a", "b", "a", "b"), job_id="job_1")
    first, second = place_gang(pool, 2, 4)
    assert (nodes_of(first), nodes_of(second)) == (["n0", "n2"], ["n1", "n3"])


def test_one_that_fits_in_no_segment_takes_the_fewest_and_keeps_neighbours_together() -> None:
    pool = build_pool(fleet("a", "b", "c", "b", "c", "c"), job_id="job_1")
    placed = place_replica(pool, 8)
    assert [place.node_id for place in placed] == ["n2", "n2", "n4", "n4", "n5", "n5", "n1", "n1"]


def test_nodes_that_name_no_segment_are_near_nobody() -> None:
    pool = build_pool(fleet("", "", "a", "a"), job_id="job_1")
    assert nodes_of(place_replica(pool, 4)) == ["n2", "n3"]


def test_a_tensor_parallel_group_stays_on_its_node_rather_than_in_a_segment() -> None:
    nodes = (*fleet("a", "a", "a", "a", devices=1), node(4, devices=2, segment="b"), node(5, devices=2, segment="c"))
    pool = build_pool(nodes, job_id="job_1")
    assert nodes_of(place_replica(pool, 4, tp=2)) == ["n4", "n5"]
    assert nodes_of(place_replica(pool, 4, tp=1)) == ["n0", "n1", "n2", "n3"]


def test_a_spare_is_kept_in_a_segment_that_the_job_uses() -> None:
    pool = build_pool(fleet("a", "b", "a"), job_id="job_1")
    assert choose_spares(pool.without_nodes(["n0"]), 2, near=["n0"]) == ("n2",)
    assert choose_spares(pool.without_nodes(["n0"]), 2) == ("n1",)
    asks = job(state=JobState.PENDING, epoch=0, committed_step=0, spec=spec(spares=2))
    snapshot = pending(job=asks, nodes=fleet("a", "a", "a", "b", "a"))
    decision = only(snapshot, "lifecycle")
    assert action(decision, PlaceAttempt).spare_nodes == ("n4",)
    assert decision.evidence["segments"] == "a"


def test_a_replica_that_starts_again_keeps_its_tensor_parallel_groups_on_their_nodes() -> None:
    lost = with_replica(
        running(attempt=attempt(layout=Parallelism(tp=2, pp=2, dp=3))), 1, state=ReplicaState.EVICTED,
        in_view=False, contributing=False, state_since_s=0.0, world_size=4,
    )  # fmt: skip
    singles = tuple(node(index, devices=1, segment="a") for index in range(10, 14))
    pairs = (node(20, segment="b"), node(21, segment="c"))
    nodes = (*(change(n, connected=n.id != "n1") for n in lost.nodes[:3]), *singles, *pairs)
    start = action(only(change(lost, nodes=nodes), "replace"), StartReplica)
    assert nodes_of(start.placements) == ["n20", "n21"]
    assert only(change(lost, nodes=nodes), "replace").evidence["segments"] == "b, c"


def test_a_lost_replica_comes_back_in_its_own_segment_but_on_a_warm_and_sound_node_first() -> None:
    lost = with_replica(running(), 1, state=ReplicaState.EVICTED, in_view=False, contributing=False, state_since_s=0.0)

    def goes_to(**spares: dict) -> list[str]:
        held = tuple(change(n, segment="b" if n.id == "n1" else "a") for n in lost.nodes if n.id in ("n0", "n1", "n2"))
        gone = tuple(change(n, connected=n.id != "n1") for n in held)
        free = tuple(node(int(name[1:]), **facts) for name, facts in spares.items())
        return nodes_of(action(only(change(lost, nodes=(*gone, *free)), "replace"), StartReplica).placements)

    assert goes_to(n5={"segment": "a"}, n6={"segment": "b"}) == ["n6"]
    assert goes_to(n5={"segment": "a", "warm": True}, n6={"segment": "b"}) == ["n5"], "a warm one is up at once"
    assert goes_to(n5={"segment": "a"}, n6={"segment": "b", "state": NodeState.DEGRADED}) == ["n5"]
    assert goes_to(n5={}, n6={"segment": "a"}) == ["n5"], "neither is near"
