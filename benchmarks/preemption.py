"""`python -m benchmarks preemption`: who yields to urgent jobs, and what that costs, over a week of a synthetic queue.

The product's choice (the least loss, single replicas before whole jobs) is compared with the least loss of whole jobs
alone, the largest first, the newest first, none at all, and first-in-first-out. All have the same plan
(`policy.queue.schedule`) and the same limits; they differ in who is chosen, and two of them in that nobody saves before
it leaves. Jobs are intervals (`controlplane.simulator.intervals`): nothing
here measures a network or a GPU.
"""

import argparse
import math
import random
from dataclasses import dataclass, replace
from statistics import fmean

from benchmarks.report import Report
from controlplane.policy.config import PolicyConfig
from controlplane.simulator.choices import largest, newest
from controlplane.simulator.courses import Work
from controlplane.simulator.intervals import Choice, Queue, least_lost

SHRINKS = 0.5
DAY_S = 86_400.0
DAYS = 7
NODES, OF_EACH = 32, 8
URGENT, USUAL, BATCH = 900, 500, 300
LOAD = 0.95
SIZES = ((1, 2), (1, 4), (1, 8), (2, 8), (4, 8), (8, 8), (16, 8))
WEIGHTS = {URGENT: (3, 3, 4, 3, 2, 1, 0), USUAL: (3, 3, 4, 4, 3, 2, 1), BATCH: (3, 3, 4, 4, 3, 2, 1)}
HOURS = {URGENT: 0.5, USUAL: 2.0, BATCH: 2.0}
POLICY = PolicyConfig()
NO_PREEMPTION = PolicyConfig(max_preemptions=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How it is chosen; `flat`: priorities count for nothing; `saves`: who yields saves first; `parts`: single replicas
    may leave."""

    name: str
    choice: Choice = least_lost
    policy: PolicyConfig = POLICY
    flat: bool = False
    saves: bool = True
    parts: bool = True


WAYS = (
    Way(name="least loss (the product)"),
    Way(name="largest first", choice=largest),
    Way(name="newest first", choice=newest),
    Way(name="largest first, no save", choice=largest, saves=False),
    Way(name="newest first, no save", choice=newest, saves=False),
    Way(name="least loss, whole jobs alone", parts=False),
    Way(name="nobody yields", policy=NO_PREEMPTION),
    Way(name="first in, first out", policy=NO_PREEMPTION, flat=True),
)


def week(seed: int, days: int = DAYS, shrinks: float = SHRINKS) -> list[Work]:
    """Jobs that come evenly over some days, as much as fills `LOAD` of the fleet. One in ten is urgent, short and of
    at most eight nodes; a larger one saves and starts for longer. Of those of whole nodes a share of `shrinks` trains
    on while half of its replicas are left: each on a node, or on half of the job's only one."""
    draw, works, shape = random.Random(f"week {seed}"), list[Work](), random.Random(f"replicas {seed}")
    wanted_gpu_s, given_gpu_s = LOAD * days * DAY_S * NODES * OF_EACH, 0.0
    while given_gpu_s < wanted_gpu_s:
        priority = draw.choices((URGENT, USUAL, BATCH), (1, 4, 5))[0]
        nodes, of_each = draw.choices(SIZES, WEIGHTS[priority])[0]
        parts = max(2, nodes) if of_each == OF_EACH else 1
        replicas = parts if shape.random() < shrinks else 1
        hours = draw.lognormvariate(math.log(HOURS[priority]), 1.0)
        work = Work(
            id=f"job-{len(works):04d}",
            priority=priority,
            arrives_s=draw.uniform(0.0, days * DAY_S),
            nodes=nodes,
            of_each=of_each,
            work_s=min(hours, 48.0) * 3600.0,
            interval_s=draw.choice((600.0, 1200.0, 1800.0, 3600.0)),
            save_s=draw.uniform(3.0, 20.0) * math.sqrt(nodes),
            step_s=draw.choice((1.0, 5.0, 10.0, 30.0)),
            start_s=draw.uniform(30.0, 180.0) + 10.0 * nodes,
            preemptible=draw.random() < 0.9,
            replicas=replicas,
            least=max(1, replicas // 2),
        )
        works.append(work)
        given_gpu_s += work.devices * work.work_s
    return works


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Of one week: GPU-seconds lost to preemptions; how many; how long urgent jobs waited for their first start, in the
    mean and the longest but one in twenty; the share of the fleet that trained in the week."""

    lost_gpu_s: float
    preemptions: int
    wait_s: float
    wait_p95_s: float
    used: float


def played(works: list[Work], way: Way, days: int = DAYS) -> Found:
    """The same week, with this way to choose."""
    urgent = {work.id for work in works if work.priority == URGENT}
    given = [replace(work, priority=USUAL) for work in works] if way.flat else works
    given = given if way.parts else [replace(work, replicas=1, least=1) for work in given]
    queue = Queue(given, NODES, OF_EACH, policy=way.policy, choice=way.choice, saves=way.saves)
    queue.run()
    waits = sorted(queue.courses[job].began[0] - queue.courses[job].work.arrives_s for job in urgent)
    courses = queue.courses.values()
    end_s = max(course.ended_s or 0.0 for course in courses)
    trained = sum(course.work.devices * course.work.work_s for course in courses)
    return Found(
        lost_gpu_s=sum(course.lost_gpu_s for course in courses),
        preemptions=sum(len(course.asked) for course in courses),
        wait_s=fmean(waits),
        wait_p95_s=waits[int(0.95 * (len(waits) - 1))],
        used=trained / (end_s * NODES * OF_EACH),
    )


def main(argv: list[str]) -> int:
    """Prints the comparison; 0."""
    parser = argparse.ArgumentParser(prog="benchmarks preemption", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=5, help="weeks")
    parser.add_argument("--shrinks", type=float, default=SHRINKS, help="share of the larger jobs with replicas to give")
    parser.add_argument("--days", type=int, default=DAYS)
    options = parser.parse_args(argv)
    seeds = range(options.seed, options.seed + options.seeds)
    weeks = [week(seed, options.days, options.shrinks) for seed in seeds]
    report = Report(goal_id="PREEMPTION", title=f"who yields, {options.days} days on {NODES} x {OF_EACH} devices")
    report.facts = {"jobs": [len(works) for works in weeks], "load": LOAD, "may shrink": options.shrinks}
    lost: dict[str, list[float]] = {}
    for way in WAYS:
        found = [played(works, way, options.days) for works in weeks]
        lost[way.name] = [each.lost_gpu_s for each in found]
        report.add(f"{way.name}: lost", "GPU-h", [each.lost_gpu_s / 3600.0 for each in found])
        report.add(f"{way.name}: preemptions", "", [float(each.preemptions) for each in found])
        report.add(f"{way.name}: an urgent job waits, mean", "s", [each.wait_s for each in found])
        report.add(f"{way.name}: an urgent job waits, p95", "s", [each.wait_p95_s for each in found])
        report.add(f"{way.name}: devices that train", "%", [100.0 * each.used for each in found])
    for first, how in ((1, ""), (3, " where nobody saves")):
        best = [min(each) for each in zip(*(lost[way.name] for way in WAYS[first : first + 2]), strict=True)]
        shares = [mine / other for mine, other in zip(lost[WAYS[0].name], best, strict=True) if other]
        report.add(f"lost, of what the better of largest and newest loses{how}", "", shares, goal="<= 0.5")
    report.finish()
    return 0
