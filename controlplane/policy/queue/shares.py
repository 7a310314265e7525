"""What each project may take of the fleet: devices of its own, what others lend, and who is first of equal priority.

A project with a quota starts jobs on its own devices, and on as many of others' as they lend and neither use nor wait
for. What is lent comes back: jobs of a project that has more than its quota yield, whatever their priority, to one that
is within its own (`policy.queue.preempt`). A project without a quota has no limit, lends nothing and owes nothing, so a
fleet without quotas is one queue. Called by `policy.queue.schedule`. Pure but for the counts of one plan.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterable

from controlplane.policy.queue.room import UNBOUNDED
from controlplane.policy.queue.rows import Holder, Pending, Share
from controlplane.policy.titles import number_of

NAMED = 3
"""Projects that one sentence names."""


class Shares:
    """Of one plan: what jobs that are planned to start take is counted as they are planned. `holders`: who has devices,
    some of whom leave them."""

    def __init__(self, projects: Iterable[Share], holders: Iterable[Holder] = ()) -> None:
        self._leaving: dict[str, int] = defaultdict(int)
        for holder in holders:
            self._leaving[holder.project] += _leaving(holder)
        self._limited = {share.name: share for share in projects if share.quota is not None}
        self._used = {name: share.used for name, share in self._limited.items()}
        self._waits: dict[str, int] = defaultdict(int)
        self._alone: set[str] = set()

    def waits(self, job: Pending) -> None:
        """It is in the queue, and could start: what it needs of its project's own devices is lent to nobody."""
        if job.project in self._limited:
            self._waits[job.project] += self._wants(job)

    def leaves(self, job: Pending) -> int:
        """So many devices its project may use for it now, of its own and of what others lend."""
        share = self._limited.get(job.project)
        if share is None:
            return UNBOUNDED
        borrows = job.preemptible and job.project not in self._alone
        return _quota(share) - self._used[share.name] + (self._borrows(share) if borrows else 0)

    def lacks(self, job: Pending) -> int:
        """How many devices of what its project uses must be free before it may start."""
        return job.demand.least - self.leaves(job)

    def own(self, job: Pending) -> int:
        """How many devices of its own its project has left; below 0: it uses more."""
        return self._quota_of(job) - self._used[job.project]

    def owns(self, job: Pending) -> bool:
        """Its project's own devices alone would be enough for it."""
        return job.project in self._limited and job.demand.least <= self._quota_of(job)

    def take(self, job: Pending) -> None:
        """It is planned to start, or is the head, which keeps its part."""
        if job.project in self._limited:
            takes = max(job.demand.least, min(job.demand.counted, self.leaves(job)))
            self._used[job.project] += takes
            self._waits[job.project] -= self._wants(job)
            # Whoever of its project starts before it would have its own devices, and leave it those that others lend.
            self._alone |= set() if job.preemptible else {job.project}

    def within(self, job: Pending) -> bool:
        """It needs nothing but its project's own devices, which others may have."""
        share = self._limited.get(job.project)
        return share is not None and share.used + job.demand.least <= _quota(share)

    def reclaims(self, job: Pending, holder: Holder) -> bool:
        """The holder's project has more than its own devices, and the job needs no more than those of its project."""
        return holder.project != job.project and self.over(holder.project) > 0 and self.within(job)

    def guards(self, job: Pending, holder: Holder) -> bool:
        """The holder runs on its project's own devices: another project's job takes none of them by priority."""
        limited = holder.project in self._limited and holder.project != job.project
        return limited and self.over(holder.project) <= 0

    def over(self, project: str) -> int:
        """Devices that the project's running jobs have beyond its quota, less those that are on their way back; 0 where
        it has none."""
        share = self._limited.get(project)
        return max(0, share.used - self._leaving[project] - _quota(share)) if share is not None else 0

    def called(self, project: str) -> str:
        """As whoever reads the plan may know it."""
        share = self._limited.get(project)
        return (share.shown if share is not None else "") or project

    def _borrows(self, share: Share) -> int:
        """So many devices beyond its own it may have in all: of what others lend and neither use, wait for, nor have
        lent already; at most its limit."""
        others = [each for each in self._limited.values() if each.name != share.name]
        lent = sum(self._lends(each) for each in others)
        borrowed = sum(max(0, self._used[each.name] - _quota(each)) for each in others)
        free = max(0, lent - borrowed)
        return free if share.borrow is None else min(free, share.borrow)

    def _lends(self, share: Share) -> int:
        unused = _quota(share) - self._used[share.name]
        free = max(0, unused - max(0, self._waits[share.name]))
        return free if share.lend is None else min(free, share.lend)

    def _wants(self, job: Pending) -> int:
        """Of its project's own devices: all that it asks for, or as many of them as there are where fewer will do."""
        wanted = min(job.demand.counted, self._quota_of(job))
        return wanted if job.demand.least <= wanted else 0

    def _quota_of(self, job: Pending) -> int:
        return _quota(self._limited[job.project])

    def kept_words(self, job: Pending, first: Pending, *, known: bool) -> str:
        """Why it does not pass the first job of its project that waits for the quota. Completes a sentence."""
        kept = f"what {_of(self._limited[job.project])} may use is kept for {first.name} (priority {first.priority})"
        if not known:
            return f"{kept}, ahead of it: nobody knows when that starts"
        limit = "no time limit ends it" if job.limit_s is None else "its time limit does not end it"
        return f"{kept}, ahead of it: {limit} before that is expected to start, and that needs what this one would take"

    def words(self, job: Pending, *, in_another_layout: bool = False) -> str:
        """The quota, who has what is lent, and what would free it. Completes a sentence. `in_another_layout`: the nodes
        that take work could not hold it otherwise, and any device would be a beginning."""
        share = self._limited[job.project]
        used, need = self._used[share.name], job.demand.least
        over = used + need - _quota(share)
        has = f"{_of(share)} has {number_of(_quota(share), 'device')} of its own, {used} are in use or planned for"
        limit = f"{has}, it may borrow at most {share.borrow}"
        if in_another_layout:
            return f"{has}, none is left for the job in another layout, and the nodes that take work hold no other"
        if not job.preemptible and used + need > _quota(share):
            return f"{has}, it needs {need}, and a job that is not preemptible borrows none"
        if share.borrow is not None and max(need - _quota(share), 0) > share.borrow:
            return f"{limit}: with this quota the job, which needs {need}, never fits"
        if share.borrow is not None and over > share.borrow:
            return f"{limit}, and the job needs {need}: it waits for jobs of its project to end"
        lends = self._borrows(share)
        others = (each for each in self._limited.values() if each.name != share.name)
        borrowers = sorted({each.shown or each.name for each in others if each.used > _quota(each)})
        named = f" (borrowed by {', '.join(borrowers[:NAMED])})" if borrowers else ""
        return (
            f"{has}, and others lend it {lends} more{named}: the job needs {need}, and waits until jobs of its project"
            " end, or others lend more"
        )


