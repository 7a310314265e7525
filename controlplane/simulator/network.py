"""Links between the server and the agents: slow, lossy, repeating, reordering, or cut."""

from collections.abc import Callable
from typing import Any

from controlplane.simulator.kernel import Kernel


class Network:
    """One link a node. `loss` and `repeat` are probabilities a message, the same for all;
    a cut link carries nothing either way."""

    def __init__(self, kernel: Kernel, delay_s: tuple[float, float] = (0.002, 0.02)) -> None:
        self._kernel = kernel
        self._delay_s = delay_s
        self.loss = 0.0
        self.repeat = 0.0
        self.extra_delay_s = 0.0
        self.cut: set[str] = set()
        self.last_cut_s: dict[str, float] = {}

    def send(self, node: str, deliver: Callable[[Any], None], message: Any) -> None:
        """Carry `message` over the link of `node`; each copy takes its own time, so later
        ones may overtake earlier ones."""
        if node in self.cut:
            return
        copies = 0 if self._kernel.random.random() < self.loss else 1
        copies += 1 if self.repeat and self._kernel.random.random() < self.repeat else 0
        for _ in range(copies):
            delay_s = self._kernel.between(*self._delay_s) + self._kernel.between(0.0, self.extra_delay_s)
            self._kernel.after(delay_s, self._arrive, node, deliver, message)

    def _arrive(self, node: str, deliver: Callable[[Any], None], message: Any) -> None:
        if node not in self.cut:
            deliver(message)

    def cut_link(self, node: str) -> None:
        """Nothing passes until it is mended."""
        self.cut.add(node)
        self.last_cut_s[node] = self._kernel.now_s

    def mend_link(self, node: str) -> None:
        """Messages pass again; what was sent meanwhile is lost."""
        self.cut.discard(node)
        self.last_cut_s[node] = self._kernel.now_s
