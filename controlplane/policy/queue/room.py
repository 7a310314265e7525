"""Free devices counted by node, for each type that is asked for: does a demand fit, with how much to spare?

What is taken here is a forecast of where placement will put a job: the smallest nodes that hold it. Nothing rests on
its being right: `Spare` counts with the worst place.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from controlplane.policy.queue.rows import Demand, Lender
from controlplane.policy.queue.until import suits

UNBOUNDED = 1 << 60


class Spare:
    """What may still be taken of the fleet before a demand does not fit any more, wherever it is taken."""

    def __init__(self, nodes: int, devices: int) -> None:
        self.nodes, self.devices = nodes, devices

    def allows(self, nodes: int, devices: int) -> bool:
        """So many devices on so many nodes."""
        return self.nodes >= nodes and self.devices >= devices

    def give(self, nodes: int, devices: int) -> None:
        """They are taken."""
        self.nodes -= nodes
        self.devices -= devices


class Types:
    """Which models each demand means, in this fleet."""

    def __init__(self, models: Iterable[str]) -> None:
        self._models = tuple(sorted(set(models)))
        self._known: dict[tuple[str | None, float | None, str, bool], frozenset[str]] = {}

    def models(self, demand: Demand) -> frozenset[str]:
        """Names of the models of which it may take."""
        key = (demand.gpu_type, demand.over_s, demand.project, demand.alone)
        found = self._known.get(key)
        if found is None:
            found = frozenset(model for model in self._models if suits(model, demand))
            self._known[key] = found
        return found

    def overlap(self, one: Demand, other: Demand) -> bool:
        """Some device of the fleet suits both."""
        return not self.models(one).isdisjoint(self.models(other))


class Tally:
    """Of each set of models how many nodes have so many free devices, whichever nodes these are."""

    def __init__(self, types: Types, count: dict[frozenset[str], list[int]]) -> None:
        self._types, self._count = types, count

    def nodes_with(self, demand: Demand) -> int:
        """How many nodes have as many devices free as the demand takes of each."""
        return sum(self._count[self._types.models(demand)][demand.of_each :])

    def devices_for(self, demand: Demand) -> int:
        """How many free devices of its type there are."""
        return sum(size * number for size, number in enumerate(self._count[self._types.models(demand)]))

    def spare(self, demand: Demand) -> Spare:
        """What is left beside it, wherever it is placed; below 0: it does not fit, or not wherever it is placed."""
        free = self.devices_for(demand)
        if not demand.nodes:
            return Spare(UNBOUNDED, free - demand.devices)
        left = free - self._fullest(demand) - demand.spares if demand.spares else UNBOUNDED
        return Spare(self.nodes_with(demand) - demand.nodes, left)

    def fits(self, demand: Demand) -> bool:
        """Wherever it is placed."""
        return self.spare(demand).allows(0, 0)

    def largest(self, demand: Demand) -> int:
        """Devices of its type on the node that has most."""
        return len(self._count[self._types.models(demand)]) - 1

    def _fullest(self, demand: Demand) -> int:
        """Free devices of as many nodes as it takes, the fullest ones."""
        left, found = demand.nodes, 0
        for size, number in reversed(list(enumerate(self._count[self._types.models(demand)]))):
            taken = min(left, number)
            found += taken * size
            left -= taken
            if not left:
                break
        return found


class Room(Tally):
    """How many devices each node lends to each set of models. A node of several models lends what it has of those."""

    def __init__(self, nodes: Iterable[Lender], types: Types, demands: Iterable[Demand]) -> None:
        listed = tuple(nodes)
        usable, free = _by_model(n.usable for n in listed), _by_model(n.free for n in listed)
        wanted = {types.models(demand) for demand in demands}
        self._index = {node.id: number for number, node in enumerate(listed)}
        self._usable = {models: _of_models(usable, models, len(listed)) for models in wanted}
        self._free = {models: _of_models(free, models, len(listed)) for models in wanted}
        super().__init__(types, {models: _counted(its, self._usable[models]) for models, its in self._free.items()})
        self._sized: dict[frozenset[str], list[list[int]]] = {}

    def tally(self) -> Tally:
        """How much is free now, for later."""
        return Tally(self._types, {models: list(count) for models, count in self._count.items()})

    def copy(self) -> "Room":
        """One that changes by itself."""
        return self._with({models: list(free) for models, free in self._free.items()})

    def idle(self) -> "Room":
        """As if every job had ended."""
        return self._with({models: list(usable) for models, usable in self._usable.items()})

    def _with(self, free: dict[frozenset[str], list[int]]) -> "Room":
        made = Room((), self._types, ())
        made._index, made._usable, made._free = self._index, self._usable, free
        made._count = {models: _counted(its, self._usable[models]) for models, its in free.items()}
        return made

    def take(self, demand: Demand) -> None:
        """Where it will probably be placed."""
        models = self._types.models(demand)
        if not demand.nodes:
            self._take_devices(models, demand.most, set())
            return
        used: set[int] = set()
        for size in range(demand.of_each, len(self._count[models])):
            used.update(self._pick(models, size, demand.nodes - len(used), used))
        for number in used:
            self._change(number, -demand.of_each)
        self._take_devices(models, demand.spares, used)

    def _take_devices(self, models: frozenset[str], wanted: int, used: set[int]) -> None:
        """So many, of nodes that are not `used`, whole ones from the fullest on."""
        for size in range(len(self._count[models]) - 1, 0, -1):
            if wanted <= 0:
                return
            for number in self._pick(models, size, -(-wanted // size), used):
                self._change(number, -size)
                wanted -= size

    def _pick(self, models: frozenset[str], size: int, wanted: int, used: set[int]) -> list[int]:
        """At most so many nodes with `size` free devices, by index, none of them `used`; each is changed next."""
        free = self._free[models]
        if models not in self._sized:
            sized = self._sized[models] = [list[int]() for _ in self._count[models]]
            for number in range(len(free) - 1, -1, -1):
                sized[free[number]].append(number)
        stack, found, passed = self._sized[models][size], list[int](), list[int]()
        while stack and len(found) < wanted:
            number = stack.pop()
            if free[number] == size and number not in found:
                (passed if number in used else found).append(number)
        stack.extend(reversed(passed))
        return found

    def only(self, demand: Demand) -> "Room":
        """A copy for this demand alone."""
        models = self._types.models(demand)
        return self._with({models: list(self._free[models])})

    def gains(self, demand: Demand, devices: Iterable[tuple[str, int]]) -> int:
        """How many more devices of its type are free when so many on these nodes are."""
        models = self._types.models(demand)
        usable, free = self._usable[models], self._free[models]
        known = ((self._index[node_id], number) for node_id, number in devices if node_id in self._index)
        return sum(min(number, usable[index] - free[index]) for index, number in known)

    def give_back(self, devices: Iterable[tuple[str, int]]) -> list[tuple[int, dict[frozenset[str], int]]]:
        """Somebody who held so many on these nodes has ended; nodes that take no work stay out. What was free on each
        node before, for `restore`."""
        before = []
        for node_id, number in devices:
            index = self._index.get(node_id)
            if index is not None:
                before.append((index, {models: free[index] for models, free in self._free.items()}))
                self._change(index, number)
        return before

    def restore(self, before: list[tuple[int, dict[frozenset[str], int]]]) -> None:
        """As it was before the last `give_back`."""
        for index, was in reversed(before):
            for models, free in was.items():
                self._set(models, index, free)

    def _change(self, number: int, by: int) -> None:
        for models, free in self._free.items():
            self._set(models, number, min(self._usable[models][number], max(0, free[number] + by)))

    def _set(self, models: frozenset[str], number: int, after: int) -> None:
        before = self._free[models][number]
        if after != before:
            self._free[models][number] = after
            self._count[models][before] -= 1
            self._count[models][after] += 1
            if models in self._sized:
                self._sized[models][after].append(number)


def _by_model(given: Iterable[Mapping[str, int]]) -> dict[str, list[tuple[int, int]]]:
    """By model (number of the node, how many it has)."""
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for number, devices in enumerate(given):
        for model, size in devices.items():
            found[model].append((number, size))
    return found


def _of_models(by_model: Mapping[str, list[tuple[int, int]]], models: frozenset[str], nodes: int) -> list[int]:
    """How many devices of these models each node has."""
    found = [0] * nodes
    for model in models:
        for number, size in by_model.get(model, ()):
            found[number] += size
    return found


def _counted(free: Iterable[int], usable: Iterable[int]) -> list[int]:
    """How many nodes have so many free devices, for each number that a node could have."""
    sizes = Counter(free)
    return [sizes[number] for number in range(max(usable, default=0) + 1)]