def in_turn(queue: Iterable[Pending], projects: Iterable[Share] = ()) -> tuple[Pending, ...]:
    """The queue, first in line first: the higher priority; then whose project has borrowed least for its weight,
    counting what those ahead take; then who has waited longer; then by id."""
    limited = {share.name: share for share in projects if share.quota is not None}
    used = {name: share.used for name, share in limited.items()}
    lines: dict[int, dict[str, list[Pending]]] = defaultdict(lambda: defaultdict(list))
    for job in sorted(queue, key=lambda job: (job.submitted_s, job.id), reverse=True):
        lines[job.priority][job.project if job.project in limited else ""].append(job)
    found: list[Pending] = []
    for priority in sorted(lines, reverse=True):
        by_project = lines[priority]

        def key(name: str, its: dict[str, list[Pending]] = by_project) -> tuple[float, float, str, str]:
            share, job = limited.get(name), its[name][-1]
            owes = max(0, used[name] - _quota(share)) / share.weight if share is not None else 0.0
            return owes, job.submitted_s, job.id, name

        heap = [key(name) for name in by_project]
        heapq.heapify(heap)
        while heap:
            name = heapq.heappop(heap)[-1]
            job = by_project[name].pop()
            found.append(job)
            if name in used and not job.held:
                free = _quota(limited[name]) - used[name]
                used[name] += max(job.demand.least, min(job.demand.counted, free))
            if by_project[name]:
                heapq.heappush(heap, key(name))
    return tuple(found)


def _leaving(holder: Holder) -> int:
    left = (*holder.devices, *holder.gives) if holder.leaves else holder.gives
    return sum(number for _, number in left)


def _quota(share: Share) -> int:
    assert share.quota is not None, "asked of projects that have one"
    return share.quota


def _of(share: Share) -> str:
    return f"project {share.name}"
