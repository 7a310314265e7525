"""`python -m benchmarks quotas`: what quotas that are lent and taken back give, over weeks of a synthetic queue.

Four projects share a fleet, each with a quota, and are busy on different days. Compared are the product (what nobody
uses is lent, and comes back), the same weeks where nothing is lent, and where whoever borrows keeps it until its jobs
end. All have the same plan (`policy.queue.schedule`), jobs and priorities. Jobs are intervals
(`controlplane.simulator.intervals`): nothing here measures a network or a GPU.
"""

import argparse
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import msgspec

from benchmarks.preemption import DAY_S, DAYS, NODES, OF_EACH, POLICY, week
from benchmarks.report import Report
from controlplane.policy.queue.rows import QueuePlan, Share
from controlplane.simulator.courses import Work
from controlplane.simulator.intervals import Choice, Queue, least_lost

QUOTAS = {"red": 128, "blue": 64, "green": 32, "grey": 32}
"""Devices: together they are the fleet."""
BUSY = (0.1, 0.5, 1.0, 3.0)
"""So much of its quota's part of the work a project asks for on one day, against the others."""


def kept(queue: Queue, plan: QueuePlan) -> Mapping[str, Sequence[int]]:
    """Who yields where nobody gives back what is borrowed: whom the job outranks."""
    return {} if any(victim.borrows for victim in plan.victims) else least_lost(queue, plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Whether anything is lent (`lend`: at most so many of each project), and who gives it back."""

    name: str
    lend: int | None = None
    choice: Choice = least_lost


WAYS = (
    Way(name="lent and taken back (the product)"),
    Way(name="nothing is lent", lend=0),
    Way(name="lent and kept", choice=kept),
)


def shared_week(seed: int, days: int = DAYS) -> list[Work]:
    """The jobs of `preemption.week`, none of which gives single replicas, each of a project whose quota holds it: by
    the quotas, and by who is busy on its day."""
    draw, found = random.Random(f"week of projects {seed}"), list[Work]()
    busy = [{name: quota * draw.choice(BUSY) for name, quota in QUOTAS.items()} for _ in range(days)]
    for work in week(seed, days, shrinks=0.0):
        able = [name for name, quota in QUOTAS.items() if work.devices <= quota]
        today = busy[int(work.arrives_s // DAY_S)]
        found.append(replace(work, project=draw.choices(able, [today[name] for name in able])[0]))
    return found


class Covered:
    """How long each job waited while its project's quota covered it: with it, and with those of its project that wait
    ahead of it and are covered, its project used no more than its own. By job, seconds; watched over one queue."""

    def __init__(self, queue: Queue) -> None:
        self.waited_s: dict[str, float] = {}
        self._queue, self._since_s = queue, 0.0
        self._now: tuple[str, ...] = ()
        queue.on_pass = self.planned

    def planned(self, plan: QueuePlan) -> None:
        """A plan was made."""
        now_s = self._queue.now_s
        for job in self._now:
            if self._queue.courses[job].placed_s is None:
                self.waited_s[job] += now_s - self._since_s
        left = {share.name: QUOTAS[share.name] - share.used for share in self._queue.shares()}
        covered = list[str]()
        for entry in plan.entries:
            takes, project = entry.job.demand.counted, entry.job.project
            if takes <= left[project]:
                left[project] -= takes
                covered.append(entry.job.id)
                self.waited_s.setdefault(entry.job.id, 0.0)
        self._now, self._since_s = tuple(covered), now_s


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Of one week: how many jobs their quota covered, and how long they waited meanwhile (s), in the mean and the
    longest but one in twenty; how long any job waited for its first start; the share of the devices that trained while
    jobs came; GPU-seconds lost to preemptions, and how many."""

    covered: int
    wait_s: float
    wait_p95_s: float
    all_wait_s: float
    used: float
    lost_gpu_s: float
    preemptions: int


def run(works: list[Work], way: Way, days: int = DAYS) -> Found:
    """The week, to the end of its last job."""
    projects = tuple(Share(name=name, quota=quota, lend=way.lend) for name, quota in QUOTAS.items())
    queue, until_s = Queue(works, NODES, OF_EACH, policy=POLICY, choice=way.choice, projects=projects), days * DAY_S
    covered = Covered(queue)
    queue.run(until_s)
    courses = queue.courses.values()
    trained_gpu_s = sum(
        course.work.devices * (course.done_s if course.placed_s is None else course.trained_s(until_s))
        for course in courses
    )
    queue.run()
    mine = sorted(covered.waited_s.values())
    return Found(
        covered=len(mine),
        wait_s=fmean(mine),
        wait_p95_s=mine[int(0.95 * (len(mine) - 1))],
        all_wait_s=fmean(course.began[0] - course.work.arrives_s for course in courses),
        used=trained_gpu_s / (until_s * NODES * OF_EACH),
        lost_gpu_s=sum(course.lost_gpu_s for course in courses),
        preemptions=sum(len(course.asked) for course in courses),
    )


def main(argv: list[str]) -> int:
    """Prints the comparison; 0."""
    parser = argparse.ArgumentParser(prog="benchmarks quotas", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=5, help="weeks")
    parser.add_argument("--days", type=int, default=DAYS)
    options = parser.parse_args(argv)
    weeks = [shared_week(seed, options.days) for seed in range(options.seed, options.seed + options.seeds)]
    report = Report(goal_id="QUOTAS", title=f"quotas, {options.days} days on {NODES} x {OF_EACH} devices")
    report.facts = {"jobs": [len(works) for works in weeks], "quotas": QUOTAS}
    for way in WAYS:
        found = [run(works, way, options.days) for works in weeks]
        report.add(f"{way.name}: jobs that their quota covers", "", [float(each.covered) for each in found])
        report.add(f"{way.name}: a job that its quota covers waits, mean", "s", [each.wait_s for each in found])
        report.add(f"{way.name}: a job that its quota covers waits, p95", "s", [each.wait_p95_s for each in found])
        report.add(f"{way.name}: any job waits, mean", "s", [each.all_wait_s for each in found])
        report.add(f"{way.name}: devices that train", "%", [100.0 * each.used for each in found])
        report.add(f"{way.name}: lost to preemptions", "GPU-h", [each.lost_gpu_s / 3600.0 for each in found])
        report.add(f"{way.name}: preemptions", "", [float(each.preemptions) for each in found])
    report.finish()
    return 0
