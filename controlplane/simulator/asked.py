"""People's requests in the simulated server: the twin of `recovery.requests`, and of its fleet's pass.

Every answer is checked against the state table, and none is given twice.
"""

from collections.abc import Callable

import msgspec

from controlplane.policy import drains
from controlplane.policy.errors import IllegalTransition
from controlplane.policy.plan import AnswerRequest, AskEviction, SetNodeState
from controlplane.policy.request_facts import RequestFact
from controlplane.policy.snapshot import NodeFact
from controlplane.policy.transitions import check
from controlplane.protocol.states import LIVE_REQUEST, NodeState, RequestKind, RequestState
from controlplane.simulator.checkers import Checkers
from controlplane.simulator.kernel import Kernel
from controlplane.simulator.rows import Rows

VALID_S = {
    RequestKind.EVICT: 3600.0,
    RequestKind.CHECKPOINT: 60.0,
    RequestKind.DRAIN: 86_400.0,
    RequestKind.FAULT: 30.0,
}


class Asked:
    """The rows of requests and who writes them. `ring`: somebody must look."""

    def __init__(self, rows: Rows, kernel: Kernel, checkers: Checkers, ring: Callable[[], None]) -> None:
        self._rows, self._kernel, self._checkers, self._ring = rows, kernel, checkers, ring
        self._numbers = 0

    def ask(self, kind: RequestKind, who: str, reason: str, **subject: object) -> str:
        """A new request's id."""
        self._numbers += 1
        request = RequestFact(
            id=f"ask_{self._numbers:04d}",
            kind=kind,
            state=RequestState.OPEN,
            who=who,
            reason=reason,
            asked_s=self._kernel.now_s,
            valid_until_s=self._kernel.now_s + VALID_S[kind],
            **subject,  # type: ignore[arg-type]
        )
        self._rows.requests[request.id] = request
        self._kernel.log("person", f"asks {request.id}: {kind} {request.node_id or request.replica or ''}")
        self._ring()
        return request.id

    def withdraw(self, request_id: str, who: str) -> None:
        """Taken back, unless it has ended."""
        request = self._rows.requests.get(request_id)
        if request is not None:
            self._rows.requests[request_id] = msgspec.structs.replace(request, withdrawn_by=who)
            self._kernel.log("person", f"takes {request_id} back")
            self._ring()

    def evict_for(self, act: AskEviction) -> None:
        """The next that leaves a node that is emptied."""
        whole, attempt = self._rows.requests[act.request], self._rows.attempt
        self.ask(
            RequestKind.EVICT,
            whole.who,
            whole.reason,
            drain=whole.id,
            attempt=attempt.number if attempt is not None else None,
            replica=act.replica,
            incarnation=act.incarnation,
        )

    def answer(self, act: AnswerRequest, sentence: str) -> None:
        """What a decision makes of it."""
        request = self._rows.requests[act.request]
        try:
            check("request", request.state, act.to)
        except IllegalTransition as error:
            self._checkers.expect(False, f"I-state: {error}")
        self._rows.answers.append(f"{request.kind}:{act.to}")
        self._kernel.log("answer", f"{request.id} is {act.to}: {sentence}")
        if act.to in LIVE_REQUEST:
            self._rows.requests[request.id] = msgspec.structs.replace(request, state=act.to)
            return
        del self._rows.requests[request.id]
        whole = self._rows.requests.get(request.drain)
        if whole is not None and act.to is not RequestState.DONE:
            named = (request.attempt or 0, request.replica or 0, request.incarnation or 0)
            self._rows.requests[whole.id] = msgspec.structs.replace(whole, kept=(*whole.kept, named))
        for part in [part for part in self._rows.requests.values() if part.drain == request.id]:
            self.withdraw(part.id, request.id)

    def look_at_drains(self, nodes: tuple[NodeFact, ...]) -> None:
        """The fleet's pass."""
        known = {node.id: node for node in nodes}
        for decision in drains.answers(tuple(self._rows.requests.values()), known, now_s=self._kernel.now_s):
            for action in decision.actions:
                if isinstance(action, SetNodeState):
                    self._move(action)
                elif isinstance(action, AnswerRequest):
                    self.answer(action, decision.sentence)

    def _move(self, action: SetNodeState) -> None:
        node = self._rows.nodes[action.node_id]
        try:
            check("node", node.state, action.to)
        except IllegalTransition as error:
            self._checkers.expect(False, f"I-state: {error}")
        node.emptied = action.to is NodeState.CORDONED
        busy = [
            row.index
            for row in (*self._rows.replicas.values(), *self._rows.ghosts)
            if not row.stopped and any(place.node_id == node.id for place in row.placements)
        ]
        self._checkers.expect(not (node.emptied and busy), f"I-drain: {node.id} is called empty with {busy} on it")
        node.state = action.to
