"""Every kind of finding, in one table; docs/signals.md prints it.

A kind is written once, as a struct in one of the modules below (see `base`). What lists kinds
elsewhere asks `with_trait`, so that a kind which is added or dropped cannot be forgotten there.
Detectors make a struct and hand it to `recovery.signals.raise_signal`; rules meet it as a `SignalFact`.
"""

from controlplane.policy.signals import devices, nodes, numbers, ranks
from controlplane.policy.signals.base import Finding, Trait

MODULES = (ranks, nodes, devices, numbers)
SIGNALS: tuple[type[Finding], ...] = tuple(
    each
    for module in MODULES
    for each in vars(module).values()
    if isinstance(each, type) and each.__module__ == module.__name__
)
"""In the order in which they are written. A kind that is told in two ways has two structs side by side."""
BY_KIND: dict[str, type[Finding]] = {each.KIND: each for each in reversed(SIGNALS)}
KINDS = tuple(dict.fromkeys(each.KIND for each in SIGNALS))
TITLES = {each.FAILURE or each.KIND: each.TITLE for each in SIGNALS if each.TITLE}
"""Titles of failures that a finding alone makes, by the kind of failure."""


def with_trait(*traits: Trait) -> tuple[str, ...]:
    """The kinds that have one of these."""
    return tuple(kind for kind in KINDS if BY_KIND[kind].TRAITS & set(traits))
