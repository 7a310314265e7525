"""The rows of people's requests in the simulated server.

Every answer is checked against the state table, and none is given twice.
"""

from collections.abc import Callable

import msgspec

from controlplane.changes.kinds import ReplicaKey
from controlplane.policy.errors import IllegalTransition
from controlplane.policy.plan import Decision
from controlplane.policy.recommendation import Recommendation
from controlplane.policy.request_facts import RequestFact
from controlplane.policy.transitions import check
from controlplane.protocol.states import LIVE_REQUEST, Mode, RequestKind, RequestState
from controlplane.simulator.checkers import Checkers
from controlplane.simulator.kernel import Kernel
from controlplane.simulator.rows import Rows

VALID_S = {
    RequestKind.EVICT: 3600.0,
    RequestKind.CHECKPOINT: 60.0,
    RequestKind.DRAIN: 86_400.0,
    RequestKind.FAULT: 30.0,
    RequestKind.PREEMPT: 60.0,
    RequestKind.RESUME: 60.0,
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

    def evict_for(self, key: ReplicaKey, drain: str) -> None:
        """The next that leaves a node that is emptied."""
        whole = self._rows.requests[drain]
        subject = {"attempt": key.attempt, "replica": key.index, "incarnation": key.incarnation}
        self.ask(RequestKind.EVICT, whole.who, whole.reason, drain=drain, **subject)

    def move(self, request_id: str, to: str, sentence: str) -> None:
        """What a decision makes of it; what has ended is kept no longer."""
        request, to = self._rows.requests[request_id], RequestState(to)
        try:
            check("request", request.state, to)
        except IllegalTransition as error:
            self._checkers.expect(False, f"I-state: {error}")
        self._rows.answers.append(f"{request.kind}:{to}")
        self._kernel.log("answer", f"{request.id} is {to}: {sentence}")
        if to in LIVE_REQUEST:
            self._rows.requests[request.id] = msgspec.structs.replace(request, state=to, taken_s=self._kernel.now_s)
            return
        del self._rows.requests[request.id]
        whole = self._rows.requests.get(request.drain)
        if whole is not None and to is not RequestState.DONE:
            named = (request.attempt or 0, request.replica or 0, request.incarnation or 0)
            self._rows.requests[whole.id] = msgspec.structs.replace(whole, kept=(*whole.kept, named))


def recommend(rows: Rows, decision: Decision, now_s: float) -> bool | None:
    """A decision that its mode leaves to people is recorded alone: true the first time. None: it is carried out."""
    if decision.mode is Mode.ENFORCE:
        return None
    if decision.mode is not Mode.RECOMMEND or decision.key in rows.recommended:
        return False
    rows.recommended[decision.key] = Recommendation(key=decision.key, at_s=now_s)
    return True
