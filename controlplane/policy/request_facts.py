"""A person's request as the policy sees it: who asks for what, why, and how far it has come."""

import msgspec

from controlplane.protocol.states import RequestKind, RequestState


class RequestFact(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A row of `recovery.models.Request` that has not ended. Its subject: of a job the replica and rank that it
    names (None: the whole job), or a node. `who` asked, for what `reason`, at `asked_s`; nothing of it begins
    after `valid_until_s`. `drain`: the request whose part it is, "" for none. `withdrawn_by`: who takes it
    back, "" for nobody. `carried`: "" while nothing is known of the orders that carry it out, "succeeded", or why
    they came to nothing. `before`: the node's state when a drain of it was asked for. `kept`: attempt, replica and
    incarnation of those whose eviction for it was withdrawn or came to nothing. `urgent`: of a preemption by the queue
    the name of the job that needs the devices; `gives`: index and incarnation of the replicas that leave for it, ():
    the whole job. `taken_s`: when it was begun; None: it was not."""

    id: str
    kind: RequestKind
    state: RequestState
    who: str
    reason: str
    asked_s: float
    valid_until_s: float
    attempt: int | None = None
    replica: int | None = None
    incarnation: int | None = None
    rank: int | None = None
    node_id: str | None = None
    fault: str = ""
    value: float = 0.0
    drain: str = ""
    withdrawn_by: str = ""
    carried: str = ""
    before: str = ""
    urgent: str = ""
    taken_s: float | None = None
    kept: tuple[tuple[int, int, int], ...] = ()
    gives: tuple[tuple[int, int], ...] = ()

    @property
    def by(self) -> str:
        """Who, and why: as decisions and incidents name the order."""
        return f"{self.who}: {self.reason}"
