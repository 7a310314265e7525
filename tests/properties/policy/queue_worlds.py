"""Fleets and queues at random, in which jobs are placed by the code that places them in the product."""

import math
import random
from collections import defaultdict

import msgspec

from controlplane.policy.errors import PolicyError
from controlplane.policy.placement import build_pool, of_type
from controlplane.policy.queue import until
from controlplane.policy.queue.demand import first_demand
from controlplane.policy.queue.rows import Entry, Holder, Lender, Pending, QueueConfig, QueueFleet, QueuePlan
from controlplane.policy.queue.schedule import schedule
from controlplane.policy.reserved import Reservation, is_own, takes
from controlplane.policy.rules.lifecycle import first_attempt
from controlplane.policy.snapshot import DeviceFact, NodeFact
from controlplane.protocol.spec import Parallelism, Resources, Spares, TrainSpec
from controlplane.protocol.states import NodeState

NOW_S = 1000.0
MODELS = ("NVIDIA A100", "NVIDIA H100")
CONFIG = QueueConfig()
PROJECTS = ("blue", "red")
Taken = dict[str, int]


def reserved_for(pick: random.Random, node: str) -> tuple[Reservation, ...]:
    """Now, or later."""
    from_s = NOW_S + pick.choice((-10.0, -10.0, 30.0, 100.0))
    return (Reservation(id=f"r-{node}", project=pick.choice(PROJECTS), from_s=from_s, until_s=NOW_S + 500.0),)


