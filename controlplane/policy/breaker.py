"""When a breaker opens, and when one closes by itself: the fleet's own pass asks (ADR 0048).

A cap that is met, or a correlated failure, opens one. A person closes it. One that a correlated failure opened closes
by itself too, once the findings behind it are over: nothing is suspected any more, so that nothing is held by it. What
a cap opened waits for a person, however long. Pure.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from controlplane.policy.config import PolicyConfig
from controlplane.policy.disruption import CORRELATED, Hold, tripped, tripped_in
from controlplane.policy.disruption_counts import OpenedBreaker
from controlplane.policy.facts import correlated_failure_of
from controlplane.policy.plan import CloseBreaker, Decision, OpenBreaker

if TYPE_CHECKING:
    from controlplane.policy.fleet import FleetSnapshot

RULE = "breaker"


def decisions(snapshot: "FleetSnapshot", config: PolicyConfig) -> tuple[Decision, ...]:
    """One for each breaker that is to open, and one for the fleet's where what opened it is over."""
    return (*_opened(snapshot, config), *_closed(snapshot, config))


def _opened(snapshot: "FleetSnapshot", config: PolicyConfig) -> Iterator[Decision]:
    standing = {each.segment for each in snapshot.disruption.breakers}
    whole = None if "" in standing else tripped(snapshot, config)
    if whole is not None:
        yield _open(snapshot, whole)
    for segment in sorted(snapshot.disruption.of_segments.keys() - standing):
        part = tripped_in(snapshot, config, segment)
        if part is not None:
            yield _open(snapshot, part)


def _open(snapshot: "FleetSnapshot", hold: Hold) -> Decision:
    where = f"in {hold.segment}" if hold.segment else "in the fleet"
    until = "a person closes it" + (" or the findings are over" if hold.code == CORRELATED else "")
    number = snapshot.disruption.opened.get(hold.segment, 0)
    return Decision(
        rule=RULE,
        choice="open",
        reason_code=hold.code,
        sentence=f"The breaker opens: {hold.sentence}. Automation does nothing {where} that does not rest on positive"
        f" proof until {until}.",
        key=f"breaker:open:{hold.segment}:{number}",
        actions=(OpenBreaker(code=hold.code, segment=hold.segment, sentence=hold.sentence),),
        evidence={
            "suspect_devices": snapshot.suspect_devices,
            "fleet_devices": snapshot.fleet_devices,
            "acts_last_window": snapshot.acts_last_window,
            **_counted(snapshot, hold.segment),
        },
    )


def _counted(snapshot: "FleetSnapshot", segment: str) -> dict[str, int]:
    counts = snapshot.disruption
    done = counts.of_segments.get(segment, {}) if segment else counts.acts
    return {f"acts_{kind}": number for kind, number in sorted(done.items())}


def _closed(snapshot: "FleetSnapshot", config: PolicyConfig) -> Iterator[Decision]:
    mine = next((each for each in snapshot.disruption.breakers if not each.segment), None)
    if mine is None or mine.code != CORRELATED or tripped(snapshot, config) or _stands(snapshot, config):
        return
    yield _close(snapshot, mine)


def _stands(snapshot: "FleetSnapshot", config: PolicyConfig) -> bool:
    """What is open still, of the findings that opened it and of those that came since, would open it again."""
    counts = snapshot.disruption
    left = msgspec.structs.replace(snapshot, suspect_devices=counts.still_devices, suspect_nodes=counts.still_nodes)
    return correlated_failure_of(left, config)


def _close(snapshot: "FleetSnapshot", breaker: OpenedBreaker) -> Decision:
    left = snapshot.disruption.still_devices
    rest = f"{left} of {snapshot.fleet_devices} devices still look bad" if left else "no device of them looks bad now"
    return Decision(
        rule=RULE,
        choice="close",
        reason_code="over",
        sentence=f"The breaker closes: {rest}, so that the correlated failure is over.",
        key=f"breaker:close:{breaker.id}",
        actions=(CloseBreaker(breaker=breaker.id),),
        evidence={"open_s": round(snapshot.now_s - breaker.opened_s, 3), "suspect_devices": left},
    )
