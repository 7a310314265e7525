"""What a pending job's pass pays for its place in the queue: reading queue and fleet from SQLite, and the plan.

One job of 98,304 ranks trains on 12,288 nodes, 1,000 jobs wait. The first reading also converts their specs, which is
done once in a process. Beside it what one pending job alone in the queue pays.

    python -m benchmarks.schedule_rows [--repeats 20]
"""

import argparse
import sys
import time
from collections.abc import Callable

from benchmarks.own_database import own_database
from benchmarks.report import Report

PENDING = 1_000


def main(argv: list[str]) -> int:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    repeats = max(1, parser.parse_args(argv).repeats)
    with own_database(postgres=False):
        _measure(repeats).finish()
    return 0


def _measure(repeats: int) -> Report:
    from benchmarks.decide_rows import job_that_trains
    from benchmarks.decide_worlds import Size
    from controlplane.jobs.models import Job
    from controlplane.jobs.services import submit_job
    from controlplane.policy.queue.schedule import schedule
    from controlplane.protocol.spec import JobSpec, Metadata, Parallelism, Resources, TrainSpec
    from controlplane.recovery import load_queue
    from controlplane.runtime.clock import now_s

    report = Report(goal_id="schedule-rows", title="a place in the queue, from rows on SQLite")
    job_that_trains(Size(12, 8_192))
    spec = TrainSpec(resources=Resources(nodes=4, gpus_per_node=8), parallelism=Parallelism(tp=8))
    jobs = [
        submit_job(JobSpec(metadata=Metadata(name=f"waits-{number}"), spec=spec), owner="ada", actor="ada")
        for number in range(PENDING)
    ]
    last = Job.objects.get(pk=jobs[-1].pk)
    report.add("the first in a process", "ms", _timed(lambda: load_queue.place_of(last), 1))
    report.add("reading the queue", "ms", _timed(load_queue.waiting, repeats))
    report.add("reading the fleet", "ms", _timed(load_queue.load_fleet, repeats))
    queue, fleet = load_queue.waiting(), load_queue.load_fleet()
    report.add("the plan", "ms", _timed(lambda: schedule(queue, fleet, load_queue.config(), now_s()), repeats))
    report.add("all of it: the place of the last", "ms", _timed(lambda: load_queue.place_of(last), repeats))
    Job.objects.filter(pk__in=[job.pk for job in jobs[:-1]]).update(state="cancelled")
    report.add("alone in the queue", "ms", _timed(lambda: load_queue.place_of(last), repeats))
    return report


def _timed(work: Callable[[], object], repeats: int) -> list[float]:
    found = []
    for _ in range(repeats):
        began_s = time.perf_counter()
        work()
        found.append((time.perf_counter() - began_s) * 1000.0)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
