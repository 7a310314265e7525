"""What people ask for while everything else happens: to evict a replica, once or again."""

import random

from controlplane.policy.snapshot import LIVE_REPLICA
from controlplane.simulator.kernel import Kernel
from controlplane.simulator.server import Server

AGAIN_WITHIN_S = 10.0
WHO = "user:ada: rack 7"


class People:
    """Draws from chances of its own, so that a world without orders is the world it was."""

    def __init__(self, kernel: Kernel, server: Server, seed: int) -> None:
        self._kernel, self._server = kernel, server
        self._random = random.Random(f"people {seed}")
        self.asked: list[tuple[float, int]] = []

    def schedule(self, since_s: float, until_s: float, count: int) -> None:
        """So many orders, half of them given twice."""
        for _ in range(count):
            at_s = self._random.uniform(since_s, until_s)
            self._kernel.after(at_s, self.order_out)
            if self._random.random() < 0.5:
                self._kernel.after(at_s + self._random.uniform(0.0, AGAIN_WITHIN_S), self.order_out)

    def order_out(self) -> None:
        """One that is being relieved, again, or any; refused while the server stands."""
        live = [row for row in self._server.rows.replicas.values() if row.state in LIVE_REPLICA]
        if self._server.paused or not live:
            return
        row = self._random.choice([row for row in live if row.relieved] or live)
        self.asked.append((self._kernel.now_s, row.index))
        self._kernel.log("person", f"orders r{row.index}.{row.incarnation} out")
        self._server.order_out(row, WHO)
