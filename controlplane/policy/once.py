"""Judgements that are worked out once for each snapshot, however many rules ask (ADR 0030).

A snapshot is frozen, so what follows from it alone, or from it and one configuration, never
changes. The answer is kept with the snapshot and goes with it.
"""

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from controlplane.policy.config import PolicyConfig
from controlplane.policy.snapshot import JobSnapshot

T = TypeVar("T")


def forget(snapshot: JobSnapshot) -> None:
    """Drop all that was worked out. What refers to the snapshot itself (a case of `ways`) would keep
    a job of a hundred thousand ranks in memory until the garbage collector comes by."""
    snapshot.__dict__.clear()


def per_snapshot(judge: Callable[[JobSnapshot], T]) -> Callable[[JobSnapshot], T]:
    """`judge(snapshot)`, asked once of each."""
    name = f"{judge.__module__}.{judge.__qualname__}"

    @wraps(judge)
    def asked(snapshot: JobSnapshot) -> T:
        known = snapshot.__dict__
        if name not in known:
            known[name] = judge(snapshot)
        answer: T = known[name]
        return answer

    return asked


def per_pass(judge: Callable[[JobSnapshot, PolicyConfig], T]) -> Callable[[JobSnapshot, PolicyConfig], T]:
    """`judge(snapshot, config)`, asked once of each while the same configuration asks."""
    name = f"{judge.__module__}.{judge.__qualname__}"

    @wraps(judge)
    def asked(snapshot: JobSnapshot, config: PolicyConfig) -> T:
        known = snapshot.__dict__.get(name)
        if known is None or known[0] is not config:
            known = snapshot.__dict__[name] = (config, judge(snapshot, config))
        answer: T = known[1]
        return answer

    return asked
