"""What the policy is shown beside the rows: the server's wall clock, which people set, and that a person cancels.

The rows here keep the kernel's time. A product's row has the wall clock's of the moment in which it was written:
so each time of a snapshot is moved as far as that clock had been set by then. How often and how far it was set
last is known (`runtime.clock.ClockWatch` tells it by the monotonic one); ages of silence are monotonic there too.
"""

from collections.abc import Callable

import msgspec

from controlplane.policy.config import PolicyConfig
from controlplane.policy.decide import decide
from controlplane.policy.plan import Plan
from controlplane.policy.snapshot import JobSnapshot, SignalFact
from controlplane.policy.void import PHASE_SINCE, READ

BEGAN_S = 1e6
"""The wall clock at kernel's time 0."""


class Lens:
    """Stands in front of the policy (`Server.decide`). `cancelled`: by a person; `watches`: there is a wall clock
    beside the kernel's time, from the beginning on; `judge`: the policy."""

    def __init__(self) -> None:
        self.cancelled = False
        self.watches = False
        self.judge: Callable[[JobSnapshot, PolicyConfig], Plan] = decide
        self._steps: list[tuple[float, float]] = []

    def set_clock(self, now_s: float, step_s: float) -> None:
        """The wall clock is set by `step_s` at kernel's time `now_s`."""
        self._steps.append((now_s, step_s))

    def wall_s(self, time_s: float) -> float:
        """The wall clock's time at kernel's `time_s`."""
        return BEGAN_S + time_s + sum(step_s for at_s, step_s in self._steps if at_s <= time_s)

    def _maybe(self, time_s: float | None) -> float | None:
        return None if time_s is None else self.wall_s(time_s)

    def __call__(self, snapshot: JobSnapshot, config: PolicyConfig) -> Plan:
        """The plan; when to look next is the kernel's time again."""
        if self.cancelled:
            snapshot = msgspec.structs.replace(
                snapshot, job=msgspec.structs.replace(snapshot.job, cancel_requested=True)
            )
        if not self.watches:
            return self.judge(snapshot, config)
        plan = self.judge(self.shown(snapshot), config)
        if plan.next_pass_s is None:
            return plan
        ahead_s = self.wall_s(snapshot.now_s) - snapshot.now_s
        return msgspec.structs.replace(plan, next_pass_s=plan.next_pass_s - ahead_s)

    def shown(self, snapshot: JobSnapshot) -> JobSnapshot:
        """By the wall clock."""
        job, replace = snapshot.job, msgspec.structs.replace
        set_s, step_s = self._steps[-1] if self._steps else (None, 0.0)
        # What ranks say of themselves is told anew each second, as an age.
        ahead_s = self.wall_s(snapshot.now_s) - snapshot.now_s
        return replace(
            snapshot,
            now_s=self.wall_s(snapshot.now_s),
            clock_set_s=self._maybe(set_s),
            clock_step_s=step_s,
            job=replace(job, created_s=self.wall_s(job.created_s), progressed_s=self._maybe(job.progressed_s)),
            attempt=snapshot.attempt and replace(snapshot.attempt, started_s=self.wall_s(snapshot.attempt.started_s)),
            replicas=tuple(
                replace(
                    each,
                    state_since_s=self.wall_s(each.state_since_s),
                    out_s=self._maybe(each.out_s),
                    working_since_s=None if each.working_since_s is None else each.working_since_s + ahead_s,
                )
                for each in snapshot.replicas
            ),
            signals=tuple(self._signal(each, ahead_s) for each in snapshot.signals),
            nodes=tuple(replace(each, warmed_s=self._maybe(each.warmed_s)) for each in snapshot.nodes),
            checkpoints=tuple(
                replace(each, committed_s=self.wall_s(each.committed_s)) for each in snapshot.checkpoints
            ),
            requests=tuple(
                replace(each, asked_s=self.wall_s(each.asked_s), valid_until_s=self.wall_s(each.valid_until_s))
                for each in snapshot.requests
            ),
            view_since_s=self.wall_s(snapshot.view_since_s),
            installed_s=self._maybe(snapshot.installed_s),
        )

    def _signal(self, signal: SignalFact, ahead_s: float) -> SignalFact:
        evidence = dict(signal.evidence)
        for name in (PHASE_SINCE, READ):
            at_s = evidence.get(name)
            if isinstance(at_s, float):
                evidence[name] = at_s + ahead_s
        seen_s, came_s = self.wall_s(signal.seen_s), self._maybe(signal.came_s)
        return msgspec.structs.replace(signal, seen_s=seen_s, came_s=came_s, evidence=evidence)
