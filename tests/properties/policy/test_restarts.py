"""What a restart takes without asking the queue, over random fleets, projects and queues: never more than its project's
quota and what others lend, nothing that the job has yielded, and no node that is reserved for another project."""

import random
from collections import Counter

import pytest

from controlplane.policy.asked import Again
from controlplane.policy.elsewhere import decide_asking, parted
from controlplane.policy.plan import Decision, PlaceAttempt
from controlplane.policy.queue.demand import first_demand, later_demand
from controlplane.policy.queue.rows import Holder, Lender, Pending, QueueConfig, QueueFleet, Share
from controlplane.policy.queue.schedule import again
from controlplane.policy.reserved import Reservation, against
from controlplane.policy.rules import restart
from controlplane.policy.snapshot import AttemptFact, JobSnapshot, NodeFact, Placement, ReplicaFact
from controlplane.protocol.spec import (
    Parallelism,
    Resources,
    Scheduling,
    Spares,
    Training,
    TrainSpec,
    ranks_per_replica,
)
from controlplane.protocol.states import JobState
from tests.unit.policy.builders import (
    CONFIG,
    CONTRIBUTOR,
    NOW_S,
    action,
    actions,
    attempt,
    change,
    install_of,
    job,
    node,
    replica,
    running,
    signal,
    view_of,
)

PROJECTS = ("blue", "green", "red")
SIZE = 2
"""Devices of a node, and ranks of a replica."""


class RestartWorld:
    """A job of red of which everybody dies, again and again; other jobs have nodes, and some wait."""

    def __init__(self, seed: int) -> None:
        self.pick = pick = random.Random(f"restarts {seed}")
        asked = pick.randint(1, 4)
        self.spec = self._spec(asked, least=pick.randint(1, asked))
        yielded = pick.choice((0, 0, *range(1, asked))) if asked > 1 else 0
        layout = change(self.spec.parallelism, dp=asked)
        self.attempt: AttemptFact = attempt(layout=layout, replicas=asked, yielded=yielded)
        self.places = tuple(
            tuple(Placement(rank=rank, node_id=f"n{index}", device_index=rank) for rank in range(SIZE))
            for index in range(asked - yielded)
        )
        names = [f"n{number}" for number in range(asked - yielded + pick.randint(1, 5))]
        self.has: dict[str, str] = {name: pick.choice(("", "", *PROJECTS)) for name in names[asked - yielded :]}
        self.reserved = {name: self._reservation(name) for name in names if pick.random() < 0.25}
        self.names = names
        self.shares = tuple(self._share(name, SIZE * len(names)) for name in PROJECTS)
        self.waiting = [self._waits(f"w{number}") for number in range(pick.randint(0, 4))]
        self.lost: set[str] = set()

    def _spec(self, replicas: int, *, least: int) -> TrainSpec:
        pick = self.pick
        return TrainSpec(
            resources=Resources(
                nodes=replicas,
                gpus_per_node=SIZE,
                min_replicas=least,
                spares=Spares(gpus=pick.choice((0, 0, 1, 2))),
            ),
            parallelism=Parallelism(tp=1, pp=SIZE),
            training=Training(steps=100, global_batch=12),
            scheduling=Scheduling(preemptible=pick.random() < 0.7),
        )

    def _reservation(self, name: str) -> Reservation:
        from_s = NOW_S + self.pick.choice((-10.0, -10.0, 50.0))
        return Reservation(id=f"r-{name}", project=self.pick.choice(PROJECTS), from_s=from_s, until_s=NOW_S + 500.0)

    def _share(self, name: str, devices: int) -> Share:
        pick = self.pick
        return Share(
            name=name,
            quota=pick.choice((None, *range(devices + 1))),
            borrow=pick.choice((None, None, 0, 2)),
            lend=pick.choice((None, None, 0, 2)),
        )

    def _waits(self, name: str) -> Pending:
        pick = self.pick
        return Pending(
            id=name,
            name=name,
            priority=pick.choice((100, 500, 900)),
            submitted_s=0.0,
            demand=first_demand(self._spec(pick.randint(1, 2), least=1)),
            project=pick.choice(PROJECTS),
        )

    def used(self) -> Counter[str]:
        """Devices of each project, without the job's."""
        return Counter({name: SIZE * sum(its == name for its in self.has.values()) for name in PROJECTS})

    def quota(self) -> Again:
        """As a loader answers for it: by the plan that starts pending jobs."""
        used = self.used()
        lenders = [Lender(id=name, usable={"": SIZE}, free={"": self._free(name)}) for name in self.names]
        fleet = QueueFleet(
            nodes=tuple(lenders),
            holders=tuple(
                Holder(id=name, name=name, priority=500, devices=((name, SIZE),), project=its)
                for name, its in self.has.items()
                if its
            ),
            projects=tuple(change(share, used=used[share.name]) for share in self.shares if share.quota is not None),
        )
        mine = change(self._waits("mine"), project="red", demand=later_demand(self.spec))
        mine = change(mine, preemptible=self.spec.scheduling.preemptible)
        return again(self.waiting, fleet, QueueConfig(), NOW_S, mine)

    def _free(self, name: str) -> int:
        return 0 if self.has.get(name) else SIZE

    def nodes(self) -> tuple[NodeFact, ...]:
        """All of the fleet, as the job sees it."""
        mine = {place.node_id for its in self.places for place in its}
        return tuple(
            change(
                node(number, free=name not in mine and not self.has.get(name)),
                reservations=self.reserve_of(name),
            )
            for number, name in enumerate(self.names)
        )

    def dead(self) -> JobSnapshot:
        """A rank of each replica has ended; some devices are gone for good."""
        rows: tuple[ReplicaFact, ...] = tuple(
            replica(index, placements=its, world_size=len(its), joined_ranks=len(its))
            for index, its in enumerate(self.places)
        )
        view = view_of(*((row.index, 1, CONTRIBUTOR) for row in rows))
        found = [signal("rank_exit", row.index, replica=row.index, incarnation=1, rank=0, value=1.0) for row in rows]
        self.lost |= {name for name in self.names if self.pick.random() < 0.1}
        found += [
            signal("device_lost", 100 + number, node_id=name, device_index=0)
            for number, name in enumerate(sorted(self.lost))
        ]
        number = self.attempt.number
        return running(
            job=job(spec=self.spec, project="red", state=JobState.RUNNING),
            attempt=self.attempt,
            replicas=rows,
            view=change(view, attempt=number),
            install=change(install_of(view), attempt=number),
            signals=tuple(found),
            nodes=self.nodes(),
        )

    def reserve_of(self, name: str) -> tuple[Reservation, ...]:
        """What is reserved there."""
        return (self.reserved[name],) if name in self.reserved else ()

    def restarts(self) -> Decision | None:
        """What is decided when everybody is dead; None: another rule is asked first."""
        part, answer = parted(self.dead(), self.quota)
        _, plan = decide_asking(part, CONFIG, answer)
        return next((decision for decision in plan.decisions if decision.rule == restart.RULE), None)

    def carry_out(self, order: PlaceAttempt) -> None:
        """It is placed, and trains; some of the others end meanwhile, and their devices are free."""
        self.attempt = attempt(
            number=order.number,
            layout=order.layout,
            replicas=len(order.placements) + order.yielded,
            yielded=order.yielded,
        )
        self.places = order.placements
        taken = {place.node_id for its in order.placements for place in its}
        for name in self.names:
            if self.has.get(name) and self.pick.random() < 0.5:
                self.has[name] = ""
            assert name not in taken or not self.has.get(name), "it is placed on what is free"

    def beyond(self, order: PlaceAttempt) -> tuple[int, int]:
        """(devices beyond its project's quota, how many others lend), written down anew."""
        used = self.used()
        share = next(each for each in self.shares if each.name == "red")
        if share.quota is None:
            return 0, 0
        spares = min(self.spec.resources.spares.gpus, SIZE * len(order.spare_nodes))
        lent = 0
        for other in self.shares:
            if other.name != "red" and other.quota is not None:
                unused = other.quota - used[other.name]
                lent += min(unused, other.lend) if other.lend is not None and unused > 0 else unused
        most = max(0, lent if share.borrow is None else min(lent, share.borrow))
        return used["red"] + devices_of(order) + spares - share.quota, most if self.spec.scheduling.preemptible else 0


