"""Every kind of finding, in one table; docs/signals.md prints it.

A kind is written once, as a struct in one of the modules below (see `base`). What lists kinds
elsewhere asks `with_trait`, so that a kind which is added or dropped cannot be forgotten there.
Detectors make a struct and hand it to `recovery.signals.raise_signal`; rules meet it as a `SignalFact`.
"""

from collections.abc import Mapping

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

VALUED = frozenset(each.KIND for each in SIGNALS if each.value is not Finding.value)
LIMITED = frozenset(each.KIND for each in SIGNALS if each.threshold is not Finding.threshold)
"""Kinds with a value, and with a limit that it has passed: those whose structs say what it is."""


def shown(
    kind: str, value: float, threshold: float, evidence: Mapping[str, object]
) -> tuple[float | None, float | None]:
    """Value and threshold as people are shown them. None: the kind has none, or nobody saw it (`told` False). Of a kind
    that this release does not know, as they were kept."""
    known, seen = kind in BY_KIND, evidence.get("told") is not False
    return (
        value if seen and (kind in VALUED or not known) else None,
        threshold if kind in LIMITED or not known else None,
    )


def with_trait(*traits: Trait) -> tuple[str, ...]:
    """The kinds that have one of these."""
    return tuple(kind for kind in KINDS if BY_KIND[kind].TRAITS & set(traits))
