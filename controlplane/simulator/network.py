"""Links between the server and the agents: slow, lossy, repeating, reordering, held up, or cut one way or both."""

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any

from controlplane.simulator.kernel import Kernel


class Way(StrEnum):
    """Of a message: from the agent to the server, or back."""

    UP = "up"
    DOWN = "down"


BOTH = (Way.UP, Way.DOWN)
Spell = tuple[float, float]
REJOINED_S = 3.0
"""After a cut an agent opens a new session and says where it is."""


class Network:
    """One link a node. `loss` and `repeat` are probabilities a message, the same for all; `echo`: of a message
    that comes again, up to `echo_s` later. A cut link carries nothing the ways that it is cut; one that is held
    carries nothing yet, and everything in its order afterwards."""

    def __init__(self, kernel: Kernel, delay_s: tuple[float, float] = (0.002, 0.02)) -> None:
        self._kernel = kernel
        self._delay_s = delay_s
        self.loss = 0.0
        self.repeat = 0.0
        self.echo, self.echo_s = 0.0, 0.0
        self.extra_delay_s = 0.0
        self.cut: set[tuple[str, Way]] = set()
        self._bad_s = -1e9
        self._cut_since_s: dict[str, float] = {}
        self._spells: dict[str, list[tuple[float, float]]] = {}
        self._held_until_s: dict[tuple[str, Way], float] = {}
        self._unheard_since_s: dict[str, float] = {}
        self._came_s: dict[str, float] = {}

    def send(self, node: str, deliver: Callable[[Any], None], message: Any, way: Way) -> None:
        """Carry `message` over the link of `node`; each copy takes its own time, so later
        ones may overtake earlier ones."""
        if (node, way) in self.cut:
            return
        if self.loss or self.echo or self.extra_delay_s:
            self._bad_s = self._kernel.now_s
        copies = 0 if self._kernel.random.random() < self.loss else 1
        copies += 1 if self.repeat and self._kernel.random.random() < self.repeat else 0
        held_s = max(0.0, self._held_until_s.get((node, way), 0.0) - self._kernel.now_s)
        for _ in range(copies):
            # What was held comes at once, in its order.
            delay_s = held_s or self._kernel.between(*self._delay_s) + self._kernel.between(0.0, self.extra_delay_s)
            self._kernel.after(delay_s, self._arrive, node, deliver, message, way)
        if self.echo and self._kernel.random.random() < self.echo:
            self._kernel.after(self._kernel.between(0.0, self.echo_s), self._arrive, node, deliver, message, way)

    def _arrive(self, node: str, deliver: Callable[[Any], None], message: Any, way: Way) -> None:
        if (node, way) in self.cut:
            return
        if way is Way.UP:
            self._came_s[node] = self._kernel.now_s
            if node in self._unheard_since_s:
                self.note_out(node, self._unheard_since_s.pop(node), self._kernel.now_s)
        deliver(message)

    def is_cut(self, node: str) -> bool:
        """Some way: no connection can be opened."""
        return node in self._cut_since_s

    def cut_link(self, node: str, *ways: Way) -> None:
        """Nothing passes these ways (both, unless said) until it is mended. What a bad network lost right before is of
        the same time out of touch."""
        since_s = now_s = self._kernel.now_s
        if Way.UP in (ways or BOTH) and self.is_bad(REJOINED_S):
            since_s = min(now_s, self._came_s.get(node, now_s))
        self.cut |= {(node, way) for way in ways or BOTH}
        self._cut_since_s.setdefault(node, since_s)

    def mend_link(self, node: str) -> None:
        """Messages pass again; what was sent meanwhile is lost. It is out of touch until one comes up."""
        self.cut -= {(node, way) for way in BOTH}
        since_s = self._cut_since_s.pop(node, None)
        if since_s is not None:
            self._unheard_since_s[node] = min(since_s, self._unheard_since_s.get(node, since_s))

    def hold_link(self, node: str, ways: tuple[Way, ...], seconds: float) -> None:
        """As a connection that sends again what was lost on the way: late, and in order."""
        until_s = self._kernel.now_s + seconds
        for way in ways:
            self._held_until_s[node, way] = max(until_s, self._held_until_s.get((node, way), 0.0))
        self.note_out(node, self._kernel.now_s, until_s)

    def is_bad(self, within_s: float) -> bool:
        """It loses or delays messages of all nodes, or has just done so."""
        return self._kernel.now_s - self._bad_s < within_s

    def note_out(self, node: str, from_s: float, until_s: float) -> None:
        """The node is out of touch so long, for whatever reason."""
        self._spells.setdefault(node, []).append((from_s, until_s))

    def out_of_touch_s(self, node: str, within_s: float, *, beside: Iterable[Spell] = ()) -> float | None:
        """How long it is out of touch, or was the longest time of those that ended less than `within_s` ago;
        None: it is not, and was not. What follows within `REJOINED_S` is one time, and so are spells `beside` its
        own (nobody heard then)."""
        now_s = self._kernel.now_s
        lasts = [(each[node], now_s) for each in (self._cut_since_s, self._unheard_since_s) if node in each]
        own = [*self._spells.get(node, ()), *lasts]
        own = [(from_s, until_s) for from_s, until_s in own if from_s <= now_s]
        lasting = [spell for spell in own if spell[1] > now_s - within_s]
        found = [_whole(spell, [*own, *beside]) for spell in lasting]
        return max((min(until_s, now_s) - from_s for from_s, until_s in found), default=None)


def _whole(spell: Spell, others: list[Spell]) -> Spell:
    """With those that touch it."""
    from_s, until_s = spell
    for other_from_s, other_until_s in sorted(others, reverse=True):
        if other_from_s < from_s <= other_until_s + REJOINED_S:
            from_s = other_from_s
    for other_from_s, other_until_s in sorted(others):
        if other_from_s - REJOINED_S <= until_s < other_until_s:
            until_s = other_until_s
    return from_s, until_s