def devices_of(order: PlaceAttempt) -> int:
    """Under its ranks."""
    return sum(map(len, order.placements))


@pytest.mark.parametrize("first", range(0, 1200, 300))
def test_no_restart_takes_what_was_yielded_or_reserved_for_others_or_is_beyond_the_quota(first: int) -> None:
    seen = Counter[str]()
    for seed in range(first, first + 300):
        world = RestartWorld(seed)
        had = world.attempt.replicas - world.attempt.yielded
        kept = SIZE * had if world.attempt.yielded else SIZE * world.attempt.replicas
        for turn in range(3):
            decision = world.restarts()
            if decision is None or not actions(decision, PlaceAttempt):
                seen["queue"] += decision is not None
                seen["quota"] += decision is not None and "waits for its project's quota" in decision.sentence
                break
            order = action(decision, PlaceAttempt)
            over, lent = world.beyond(order)
            where = f"{seed}, restart {turn + 1}"
            assert over <= max(0, lent), f"{where}: red takes {over} beyond its quota, {lent} are lent"
            assert devices_of(order) <= kept, f"{where}: {devices_of(order)} devices, {kept} were kept"
            nodes = {place.node_id for its in order.placements for place in its} | {*order.spare_nodes}
            others = {name for name in nodes if against(world.reserve_of(name), "red", NOW_S) is not None}
            assert not others, f"{where}: {others} are reserved for others"
            seen["again"] += turn > 0
            seen["bounded"] += "its project's quota has" in decision.sentence
            seen["yielded"] += world.attempt.yielded > 0
            seen["borrowed"] += over > 0
            seen["layout"] += ranks_per_replica(order.layout) != SIZE
            world.carry_out(order)
    least = {"queue": 20, "quota": 10, "again": 50, "bounded": 10, "yielded": 20, "borrowed": 5, "layout": 2}
    assert all(seen[name] >= number for name, number in least.items()), seen


def test_a_fleet_without_quotas_bounds_no_restart() -> None:
    for seed in range(200):
        world = RestartWorld(seed)
        world.shares = tuple(change(share, quota=None) for share in world.shares)
        assert world.quota() == Again()
