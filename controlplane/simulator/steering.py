"""The policy with one way out put in place of its own, at one decision.

Used by `rollout`. The forced way is carried out by the policy's own rules: `Steering` builds no actions,
it asks for another decision than the policy would have taken, or keeps one back.

Ways are those that the job's spec leaves open and that can be carried out: too few may not train,
a spent budget starts nothing, and what is proved gone is not waited for. Who is only silent is not
ended before its lease is over, so what decides before is part of the detection.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from controlplane.policy import ways
from controlplane.policy.budget import spent
from controlplane.policy.config import PolicyConfig
from controlplane.policy.decide import decide
from controlplane.policy.ends import RestartReason, restart_reason
from controlplane.policy.facts import current_view
from controlplane.policy.failures import actionable
from controlplane.policy.plan import Action, Decision, Plan, StartReplica
from controlplane.policy.proved import Failure
from controlplane.policy.rules import leave_out, replica_failure, restart
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol.states import ReplicaState
from controlplane.simulator.server import Decide

ANSWERS = frozenset({replica_failure.RULE, restart.RULE})
NO_WAY = frozenset({"hold", "fail", "save_first"})
NO_ANSWER = frozenset({"hold", replica_failure.COLLECT})
"""What is done beside an answer, or before it."""
SOUND = frozenset({ReplicaState.FORMING, ReplicaState.ACTIVE, ReplicaState.SPARE, ReplicaState.CATCHING_UP})


@dataclass(slots=True, kw_only=True)
class Fork:
    """The decision at which worlds of a moment part. `chosen`: the policy's way; `open`: all that
    are left open; `told`: replicas that are known to have failed; `kept_steps`: the share of the step
    in hand that was not lost then."""

    at_s: float
    chosen: str
    open: tuple[str, ...]
    told: frozenset[int]
    newest: int = 0
    kept_steps: float = 0.0


@dataclass(slots=True)
class Steering:
    """Decides as the policy does, but for `way` at the fork ("": as the policy does there too)."""

    way: str
    policy: Decide = decide
    armed: bool = False
    fork: Fork | None = None
    on_fork: Callable[[Fork], None] = lambda fork: None
    _kept_empty: tuple[int, frozenset[int]] = field(default=(0, frozenset()))
    _waits_until_s: float = 0.0

    def __call__(self, snapshot: JobSnapshot, config: PolicyConfig) -> Plan:
        """The plan that the world carries out."""
        plan = self.policy(snapshot, config)
        if self.fork is not None:
            return self._after(plan, snapshot, config)
        answer = next((d for d in plan.decisions if d.rule in ANSWERS and d.choice not in NO_ANSWER), None)
        if not self.armed or answer is None:
            return plan
        failures = actionable(snapshot, config)
        chosen = ways.RESTART if answer.choice == ways.QUEUE else answer.choice
        open_ways = () if answer.choice in NO_WAY else ways_left_open(ways.case_of(snapshot, config, failures))
        told = frozenset(r.index for r in snapshot.replicas if r.state not in SOUND)
        told |= {failure.replica.index for failure in failures}
        forced = plan if self.way in ("", chosen) else self._forced(plan, snapshot, config, failures)
        # Nothing asks the fleet from here on, so it is decided once.
        self.fork = Fork(at_s=snapshot.now_s, chosen=chosen, open=open_ways, told=told)
        self.on_fork(self.fork)
        return forced

    @property
    def keeps_empty(self) -> bool:
        """Slots stay empty by the way that was given."""
        return bool(self._kept_empty[1])

    def _forced(self, plan: Plan, snapshot: JobSnapshot, config: PolicyConfig, failures: tuple[Failure, ...]) -> Plan:
        attempt = snapshot.attempt
        assert attempt is not None, "failures are of an attempt's replicas"
        if self.way == ways.WAIT:
            self._waits_until_s = snapshot.now_s + config.hang_timeout_s
            return self._after(plan, snapshot, config)
        if self.way == ways.RESTART:
            why = restart_reason(snapshot, config, failures)
            why = why or RestartReason(code="rolled_out", sentence="a restart is rolled out")
            return _only(restart.again(snapshot, config, attempt, failures, why), snapshot, config)
        decision = replica_failure.eviction(snapshot, config, failures)
        if self.way == ways.EVICT:
            self._kept_empty = (attempt.number, frozenset(failure.replica.index for failure in failures))
            decision = msgspec.structs.replace(decision, choice=self.way, actions=self._allowed(decision))
        return _only(decision, snapshot, config)

    def _after(self, plan: Plan, snapshot: JobSnapshot, config: PolicyConfig) -> Plan:
        """While it waits nothing is answered; a slot that stays empty is not started."""
        if snapshot.now_s < self._waits_until_s:
            kept = tuple(d for d in plan.decisions if d.rule not in ANSWERS | {leave_out.RULE})
            return Plan(decisions=kept, next_pass_s=self._waits_until_s)
        attempt = snapshot.attempt
        if attempt is None or attempt.number != self._kept_empty[0]:
            return plan
        cut = tuple(msgspec.structs.replace(d, actions=self._allowed(d)) for d in plan.decisions)
        kept = tuple(d for d, before in zip(cut, plan.decisions, strict=True) if d.actions or not before.actions)
        changed = any(d.actions for d in kept)
        return Plan(
            decisions=kept, next_pass_s=plan.next_pass_s if changed else snapshot.now_s + config.capacity_retry_s
        )

    def _allowed(self, decision: Decision) -> tuple[Action, ...]:
        empty = self._kept_empty[1]
        return tuple(a for a in decision.actions if not (isinstance(a, StartReplica) and a.replica in empty))


def ways_left_open(case: ways.Case) -> tuple[str, ...]:
    """By the spec and the devices, whatever the policy thinks of their prices."""
    left, snapshot = len(case.holders), case.snapshot
    enough = current_view(snapshot) is not None and left >= case.needed
    found = [ways.EVICT] if enough else []
    found += [ways.REPLACE] if enough and case.starts else []
    found += [ways.HOLD] if left < case.needed and ways.may_hold(case) else []
    found += [ways.RESTART] if not spent(snapshot) else []
    found += [ways.WAIT] if not any(failure.proved or failure.gone for failure in case.failures) else []
    return tuple(found)


def _only(decision: Decision, snapshot: JobSnapshot, config: PolicyConfig) -> Plan:
    number = snapshot.attempt.number if snapshot.attempt else 0
    named = msgspec.structs.replace(decision, key=f"{number}:{decision.key}")
    return Plan(decisions=(named,), next_pass_s=snapshot.now_s + config.follow_up_s)
