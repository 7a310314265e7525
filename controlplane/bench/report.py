"""What came of a load test: in JSON, and as a table for people. Pure but for the machine's name."""

import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from controlplane.bench import figures
from controlplane.bench.figures import summary, verdict
from controlplane.bench.incidents import Opened
from controlplane.bench.tally import Counted, plus

if TYPE_CHECKING:
    from controlplane.bench.run import Wanted

MIB = 1 << 20
GENERATOR, OK = "generator", "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """After every web process was killed: seconds until each agent had a session again, for the first time; `up`: how
    many had one at the end. `cost_ms`: of a core, of each process for each that came back (`watched.spent_ms`)."""

    agents: int
    back_s: list[float]
    up: int
    unacknowledged: int
    cost_ms: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`parts` of the generator's processes over the window; `cores` and `memory_bytes` by process, and the names of
    those that `ended` in it. `received`: frames since the stack began by what became of them, of which a web process
    took those that are OK; others are what was shed behind it. `session_ms`: of a core, of each process for each agent
    that connected. `server`: histograms of the server over the window."""

    wanted: "Wanted"
    parts: list[Counted]
    enrolled_s: float
    connected_s: float
    connected: int
    session_ms: dict[str, float]
    load: list[float]
    cores: dict[str, float]
    memory_bytes: dict[str, int]
    ended: list[str]
    received: dict[str, int]
    server: dict[str, Any]
    loop_lag_s: dict[str, float]
    opened: list[Opened]
    returned: Return | None

    @property
    def counted(self) -> Counted:
        """Of all parts."""
        return plus(self.parts)

    @property
    def refused(self) -> str:
        """Why the generator's own state forbids to believe the figures; "" where they count."""
        mine = [cores for name, cores in self.cores.items() if name.startswith(GENERATOR)]
        return verdict(self.counted.lateness, mine)

    @property
    def lost(self) -> int | None:
        """Frames sent that no web process took; None where that is not known: there were hostile agents, or a
        fleet of others, whose frames are counted too, or figures that could not be read."""
        if self.wanted.server or self.wanted.fleet.faults.hostile or not self.received:
            return None
        return self.counted.frames - self.received.get(OK, 0)

    @property
    def failures(self) -> list[str]:
        """What did not hold, whatever the figures are worth."""
        found = []
        well = self.wanted.fleet.agents - self.wanted.fleet.faults.hostile
        if self.connected < well:
            found.append(f"{well - self.connected} agents never had a session")
        if self.counted.up < well:
            found.append(f"{well - self.counted.up} agents had no session at the end of the window")
        if self.counted.unacknowledged:
            found.append(f"{self.counted.unacknowledged} events were not acknowledged")
        found += [f"{name} ended within the window" for name in self.ended]
        if self.returned is not None and len(self.returned.back_s) < well:
            found.append(f"{well - len(self.returned.back_s)} agents did not come back after the kill")
        elif self.returned is not None and self.returned.up < well:
            found.append(f"{well - self.returned.up} agents came back after the kill and lost their session again")
        return found


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Everything, for a program."""
    counted, fleet = outcome.counted, outcome.wanted.fleet
    frames = outcome.received.get(OK, 0)
    cost_us = counted.window_cpu_s / counted.window_frames * 1e6 if counted.window_frames else None
    return {
        "fleet": asdict(fleet),
        **asdict(outcome.wanted.shape),
        "machine": machine(),
        "load_1min": {"least": min(outcome.load, default=None), "most": max(outcome.load, default=None)},
        "refused": outcome.refused,
        "failures": outcome.failures,
        "generator": {
            "processes": len(outcome.parts),
            "lateness": counted.lateness.summary(),
            "skipped_beats": counted.skipped,
            "cpu_us_a_frame": cost_us,
        },
        "processes": {
            name: {"cores": cores, "memory_mib": outcome.memory_bytes[name] / MIB}
            for name, cores in outcome.cores.items()
        },
        "frames": {"sent": counted.frames, "received": frames, "lost": outcome.lost, "results": outcome.received},
        "beats": {name: getattr(counted, name) for name in ("held", "silent", "away", "backfilled")},
        "events": {"sent": counted.events, "unacknowledged": counted.unacknowledged, "commands": counted.commands},
        "latency": dict(latencies(outcome)),
        "server": outcome.server,
        "loop_lag_s": outcome.loop_lag_s,
        "enrolled_s": outcome.enrolled_s,
        "connected": {
            "agents": outcome.connected,
            "after_s": outcome.connected_s,
            "cost_ms": outcome.session_ms,
        },
        "returned": _returned(outcome.returned),
        "refusals": counted.refused,
        "notes": counted.notes,
        "hostile": counted.hostile,
    }


def latencies(outcome: Outcome) -> Iterator[tuple[str, dict[str, Any]]]:
    """As agents saw them; of decisions as their incidents have them."""
    counted = outcome.counted
    yield "event to its acknowledgement", counted.acknowledged.summary()
    yield "XID to its acknowledgement", summary(counted.xids_acknowledged_s)
    known = [each.after_s for each in outcome.opened if each.after_s is not None]
    yield "XID to its decision", {**summary(known), "missing": len(outcome.opened) - len(known)}
    yield "XID to the command at the agent", summary(reset.after_s for reset in counted.resets)


def table(outcome: Outcome) -> str:
    """For people."""
    whole = as_json(outcome)
    fleet, frames, lateness = outcome.wanted.fleet, whole["frames"], whole["generator"]["lateness"]
    lines = [
        f"{fleet.agents} agents x {fleet.devices} devices, a frame each {fleet.interval_s:g} s, for"
        f" {fleet.duration_s:g} s; seed {fleet.seed}; {whole['machine']}; load {_load(outcome)}",
        f"generator: {len(outcome.parts)} processes, lateness median {_ms(lateness['median_s'])}, p99"
        f" {_ms(lateness['p99_s'])}, {_number(whole['generator']['cpu_us_a_frame'], 'us a frame')},"
        f" {outcome.counted.skipped} beats skipped",
        f"enrolled in {outcome.enrolled_s:.1f} s; {outcome.connected} connected in {outcome.connected_s:.1f} s",
        f"a session cost {_costs(outcome.session_ms)}",
        "",
        f"{'process':<14}{'cores':>8}{'MiB':>8}",
    ]
    lines += [f"{name:<14}{each['cores']:>8.3f}{each['memory_mib']:>8.0f}" for name, each in whole["processes"].items()]
    server = [each["cores"] for name, each in whole["processes"].items() if not name.startswith(GENERATOR)]
    if server:
        lines.append(f"{'server, sum':<14}{sum(server):>8.3f}")
    lines += [
        "",
        f"frames: {frames['sent']} sent, {frames['received']} received, lost {_number(frames['lost'], '')}"
        f" ({', '.join(f'{key} {n}' for key, n in frames['results'].items())})",
        f"heartbeats: {', '.join(f'{number} {name}' for name, number in whole['beats'].items())}",
        f"events: {whole['events']['sent']} sent, {whole['events']['unacknowledged']} not acknowledged;"
        f" {whole['events']['commands']} commands",
        "",
        f"{'latency':<42}{'n':>8}{'median':>12}{'p99':>12}{'max':>12}",
    ]
    for name, each in [*whole["latency"].items(), *whole["server"].items()]:
        missing = f"  ({each['missing']} missing)" if each.get("missing") else ""
        times = "".join(f"{_ms(each.get(field)):>12}" for field in ("median_s", "p99_s", "max_s"))
        lines.append(f"{name:<42}{each['n']:>8}{times}{missing}")
    lines += _rest(outcome, whole)
    return "\n".join(lines)


_COUNTS = (
    ("loops' worst lag", "loop_lag_s"),
    ("refusals", "refusals"),
    ("agents' own notes", "notes"),
    ("hostile", "hostile"),
)


def _rest(outcome: Outcome, whole: dict[str, Any]) -> list[str]:
    lines = [""]
    for title, key in _COUNTS:
        if whole[key]:
            lines.append(f"{title}: " + ", ".join(f"{name} {value:g}" for name, value in whole[key].items()))
    if (back := whole["returned"]) is not None:
        lines.append(
            f"return after kill -9 of every web process: {back['n']} of {back['agents']}, median"
            f" {_number(back['median_s'], 's')}, the last {_number(back['max_s'], 's')};"
            f" {back['unacknowledged']} events not acknowledged"
        )
        lines.append(f"a session again, with the starts of the web processes, cost {_costs(back['cost_ms'])}")
    lines += [f"FAILED: {failure}" for failure in outcome.failures]
    lines.append(f"REFUSED: {outcome.refused}" if outcome.refused else "the generator was in time: its figures count")
    return lines


def machine() -> str:
    """What it ran on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    cpu = next(named, platform.machine())
    return f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()}"


def _returned(back: Return | None) -> dict[str, Any] | None:
    if back is None:
        return None
    return {
        "agents": back.agents,
        "up": back.up,
        "unacknowledged": back.unacknowledged,
        "cost_ms": back.cost_ms,
        **figures.summary(back.back_s),
    }


def _costs(cost_ms: Mapping[str, float]) -> str:
    server = [value for name, value in cost_ms.items() if not name.startswith(GENERATOR)]
    whole = f"{sum(server):.2f} ms of a core" if server else "what is not known here"
    each = ", ".join(f"{name} {value:.2f}" for name, value in cost_ms.items())
    return f"the server {whole} ({each})"


def _load(outcome: Outcome) -> str:
    return f"{min(outcome.load):.1f} to {max(outcome.load):.1f}" if outcome.load else "unknown"


def _ms(value_s: float | None) -> str:
    return "-" if value_s is None else f"{value_s * 1e3:.1f} ms"


def _number(value: float | None, unit: str) -> str:
    return "unknown" if value is None else f"{value:.4g} {unit}".rstrip()
