"""What must hold after `benchmarks.compound`, from the API's own words and what was done. Pure."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any

Json = Mapping[str, Any]
EXPECTED = {
    "killed": ("rank_exit",),
    "stopped": ("rank_overdue", "rank_exit"),
    "node lost": ("node_silent", "rank_exit"),
    "fell off the bus": ("xid", "device_lost", "device_risk"),
    "killed, and held by its storage": ("rank_overdue", "rank_exit"),
}
"""Findings that tell of a fault; a device that fell off the bus is a risky one when it is back, for that. One
that waits in the kernel for a frozen storage does not end when it is killed: it hangs, for all that anybody sees."""
TOLD_BY = {fault: kinds[:2] for fault, kinds in EXPECTED.items()}
"""Those of which there must be one."""
SIGKILL = -9.0
STOPPED = re.compile(r"Automation is stopped: (\d+) of \d+ devices look bad at once")
LATE_AT_ONCE = re.compile(r" are late in .* at once")
STALLED = "storage stalled"
"""Need not be noticed: short ones hold nobody up."""
WITHDRAWN = "withdrawn"
POINT, HALF_A_POINT = 0.01, 0.005
NEAR_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    """What was done to a rank, a node or a device. `at_s`: wall clock of whoever did it; `devices`: how many it
    makes suspect."""

    what: str
    at_s: float
    replica: int | None = None
    incarnation: int = 0
    rank: int | None = None
    node: str = ""
    device: int | None = None
    devices: int = 1
    round: str = ""

    def __str__(self) -> str:
        where = f"{self.node} {'' if self.device is None else self.device}"
        told = f"{self.what}: " + (where.strip() or f"{self.replica}.{self.incarnation}/{self.rank}")
        return f"{told}, in {self.round}" if self.round else told


def tells_of(signal: Json, fault: Injected) -> bool:
    """The finding is about this very fault."""
    if signal["kind"] not in EXPECTED.get(fault.what, ()):
        return False
    if fault.node:
        return bool(signal["node_name"] == fault.node) and fault.device in (None, signal["device_index"])
    return (signal["replica"], signal["incarnation"], signal["rank"]) == (fault.replica, fault.incarnation, fault.rank)


def is_near(signal: Json, fault: Injected) -> bool:
    """The finding is about the same life of the replica, or the same node."""
    if fault.node:
        return bool(signal["node_name"] == fault.node) and abs(seconds(signal["seen_at"]) - fault.at_s) < NEAR_S
    return bool((signal["replica"], signal["incarnation"]) == (fault.replica, fault.incarnation))


def wrong_causes(
    incidents: Sequence[Json], done: Sequence[Injected], rounds: Sequence[tuple[str, float]] = ()
) -> list[str]:
    """Faults that no incident tells of, kills that are told as something else, and incidents that
    nothing that was done explains, with the round they fell into. `rounds`: names and beginnings,
    Unix seconds."""
    findings = [(signal, incident) for incident in incidents for signal in incident["signals"]]
    wrong = []
    for fault in done:
        if fault.what == STALLED:
            continue
        told = [s for s, _ in findings if tells_of(s, fault) and s["kind"] in TOLD_BY[fault.what]]
        if not told:
            near = [f"{s['kind']} in {i['title']!r}" for s, i in findings if is_near(s, fault)]
            wrong.append(f"{fault}: no incident tells of it; what is told there: {', '.join(near) or 'nothing'}")
        exits = [s for s in told if s["kind"] == "rank_exit"]
        unlike = [s["value"] for s in exits if s["value"] != SIGKILL and s["evidence"].get("told", True)]
        if fault.what in ("killed", "node lost") and exits and len(unlike) == len(exits):
            wrong.append(f"{fault}: told as {unlike}")
    for incident in incidents:
        if stopped_rightly(incident, done) or stalled_rightly(incident, done):
            continue
        if not any(tells_of(signal, fault) for signal in incident["signals"] for fault in done):
            kinds = sorted({signal["kind"] for signal in incident["signals"]})
            begun = [name for name, at_s in rounds if at_s <= seconds(incident["opened_at"])]
            when = f" in {begun[-1]}" if begun else ""
            wrong.append(f"incident {incident['title']!r} ({', '.join(kinds)}){when}: nothing of the kind was done")
    return wrong


def stopped_rightly(incident: Json, done: Sequence[Injected]) -> bool:
    """Automation was stopped for as many devices as were hit in the minute before."""
    told = STOPPED.match(incident["title"])
    before_s = [seconds(incident["opened_at"]) - fault.at_s for fault in done]
    hit = sum(fault.devices for fault, ago_s in zip(done, before_s, strict=True) if 0.0 <= ago_s <= NEAR_S)
    return told is not None and int(told[1]) <= hit


def stalled_rightly(incident: Json, done: Sequence[Injected]) -> bool:
    """Most of the job was late at once, and what all of it shares had stood still in the minute before."""
    before_s = [seconds(incident["opened_at"]) - fault.at_s for fault in done if fault.what == STALLED]
    return bool(LATE_AT_ONCE.search(incident["title"])) and any(0.0 <= ago_s <= NEAR_S for ago_s in before_s)


def wrong_certificates(incidents: Sequence[Json]) -> list[str]:
    """Neither green nor incomplete with a reason, or none at all. None is owed where the drill's own end of
    the job came first."""
    wrong = []
    for incident in incidents:
        certificate = incident["certificate"]
        if certificate is None and incident["outcome"] == WITHDRAWN:
            continue
        if certificate is None:
            wrong.append(f"{incident['title']!r}: no certificate")
            continue
        open_checks = [check for check in certificate["checks"] if check["ok"] is None]
        if certificate["state"] == "incomplete" and open_checks and all(check["detail"] for check in open_checks):
            continue
        if certificate["state"] != "green":
            failed = [f"{c['name']}: {c['detail']}" for c in certificate["checks"] if c["ok"] is not True]
            wrong.append(f"{incident['title']!r}: {certificate['state']}: {'; '.join(failed)[:600]}")
    return wrong


def wrong_steps(steps: Sequence[Json]) -> list[str]:
    """Steps that are missing or doubled within an attempt, without every sample, or with unequal
    replicas. The newest two are left out: not every rank has told of them. By number: the server's
    clock is set in between."""
    steps = sorted(steps, key=lambda step: (step["attempt"], step["step"]))
    gaps = [
        f"step {later['step']} follows step {step['step']}"
        for step, later in itertools.pairwise(steps)
        if later["attempt"] == step["attempt"] and later["step"] != step["step"] + 1
    ]
    inexact = [f"step {step['step']}: not every sample once" for step in steps[:-2] if not step["samples_exact"]]
    return gaps + inexact + [f"step {step['step']}: replicas differ" for step in steps if step["hashes_equal"] is False]


def undisturbed_step_s(
    steps: Sequence[Json], *, replicas: int, within: Sequence[tuple[int, int]] | None = None
) -> float:
    """What a step takes while nothing happens: the median time from one commit to the next, of those that
    follow two of the same epoch with all the contributors that were asked for; `within` these ranges of steps (first,
    one past the last), or wherever they are. What ranks say that a step took is no measure of it: their clocks
    overlap, and the longest of six is more than what passed."""
    ordered = sorted(steps, key=lambda step: (step["attempt"], step["step"]))
    calm = [
        seconds(later["at"]) - seconds(step["at"])
        for first, step, later in zip(ordered, ordered[1:], ordered[2:], strict=False)
        if first["epoch"] == step["epoch"] == later["epoch"] and later["contributors"] == replicas
        if within is None or any(begin <= first["step"] and later["step"] < end for begin, end in within)
    ]
    assert calm, f"no step was trained undisturbed by {replicas} replicas"
    return median(calm)


def seconds(at: str) -> float:
    """Of a moment as the API writes it."""
    return datetime.fromisoformat(at).timestamp()


def wrong_effective_time(whose: str, said: float | None, computed: float, within: float) -> list[str]:
    """A figure that users see against the one computed from raw commits and another clock."""
    if said is None or abs(said - computed) > within:
        return [f"effective time {whose} {said}, computed {computed:.4f}"]
    return []
