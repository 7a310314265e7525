"""What people ask for while everything else happens: to evict a replica, once or again, to empty a node, to save;
now and then they take it back."""

import random

import msgspec

from controlplane.policy.rules.preempt_request import YIELDS
from controlplane.policy.snapshot import LIVE_REPLICA
from controlplane.protocol.commands import Body, CommandRank, InjectDeviceFault, InjectLinkFault
from controlplane.protocol.states import NodeState, RequestKind, Verdict
from controlplane.simulator.control import Control
from controlplane.simulator.kernel import Kernel
from controlplane.simulator.rows import JOB_ID
from controlplane.simulator.server import Server

AGAIN_WITHIN_S = 10.0
WORKED_ON_S = 20.0
WHO, WHY = "user:ada", "rack 7"


class People:
    """Draws from chances of its own, so that a world without orders is the world it was. `asked`: the replicas
    that were to leave and were not to stay after all, at server seconds. `control`: of the job that they ask something
    of; the first one unless said."""

    def __init__(self, kernel: Kernel, server: Server, seed: int, control: Control | None = None) -> None:
        self._kernel, self._server, self._control = kernel, server, control or server.first
        rows = self._control.rows
        self._random = random.Random(f"people {seed}" if rows.job_id == JOB_ID else f"people {seed} {rows.name}")
        self.asked: list[tuple[float, int]] = []

    def schedule(self, since_s: float, until_s: float, count: int) -> None:
        """So many orders to evict, half of them given twice; beside each one, now and then, to empty a node or to
        save."""
        for _ in range(count):
            at_s = self._random.uniform(since_s, until_s)
            self._kernel.after(at_s, self.order_out)
            if self._random.random() < 0.5:
                self._kernel.after(at_s + self._random.uniform(0.0, AGAIN_WITHIN_S), self.order_out)
            if self._random.random() < 0.4:
                self._kernel.after(self._random.uniform(since_s, until_s), self.drain)
            if self._random.random() < 0.4:
                self._kernel.after(self._random.uniform(since_s, until_s), self.save)

    def order_out(self) -> None:
        """One that is being relieved, again, or any; refused while the server stands."""
        live = [row for row in self._control.rows.replicas.values() if row.state in LIVE_REPLICA]
        if self._server.paused or not live:
            return
        row = self._random.choice([row for row in live if row.relieved] or live)
        request_id = self._control.asked.ask(
            RequestKind.EVICT,
            WHO,
            WHY,
            attempt=self._control.rows.attempt.number if self._control.rows.attempt else None,
            replica=row.index,
            incarnation=row.incarnation,
        )
        if self._random.random() < 0.2:
            self._kernel.after(self._random.uniform(0.0, AGAIN_WITHIN_S), self.withdraw, request_id)
            return
        self.asked.append((self._kernel.now_s, row.index))

    def drain(self) -> None:
        """Any node that takes work; taken back later, or returned when it has been worked on."""
        nodes = [node for node in self._control.rows.nodes.values() if node.state is NodeState.READY]
        if self._server.paused or not nodes:
            return
        node = self._random.choice(nodes)
        request_id = self._control.asked.ask(RequestKind.DRAIN, WHO, WHY, node_id=node.id, before=str(node.state))
        node.state = NodeState.DRAINING
        if self._random.random() < 0.3:
            self._kernel.after(self._random.uniform(0.0, AGAIN_WITHIN_S), self.withdraw, request_id)
        self._kernel.after(WORKED_ON_S, self._return, node.id)

    def cancel(self) -> None:
        """The whole job."""
        self._control.rows.cancel_requested = True
        self._kernel.log("person", "cancels the job")
        self._server.ring()

    def preempt(self, for_s: float) -> None:
        """The whole job yields its devices for so long."""
        attempt = self._control.rows.attempt
        if self._server.paused or attempt is None or self._control.rows.state not in YIELDS:
            return
        self._control.asked.ask(RequestKind.PREEMPT, WHO, WHY, attempt=attempt.number)
        self._kernel.after(for_s, self.resume)

    def resume(self) -> None:
        """It may have its turn again; asked again as long as it is parked."""
        if self._control.rows.parked_by and not self._server.paused:
            self._control.asked.ask(RequestKind.RESUME, WHO, WHY)
        elif self._control.rows.parked_by or any(
            request.kind is RequestKind.PREEMPT for request in self._control.rows.requests.values()
        ):
            self._kernel.after(AGAIN_WITHIN_S, self.resume)

    def save(self) -> None:
        """A checkpoint by hand."""
        if not self._server.paused:
            self._control.asked.ask(RequestKind.CHECKPOINT, WHO, WHY)

    def inject(self, fault: str = "xid", value: float = 95.0) -> None:
        """A fault of a device, as in a demo: on a node that runs something, or on any."""
        if not self._server.paused:
            self._give(self._node(), InjectDeviceFault(device_index=0, fault=fault, value=value))

    def drop_link(self, seconds: float) -> None:
        """Of a node, as in a demo."""
        if not self._server.paused:
            self._give(self._node(), InjectLinkFault(seconds=seconds))

    def lose_key(self, seconds: float) -> None:
        """Of the server, which opens what of the job rests sealed; somebody brings it back."""
        self._control.rows.env_opens = False
        self._kernel.log("person", f"the server's key is away for {seconds:.0f} s")
        self._kernel.after(seconds, self._bring_key)

    def _bring_key(self) -> None:
        self._control.rows.env_opens = True
        self._server.ring()

    def command_rank(self) -> None:
        """One that trains frees what it does not need."""
        live = [row for _, row in sorted(self._control.rows.replicas.items()) if row.state in LIVE_REPLICA]
        if self._server.paused or not live:
            return
        row = self._random.choice(live)
        place = self._random.choice(row.placements)
        body = CommandRank(
            job_id=self._control.rows.job_id,
            attempt=row.attempt,
            replica=row.index,
            incarnation=row.incarnation,
            rank=place.rank,
            name="collect_garbage",
        )
        self._give(place.node_id, body)

    def _node(self) -> str:
        live = [row for row in self._control.rows.replicas.values() if row.state in LIVE_REPLICA]
        used = sorted({place.node_id for row in live for place in row.placements})
        return self._random.choice(used or sorted(self._control.rows.nodes))

    def _give(self, node: str, body: Body) -> None:
        attempt = self._control.rows.attempt
        self._control.store.send(node, body, attempt.number if attempt is not None else 0)
        self._kernel.log("person", f"has {node} do {type(body).__name__}")

    def say(self, verdict: Verdict) -> None:
        """Of all that is recommended now."""
        known = self._control.rows.recommended
        for key, fact in known.items():
            approvers = (WHO,) if verdict is Verdict.APPROVED else ()
            known[key] = msgspec.structs.replace(fact, verdict=verdict, approvers=approvers)
        self._kernel.log("person", f"{verdict} what is recommended")
        self._server.ring()

    def withdraw(self, request_id: str) -> None:
        """Whatever has become of it."""
        self._control.asked.withdraw(request_id, WHO)

    def _return(self, node_id: str) -> None:
        """A node that was emptied takes work again."""
        node = self._control.rows.nodes[node_id]
        if node.state is NodeState.CORDONED and node.emptied:
            node.state, node.emptied = NodeState.READY, False
            self._kernel.log("person", f"returns {node_id}")
        elif node.state is NodeState.DRAINING:
            self._kernel.after(WORKED_ON_S, self._return, node_id)
