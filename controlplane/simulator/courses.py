"""A job of `intervals`: what it asks for (`Work`), and what has become of it (`Course`). Numbers alone."""

import itertools
import math
from collections import Counter
from dataclasses import dataclass, field

from controlplane.policy.queue.rows import Demand


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A job: `of_each` devices on each of `nodes` nodes for `work_s` of training. Saved each `interval_s`, in `save_s`;
    a step takes `step_s`, a start `start_s`. It ends `limit_s` after its first start at the latest (0: no limit). Of
    its `replicas`, each on as many whole nodes or on as large a part of one, `least` must train."""

    id: str
    priority: int
    arrives_s: float
    nodes: int
    of_each: int
    work_s: float
    interval_s: float
    save_s: float
    step_s: float
    start_s: float
    preemptible: bool = True
    project: str = ""
    limit_s: float = 0.0
    replicas: int = 1
    least: int = 1

    def __post_init__(self) -> None:
        whole = self.nodes % self.replicas == 0 or (self.nodes == 1 and self.of_each % self.replicas == 0)
        assert whole, f"{self.id}: {self.replicas} replicas are no equal parts of {self.nodes} x {self.of_each} devices"

    @property
    def devices(self) -> int:
        """All that it takes."""
        return self.nodes * self.of_each

    @property
    def demand(self) -> Demand:
        """What its start takes."""
        return demand(self.nodes, self.of_each)

    @property
    def part(self) -> tuple[int, int]:
        """What each replica takes: so many nodes, so many devices of each."""
        if self.nodes % self.replicas:
            return 1, self.of_each // self.replicas
        return self.nodes // self.replicas, self.of_each


def demand(nodes: int, of_each: int) -> Demand:
    """So many devices on each of so many nodes."""
    taken = nodes * of_each
    return Demand(devices=taken, most=taken, touches=nodes, nodes=nodes, of_each=of_each)


@dataclass(slots=True)
class Course:
    """What has become of a job. `done_s` of its work is done and kept; it is placed since `placed_s` and trains from
    `trains_s` on; `more_s` of its work was done up to `since_s`, from when on `training` replicas train. `left_s`: when
    its devices are free, once it yields, to `urgent`. `asked`: when the queue has asked it to, `began`: each start.
    `places`: nodes of each replica that has devices; those `leaving` have them until then, and go to `gives_to`; those
    `joining` train from then on. `grown_s`: when it last took one back."""

    work: Work
    done_s: float = 0.0
    placed_s: float | None = None
    trains_s: float = 0.0
    more_s: float = 0.0
    since_s: float = 0.0
    training: int = 1
    left_s: float | None = None
    urgent: str = ""
    places: dict[int, tuple[str, ...]] = field(default_factory=dict)
    leaving: dict[int, float] = field(default_factory=dict)
    gives_to: str = ""
    joining: dict[int, float] = field(default_factory=dict)
    grown_s: float | None = None
    ended_s: float | None = None
    asked: list[float] = field(default_factory=list)
    came_back_s: float | None = None
    began: list[float] = field(default_factory=list)
    lost_gpu_s: float = 0.0

    @property
    def waits(self) -> bool:
        """It has no devices and has not ended."""
        return self.placed_s is None and self.ended_s is None

    @property
    def ends_s(self) -> float:
        """When it has trained everything, or its time is over, if nobody stops it."""
        left_s = (self.work.work_s - self.done_s - self.more_s) * self.work.replicas / self.training
        return min(self.over_s, self.since_s + left_s)

    @property
    def over_s(self) -> float:
        """When its time limit ends it, wherever it is."""
        limit_s = self.work.limit_s
        return self.began[0] + limit_s if limit_s and self.began else math.inf

    @property
    def devices(self) -> int:
        """So many it has."""
        return sum(map(len, self.places.values())) * self.work.part[1]

    def by_node(self) -> Counter[str]:
        """Its devices."""
        found = Counter[str]()
        for node in itertools.chain.from_iterable(self.places.values()):
            found[node] += self.work.part[1]
        return found

    def run_s(self, now_s: float) -> float:
        """Of work since it was placed, with what is no whole step yet."""
        return self.more_s + max(0.0, now_s - self.since_s) * self.training / self.work.replicas

    def trained_s(self, now_s: float) -> float:
        """Of work, with what is in no checkpoint yet; whole steps."""
        return self.done_s + math.floor(self.run_s(now_s) / self.work.step_s) * self.work.step_s

    def kept_s(self, now_s: float) -> float:
        """Of work that its newest checkpoint holds."""
        return self.done_s + math.floor(self.run_s(now_s) / self.work.interval_s) * self.work.interval_s

    def begins(self, now_s: float) -> None:
        """All replicas are placed, and train when it has started."""
        self.placed_s, self.trains_s = now_s, now_s + self.work.start_s
        self.more_s, self.since_s, self.training = 0.0, self.trains_s, self.work.replicas
        self.leaving, self.joining = {}, {}
        self.began.append(now_s)

    def trains_with(self, replicas: int, now_s: float) -> None:
        """From now on."""
        self.more_s, self.since_s = self.run_s(now_s), max(now_s, self.since_s)
        self.training = replicas

    def saves(self, now_s: float) -> tuple[float, ...]:
        """How long those took that it has made."""
        return (self.work.save_s,) if self.asked or self.kept_s(now_s) > 0.0 else ()
