"""The API's large answers by the size of fleet and job: processor time of a request, and its bytes as they are sent.

    python -m benchmarks api [--nodes 100,1000,12500] [--ranks 8,1000,16384] [--requests 100] [--postgres]

Whole requests through the server's own middleware, by an API token, as a client that reads gzip sends them; the time is
that of this process (`time.process_time`), so on SQLite the database's work is in it, and on PostgreSQL, a process of
its own, it is not. Before each `first read` a node has changed, so that nothing that was kept is of use; a `second
read` names the tag of the answer before it. Nodes have eight devices with a rank on each, ids as they are made, names
by rack, and one in a hundred is cordoned, has a device that is not healthy, and one with a score. The ranks of a job
have told their timings. Live state, of ranks and of the 256 nodes of the list, is in a private Redis.
"""

import argparse
import gc
import os
import random
import time
from collections.abc import Callable
from typing import Any

from benchmarks.own_database import own_database
from benchmarks.report import Report
from benchmarks.sentinel_cost import private_redis

DEVICES = 8
RANKS_A_REPLICA = 64
RACK = 16
GOAL_NODES = 12_500
GOAL_MS = 100.0
GOAL_BYTES = 150_000
LISTED_NODES, LISTED_JOBS = 256, 100
GOAL_JOBS_BYTES = 60_000
SEED = 7
SINCE_MS, MONTH_MS = 1_790_000_000_000, 30 * 86_400_000
"""When the nodes enrolled."""
SECTION = {"count": 10, "median_s": 0.1, "min_s": 0.1, "max_s": 0.2}


def main(argv: list[str]) -> int:
    """Prints a table; 0 if all nodes of the largest fleet of the goal's size are within the goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="100,1000,12500")
    parser.add_argument("--ranks", default="8,1000,16384")
    parser.add_argument("--requests", type=int, default=100, help="of each kind")
    parser.add_argument("--postgres", action="store_true", help="on a private PostgreSQL instead of SQLite")
    options = parser.parse_args(argv)
    where = "PostgreSQL" if options.postgres else "SQLite"
    report = Report(goal_id=f"api-{where.lower()}", title=f"the API's large answers, {where}")
    met = True
    with private_redis() as url:
        os.environ["HOLDFAST_REDIS_URL"] = url
        with own_database(postgres=options.postgres):
            asker = Asker()
            # As the web process does (`controlplane.config.asgi`).
            gc.set_threshold(100_000, 50, 1000)
            for nodes in map(int, options.nodes.split(",")):
                met &= _measure_nodes(nodes, options.requests, asker, report)
            met &= _measure_lists(options.requests, asker, report)
            for ranks in map(int, options.ranks.split(",")):
                _measure_mesh(ranks, options.requests, asker, report)
    report.finish()
    return 0 if met else 1


class Asker:
    """A token that may read, and requests with it."""

    def __init__(self) -> None:
        from django.contrib.auth.models import Group, User
        from django.test import Client

        from controlplane.access.services import create_api_token

        user = User.objects.create_user("bench")
        user.groups.add(Group.objects.get_or_create(name="read")[0])
        token = create_api_token(user, name="bench", scope="read").secret
        self._client = Client()
        self._headers = {"Authorization": f"Bearer {token}", "Accept-Encoding": "gzip"}

    def get(self, path: str, tag: str = "") -> tuple[float, Any]:
        """Milliseconds of this process, and the answer."""
        from controlplane.api import throttle

        throttle.requests.clear()
        headers = self._headers | ({"If-None-Match": tag} if tag else {})
        began_s = time.process_time()
        answer = self._client.get("/api/v1" + path, headers=headers)
        return (time.process_time() - began_s) * 1000.0, answer


def _measure_nodes(nodes: int, requests: int, asker: Asker, report: Report) -> bool:
    """Whether it is within the goal, or of another size."""
    from controlplane.fleet import followed

    fill(nodes)
    size = f"{nodes:6d} nodes x {DEVICES}"
    goal = nodes == GOAL_NODES
    paths = {"default fields": "", "name and state": "?fields=name,state", "default and id": f"?fields={_with_id()}"}
    met = True
    for what, query in paths.items():
        path = f"/nodes:columns{query}"

        def changed(_: int, path: str = path) -> float:
            followed.nodes.forget()
            return asker.get(path)[0]

        took = _each(requests, changed)
        answer = asker.get(path)[1]
        assert (answer.status_code, answer["Content-Encoding"]) == (200, "gzip")
        first = what == "default fields"
        report.add(f"{size}, {what}: first read", "ms of CPU", took, goal=f"<= {GOAL_MS:g}" if goal and first else "")
        sent = len(answer.content)
        report.add(f"{size}, {what}: sent", "bytes", [sent], goal=f"<= {GOAL_BYTES}" if goal and first else "")
        if goal and first:
            met = sorted(took)[len(took) // 2] <= GOAL_MS and sent <= GOAL_BYTES
        if first:
            tag = answer["ETag"]
            seconds = _each(requests, lambda _, tag=tag, path=path: _unchanged(asker, path, tag))  # type: ignore[misc]
            report.add(f"{size}: second read (304)", "ms of CPU", seconds)
    pages = _each(max(1, requests // 10), lambda _: asker.get("/nodes?limit=500")[0])
    report.add(f"{size}: a page of /nodes, 500 at most", "ms of CPU", pages)
    return met


def _unchanged(asker: Asker, path: str, tag: str) -> float:
    took_ms, answer = asker.get(path, tag)
    assert answer.status_code == 304, answer.status_code
    return took_ms


def _measure_lists(requests: int, asker: Asker, report: Report) -> bool:
    """Pages of rows, as they are sent: 2,048 devices with their readings, and 100 jobs. Whether these meet their
    goal."""
    fill(LISTED_NODES)
    fill_jobs(LISTED_JOBS)
    write_readings()
    met = True
    for path, rows, goal in (
        (f"/nodes?limit={LISTED_NODES}", f"{LISTED_NODES} nodes x {DEVICES} with readings", GOAL_BYTES),
        ("/nodes?limit=256&fields=id,name,state,connected", "the same, 4 fields", 0),
        (f"/jobs?limit={LISTED_JOBS}", f"{LISTED_JOBS} jobs", GOAL_JOBS_BYTES),
    ):
        took, answer = _each(requests, lambda _, path=path: asker.get(path)[0]), asker.get(path)[1]  # type: ignore[misc]
        assert answer["Content-Encoding"] == "gzip"
        report.add(f"{rows}: list", "ms of CPU", took)
        report.add(f"{rows}: sent", "bytes", [len(answer.content)], goal=f"<= {goal}" if goal else "")
        met &= not goal or len(answer.content) <= goal
    return met


def write_readings() -> None:
    """The newest readings of each node's devices, as the sentinel writes them."""
    from controlplane.fleet.models import Node
    from controlplane.runtime import bus

    seeded = random.Random(SEED)
    readings = {
        f"node:{node_id}": {
            "agent": {"cpu_ratio": 0.01, "rss_bytes": 61_234_176, "silent_s": round(seeded.random(), 3)},
            "devices": [
                {
                    "index": index, "present": True, "temperature_c": seeded.randint(40, 80),
                    "memory_temperature_c": 70.0,
                    "power_w": round(seeded.gauss(500.0, 50.0), 1), "power_limit_w": 700.0,
                    "utilization_ratio": round(seeded.random(), 2), "memory_utilization_ratio": 0.5,
                    "memory_used_bytes": seeded.randrange(80 << 30), "sm_clock_mhz": 1980, "ecc_corrected_total": 0,
                    "ecc_uncorrected_total": 0, "row_remap_pending": False, "row_remap_failure": False,
                    "throttle_reasons": [], "pcie_replay_total": 0, "nvlink_error_total": 0, "retired_pages_total": 0,
                    "risk": seeded.random(), "risk_parts": {"temperature": seeded.random(), "errors": 0.0},
                }
                for index in range(DEVICES)
            ],
        }
        for node_id in Node.objects.values_list("pk", flat=True)
    }  # fmt: skip
    assert bus.write_live(readings), "Redis is away"