class QueueWorld:
    """Nodes of devices, jobs that hold some and jobs that wait. Time stands still but where `end` is called."""

    def __init__(self, seed: int, *, reserves: bool = False) -> None:
        self.random = random.Random(seed)
        pick = self.random
        self.sizes = {f"n{number}": pick.choice((2, 4, 4, 8)) for number in range(pick.randint(2, 9))}
        self.models = {node: pick.choice(MODELS if pick.random() < 0.4 else MODELS[:1]) for node in self.sizes}
        self.out = {node for node in self.sizes if pick.random() < 0.1}
        kept = random.Random(f"reserved {seed}")
        self.owners = random.Random(f"projects {seed}")
        some = self.sizes if reserves and kept.random() < 0.5 else {}
        self.reserved = {node: reserved_for(kept, node) for node in some if kept.random() < 0.5}
        self.used: dict[str, dict[int, str]] = defaultdict(dict)
        self.whole: dict[str, str] = {}
        self.ends_s: dict[str, float | None] = {}
        self.specs: dict[str, TrainSpec] = {}
        self.waiting: dict[str, Pending] = {}
        self.begun: list[str] = []
        for number in range(pick.randint(1, 12)):
            self.submit(f"j{number:02}")
        for entry in self.plan().entries:
            if pick.random() < 0.5:
                self.start(entry)
        for number in range(pick.randint(2, 8)):
            self.submit(f"w{number:02}")

    def submit(self, job_id: str) -> None:
        """A job of any shape that the spec allows."""
        pick = self.random
        of_each = pick.choice((1, 2, 2, 4, 8))
        ranks = pick.choice([size for size in (1, 2, 4, 8) if size <= of_each])
        resources = Resources(
            nodes=pick.choice((1, 1, 2, 3)),
            gpus_per_node=of_each,
            gpu_type=pick.choice((None, None, "A100", "H100")),
            spares=Spares(gpus=pick.choice((0, 0, 2, 4))),
        )
        self.specs[job_id] = TrainSpec(resources=resources, parallelism=Parallelism(pp=ranks))
        limit_s = self.owners.choice((None, None, 20.0, 200.0)) if self.reserved else None
        over_s = None if limit_s is None else NOW_S + limit_s
        self.waiting[job_id] = Pending(
            id=job_id,
            name=job_id,
            priority=pick.choice((100, 500, 500, 900)),
            submitted_s=float(len(self.specs)),
            demand=msgspec.structs.replace(first_demand(self.specs[job_id]), over_s=over_s),
            project=self.owners.choice((*PROJECTS, "")) if self.reserved else "",
            limit_s=limit_s,
            held="an administrator" if pick.random() < 0.05 else "",
        )

    def plan(self) -> QueuePlan:
        """For who waits now."""
        return schedule(self.waiting.values(), self.fleet(), CONFIG, NOW_S)

    def fleet(self) -> QueueFleet:
        """As the loader counts it."""
        devices: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for node, used in self.used.items():
            for job_id in used.values():
                devices[job_id][node] += 1
        for node, job_id in self.whole.items():
            devices[job_id][node] += self.sizes[node] - len(self.used[node])
        lenders = [
            Lender(
                id=node,
                usable={self.models[node]: size},
                free={} if node in self.whole else {self.models[node]: size - len(self.used[node])},
                reserved_for=self.whole.get(node, ""),
                reservations=self.reserved.get(node, ()),
            )
            for node, size in self.sizes.items()
            if node not in self.out
        ]
        holders = [
            Holder(id=job, name=job, priority=500, devices=tuple(sorted(its.items())), ends_s=self.ends_s[job])
            for job, its in devices.items()
        ]
        lent = tuple(part for each in lenders for part in until.lent(each, None, NOW_S))
        return QueueFleet(nodes=lent, holders=tuple(holders))

    def start(self, entry: Entry) -> Taken | None:
        """As the plan has it."""
        return self.place(entry.job.id, alone=True) if entry.alone else self.place(entry.job.id)

    def place(self, job_id: str, *, alone: bool = False) -> Taken | None:
        """Start it where the product would, `alone` on nodes that are reserved for its project; devices by node that it
        took, None: it does not fit."""
        spec, job = self.specs[job_id], self.waiting[job_id]
        own = {node for node, kept in self.reserved.items() if is_own(kept, job.project, NOW_S)}
        there = [
            node
            for node in self._nodes()
            if takes(self.reserved.get(node.id, ()), job.project, job.demand.over_s, NOW_S)
            if node.id in own or not alone
        ]
        pool = build_pool(of_type(there, spec.resources.gpu_type), job_id=job_id, alone=own)
        try:
            _, gang, spares = first_attempt(spec, pool)
        except PolicyError:
            return None
        taken: Taken = defaultdict(int)
        for replica in gang:
            for place in replica:
                assert place.device_index not in self.used[place.node_id], "a device has one rank"
                self.used[place.node_id][place.device_index] = job_id
                taken[place.node_id] += 1
        for node in spares:
            self.whole[node] = job_id
            taken[node] += self.sizes[node] - len(self.used[node])
        self.ends_s[job_id] = self.random.choice((None, NOW_S + self.random.randint(1, 50)))
        if job.limit_s is not None:
            self.ends_s[job_id] = min(NOW_S + job.limit_s, self.ends_s[job_id] or math.inf)
        del self.waiting[job_id]
        self.begun.append(job_id)
        return taken

    def end(self, job_id: str) -> None:
        """Its devices are free."""
        for used in self.used.values():
            for index in [index for index, holder in used.items() if holder == job_id]:
                del used[index]
        self.whole = {node: holder for node, holder in self.whole.items() if holder != job_id}
        del self.ends_s[job_id]

    def entry(self, job_id: str) -> Entry | None:
        """Of the plan as it is now."""
        return next((entry for entry in self.plan().entries if entry.job.id == job_id), None)

    def _nodes(self) -> tuple[NodeFact, ...]:
        return tuple(
            NodeFact(
                id=node,
                name=node,
                state=NodeState.DRAINING if node in self.out else NodeState.READY,
                connected=True,
                silent_s=0.0,
                reserved_for=self.whole.get(node),
                devices=tuple(
                    DeviceFact(
                        index=index,
                        uuid=f"{node}-{index}",
                        free=index not in self.used[node] and node not in self.whole,
                        held=index in self.used[node],
                        model=self.models[node],
                    )
                    for index in range(size)
                ),
            )
            for node, size in self.sizes.items()
        )
