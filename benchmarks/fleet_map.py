"""What the sentinel's look at the tables costs each second, by the size of the fleet and what changed in it.

    python -m benchmarks map [--nodes 125,1000,4000,12500] [--turns 100] [--postgres]

Rows of so many nodes with eight devices, on each of them a rank of one of a few large jobs. Then turns of
`controlplane.sentinel.fleetmap.MapFollower`, the sentinel's own: with nothing changed, with a device of one
node and of ten nodes changed before each turn; and all of it read anew, which was done each second before.
"""

import argparse
import time
from collections.abc import Callable, Sequence

from benchmarks.own_database import own_database
from benchmarks.report import Report

DEVICES = 8
RANKS_A_REPLICA = 128
NODES_A_JOB = 2500
WHOLE_READS = 5
GOAL_MS = 50.0
"""Of a second: what the sentinel may spend on it beside its scans."""


def main(argv: list[str]) -> int:
    """Prints a table; 0 if a turn with ten nodes changed meets its goal in the largest fleet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="125,1000,4000,12500")
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--postgres", action="store_true", help="on a private PostgreSQL instead of SQLite")
    options = parser.parse_args(argv)
    sizes = [int(text) for text in options.nodes.split(",")]
    where = "PostgreSQL" if options.postgres else "SQLite"
    report = Report(goal_id="map", title=f"the sentinel's look at the tables, {where}")
    with own_database(postgres=options.postgres):
        worst_ms = [_measure(nodes, options.turns, report) for nodes in sizes]
    report.finish()
    return 0 if worst_ms[-1] <= GOAL_MS else 1


def _measure(nodes: int, turns: int, report: Report) -> float:
    """The median turn with ten nodes changed, in milliseconds."""
    from controlplane.fleet.models import Device
    from controlplane.fleet.services import set_device_risk
    from controlplane.sentinel.fleetmap import MapFollower, read_map

    fill(nodes)
    follower = MapFollower()
    follower.turn()

    def change(number: int) -> Callable[[int], None]:
        def some(turn: int) -> None:
            names = [f"node_{nodes}_{(turn * number + each) % nodes}" for each in range(number)]
            for device in Device.objects.select_related("node").filter(node_id__in=names, index=0):
                set_device_risk(device, turn / turns)

        return some

    size = f"{nodes:6d} nodes x {DEVICES}"
    report.add(f"{size}: all of it", "ms", [_timed(read_map) for _ in range(WHOLE_READS)])
    medians = []
    for number in (0, 1, 10):
        took = []
        for turn in range(turns):
            change(number)(turn)
            took.append(_timed(follower.turn))
        medians.append(sorted(took)[len(took) // 2])
        goal = f"<= {GOAL_MS:g}" if number == 10 else ""
        report.add(f"{size}: {number} nodes changed", "ms", took, goal=goal)
    assert follower.maps[0] == read_map(), "the map that was followed is not the one that is read"
    report.facts[f"whole reads of {nodes} nodes meanwhile"] = follower.whole_reads - 1
    return medians[-1]


def _timed(act: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    act()
    return (time.perf_counter() - began_s) * 1000.0


def device_id(node_id: str, index: int) -> str:
    """As short as a key may be."""
    return f"{node_id.removeprefix('node_')}.{index}"


def fill(nodes: int, ids: Sequence[str] = ()) -> None:
    """This fleet, and no other: of the one before, nothing is left. `ids`: of its nodes, where they matter."""
    from django.db import transaction
    from django.utils import timezone

    from controlplane.fleet.models import Device, Node
    from controlplane.jobs.models import Attempt, Job, Rank, Replica
    from controlplane.jobs.services import submit_job
    from controlplane.protocol.spec import JobSpec, Metadata, Resources, TrainSpec
    from controlplane.runtime.clock import ago

    for kind in (Rank, Replica, Attempt, Job, Device, Node):
        kind.objects.all().delete()
    with transaction.atomic():
        ids = ids or [f"node_{nodes}_{number}" for number in range(nodes)]
        Node.objects.bulk_create(
            [Node(id=id_, name=f"n{id_}", public_key=id_, connected=True, connected_at=ago(3600.0)) for id_ in ids]
        )
        Device.objects.bulk_create(
            [Device(id=device_id(id_, index), node_id=id_, index=index) for id_ in ids for index in range(DEVICES)]
        )
        for first in range(0, nodes, NODES_A_JOB):
            mine = ids[first : first + NODES_A_JOB]
            spec = TrainSpec(resources=Resources(nodes=1, gpus_per_node=1))
            job = submit_job(JobSpec(metadata=Metadata(name=f"job-{first}"), spec=spec), owner="a", actor="a")
            attempt = Attempt.objects.create(job=job, number=1, layout={}, replicas=1, checkpoint_dir="/none")
            places = [(id_, device_id(id_, index)) for id_ in mine for index in range(DEVICES)]
            for number in range(0, len(places), RANKS_A_REPLICA):
                replica = Replica.objects.create(attempt=attempt, index=number // RANKS_A_REPLICA, incarnation=1)
                Rank.objects.bulk_create(
                    [
                        Rank(replica=replica, rank=rank, node_id=node_id, device_id=device_id, joined_at=timezone.now())
                        for rank, (node_id, device_id) in enumerate(places[number : number + RANKS_A_REPLICA])
                    ]
                )