def fill_jobs(number: int) -> None:
    """So many jobs that have ended, with steps and a checkpoint each."""
    from controlplane.checkpoints.models import Checkpoint
    from controlplane.jobs.models import Attempt, Job, StepRecord
    from controlplane.jobs.services import submit_job
    from controlplane.protocol.spec import JobSpec, Metadata, Resources, TrainSpec
    from controlplane.runtime.clock import ago, now

    seeded = random.Random(SEED)
    for index in range(number):
        spec = TrainSpec(resources=Resources(nodes=1, gpus_per_node=1))
        job = submit_job(JobSpec(metadata=Metadata(name=f"run-{index}"), spec=spec), owner="ada", actor="user:ada")
        Attempt.objects.create(job=job, number=1, layout={}, replicas=4, checkpoint_dir="/c", state="ended")
        Job.objects.filter(pk=job.pk).update(state="succeeded", finished_at=now(), committed_step=100)
        StepRecord.objects.bulk_create(
            StepRecord(
                job=job, attempt=1, step=step, epoch=1, at=ago(100.0 - step), tokens=1, loss=seeded.gauss(2.0, 0.1),
                step_time_s=seeded.gauss(1.0, 0.1),
            )
            for step in range(100)
        )  # fmt: skip
        Checkpoint.objects.create(
            id=f"ckp_{index}", job=job, attempt=1, step=100, epoch=1, path=f"/c/{index}", kind="scheduled",
            state="complete", started_at=now(), committed_at=now(),
        )  # fmt: skip


