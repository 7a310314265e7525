"""A recorded week made again: every decision by the policy that made it, byte for byte, and by a candidate.

A hundred jobs of 48 ranks (one in ten of 192) lose ranks and nodes, 10,000 decisions in all, each on a snapshot of its
own, stored in SQLite as passes store them. Then the journal is read, unpacked, decided and compared page by page.

    python -m benchmarks replay [--decisions 10000] [--repeats 3]
"""

import argparse
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks.decide_worlds import MOMENTS, Size
from benchmarks.own_database import own_database
from benchmarks.report import Report
from controlplane.policy.config import PolicyConfig
from controlplane.policy.decide import decide
from controlplane.policy.snapshot import JobSnapshot

if TYPE_CHECKING:
    from controlplane.recovery.replay import Candidate, Page

JOBS, LARGE = 100, 10
SMALL_JOB, LARGE_JOB = Size(6, 8), Size(24, 8)
GOAL_S = 10.0
CANDIDATE = {"rule_modes": {"replica_failure": "recommend"}}


def main(argv: list[str]) -> int:
    """Prints a table; 0 if every decision came out equal within the goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decisions", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(argv)
    with own_database(postgres=False):
        return _measure(options.decisions, max(1, options.repeats))


def _measure(wanted: int, repeats: int) -> int:
    from controlplane.policies.selectors import candidate
    from controlplane.policies.whose import FLEETS

    stored = _record(wanted)
    report = Report(goal_id="replay", title=f"a week of {JOBS} jobs and {stored} decisions, made again")
    began_s = time.process_time()
    runs = [_whole(None) for _ in range(repeats)]
    core_s = (time.process_time() - began_s) / repeats
    equal = all(page.equal == page.replayed and not page.left_out for _, pages in runs for page, _ in pages)
    made = sum(page.replayed for page, _ in runs[0][1])
    report.add("by its own policy, the whole", "s", [took_s for took_s, _ in runs], goal=f"< {GOAL_S:g}")
    each = [took_s * 1000.0 / page.replayed for _, pages in runs for page, took_s in pages if page.replayed]
    report.add("a decision, mean of a page", "ms", each)
    others = [_whole(candidate(FLEETS, CANDIDATE)) for _ in range(repeats)]
    report.add("by a candidate, the whole", "s", [took_s for took_s, _ in others])
    report.facts |= {
        "seconds of a core by its own policy": round(core_s, 2),
        "decisions": made,
        "byte-equal": equal,
        "differ by the candidate": sum(len(page.differs) for page, _ in others[0][1]),
    }
    report.finish()
    worst = max(took_s for took_s, _ in runs)
    print(f"{made} of {stored} made again, {'all' if equal else 'NOT all'} byte-equal, at most {worst:.1f} s")
    return 0 if equal and made == stored and worst < GOAL_S else 1


def _whole(candidate: "Candidate | None") -> tuple[float, list[tuple["Page", float]]]:
    """Seconds, and each page with its own."""
    from controlplane.recovery.replay import replay

    began_s, after, pages = time.perf_counter(), "", []
    while True:
        page_s = time.perf_counter()
        page = replay(since_s=7 * 86_400.0, after=after, candidate=candidate)
        pages.append((page, time.perf_counter() - page_s))
        if page.after is None:
            return time.perf_counter() - began_s, pages
        after = page.after


def _record(wanted: int) -> int:
    """As many decisions as that at least, of all moments in turn; how many."""
    from controlplane.jobs.services import submit_job
    from controlplane.policies.selectors import InForce
    from controlplane.protocol.spec import JobSpec, Metadata, Resources, TrainSpec
    from controlplane.recovery.decided import new_row
    from controlplane.recovery.models import Decision

    spec = TrainSpec(resources=Resources(nodes=1, gpus_per_node=8))
    jobs = [
        submit_job(JobSpec(metadata=Metadata(name=f"job-{number}"), spec=spec), owner="ada", actor="ada")
        for number in range(JOBS)
    ]
    config, rows, number = PolicyConfig(), list[Any](), 0
    moments: list[Callable[[Size], JobSnapshot]] = list(MOMENTS.values())
    while len(rows) < wanted:
        attempt, index = divmod(number, JOBS)
        size = LARGE_JOB if index < LARGE else SMALL_JOB
        snapshot = _of_attempt(moments[number % len(moments)](size), attempt + 1)
        for decision in decide(snapshot, config).decisions:
            rows.append(new_row(jobs[index], decision, snapshot, by=InForce(config, {}), decide_s=0.0))
        number += 1
        assert rows or number < len(moments), "some moment asks for a decision"
    Decision.objects.bulk_create(rows, 500)
    return len(rows)


def _of_attempt(snapshot: JobSnapshot, number: int) -> JobSnapshot:
    """The same moment in another attempt, so that its decisions have keys of their own."""
    changed = msgspec.structs.replace
    assert snapshot.attempt is not None, "every moment is of a job that runs"
    assert snapshot.view is not None, "and has a view"
    return changed(
        snapshot,
        attempt=changed(snapshot.attempt, number=number),
        view=changed(snapshot.view, attempt=number),
        install=changed(snapshot.install, attempt=number) if snapshot.install is not None else None,
        flushes=tuple(changed(flush, attempt=number) for flush in snapshot.flushes),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