def _measure_mesh(ranks: int, requests: int, asker: Asker, report: Report) -> None:
    from controlplane.runtime import bus

    job_id = fill_job(ranks)
    live = live_state(ranks)
    sent = []

    def read(_: int) -> float:
        assert bus.write_live({f"job:{job_id}": live}), "Redis is away"
        took_ms, answer = asker.get(f"/jobs/{job_id}/mesh")
        assert answer.status_code == 200, answer.content
        sent.append(len(answer.content))
        return took_ms

    took = _each(requests, read)
    report.add(f"{ranks:6d} ranks: mesh", "ms of CPU", took)
    report.add(f"{ranks:6d} ranks: sent", "bytes", sent)


def _each(number: int, read: Callable[[int], float]) -> list[float]:
    read(-1)
    return [read(turn) for turn in range(number)]


def _with_id() -> str:
    from controlplane.fleet.columns import DEFAULT

    return ",".join(("id", *DEFAULT))


def fill(nodes: int) -> None:
    """This fleet, and no other."""
    from benchmarks.fleet_map import fill as fill_plain
    from controlplane.fleet.models import Device, Node
    from controlplane.protocol.ids import make_id

    seeded = random.Random(SEED)
    enrolled = sorted(seeded.randrange(MONTH_MS) for _ in range(nodes))
    fill_plain(nodes, [make_id("node", SINCE_MS + at_ms, seeded.randbytes(10)) for at_ms in enrolled])
    for number, pk in enumerate(Node.objects.order_by("pk").values_list("pk", flat=True)):
        rack, place = divmod(number, RACK)
        odd = seeded.random() < 0.01
        Node.objects.filter(pk=pk).update(
            name=f"gpu-r{rack:03d}-{place:02d}",
            segment=f"rack-{rack:03d}",
            agent_version="0.1.0" if seeded.random() < 0.9 else "0.0.9",
            state="cordoned" if odd else "ready",
            connected=not odd or seeded.random() < 0.5,
        )
    devices = list(Device.objects.order_by("pk").values_list("pk", flat=True))
    for pk in seeded.sample(devices, len(devices) // 800):
        Device.objects.filter(pk=pk).update(risk=seeded.random())
    for pk in seeded.sample(devices, len(devices) // 800):
        Device.objects.filter(pk=pk).update(healthy=False, health_reason="XID 79")


def fill_job(ranks: int) -> str:
    """A job of so many ranks, tensor parallel 8 and pipeline 8 where it is large enough; its id."""
    from benchmarks.fleet_map import fill as fill_plain
    from controlplane.jobs.models import Attempt, Job, Rank, RankSpeed, Replica
    from controlplane.runtime.clock import now

    fill_plain(-(-ranks // DEVICES))
    job = Job.objects.order_by("created_at")[0]
    Attempt.objects.exclude(job=job).delete()
    found = list(Rank.objects.order_by("pk")[:ranks].values_list("node_id", "device_id"))
    Rank.objects.all().delete()
    attempt = Attempt.objects.filter(job=job)[0]
    Replica.objects.all().delete()
    a_replica = min(RANKS_A_REPLICA, ranks)
    attempt.layout = {"tp": 8, "pp": a_replica // 8, "cp": 1, "ep": 1, "replica_dp": 1}
    attempt.replicas = -(-ranks // a_replica)
    attempt.save()
    for index in range(attempt.replicas):
        replica = Replica.objects.create(attempt=attempt, index=index, incarnation=1, state="active")
        mine = found[index * a_replica : (index + 1) * a_replica]
        Rank.objects.bulk_create(
            Rank(replica=replica, rank=rank, node_id=node_id, device_id=device_id, state="training", joined_at=now())
            for rank, (node_id, device_id) in enumerate(mine)
        )
    seeded = random.Random(SEED)
    parts = ("compute", "data", "exchange", "optimizer", "step")
    RankSpeed.objects.bulk_create(
        [
            RankSpeed(
                rank_id=pk,
                reported_at=now(),
                told={part: SECTION | {"median_s": seeded.gauss(1.0, 0.05)} for part in parts}
                | {"type": "timings", "first_step": 1, "last_step": 9, "epoch": 1, "spread": 0.0},
            )
            for pk in Rank.objects.values_list("pk", flat=True)
        ],
        batch_size=500,
    )
    return job.id


def live_state(ranks: int) -> dict[str, Any]:
    """What the sentinel writes of so many ranks (`sentinel.publishing.RankLive`)."""
    seeded = random.Random(SEED)
    a_replica = min(RANKS_A_REPLICA, ranks)
    return {
        f"{number // a_replica}.1.{number % a_replica}": {
            "section": "step",
            "phase": seeded.choice(("forward_backward", "exchange", "optimizer")),
            "step": 1_000,
            "phase_age_s": round(seeded.random(), 3),
            "silent_s": round(seeded.random(), 3),
            "phase_since_s": 1_790_000_000.0 + round(seeded.random(), 3),
            "at": "2026-11-29T00:00:00.000000Z",
        }
        for number in range(ranks)
    }
