"""What the agents of a load test say and when: a function of the fleet's values and its seed, and of nothing else.

Pure: seconds count from the beginning of the measured window. Who has which fault is drawn by `share`, so that one
seed gives one script on every machine, in however many processes it is played.
"""

from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b

MAX_AGENTS, MAX_DEVICES, MAX_HOSTILE = 20_000, 16, 200
AGENTS_A_TOKEN = 10_000
"""As `access.join_tokens.MAX_USES`, which only a process with the server's settings can read."""
SHORTEST_INTERVAL_S, LONGEST_INTERVAL_S = 0.2, 60.0
SHORTEST_S, LONGEST_S = 5.0, 86_400.0
APPLICATION_XIDS, RESET_XIDS = (13, 31), (48, 119)
"""Of programs, which become rows alone; and of devices, which are reset by a command of the server."""
BEGINNING, ENDING = 0.1, 0.8
"""The part of the window in which faults begin: what follows from them is still within it."""


class ScriptInvalid(ValueError):
    """A value is out of range; the text names it, and what it may be."""


class Kind(StrEnum):
    """What an agent does beside its heartbeat."""

    XID = "xid"
    HEAT = "heat"
    SILENCE = "silence"
    DROP = "drop"
    HOSTILE = "hostile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """How many agents have which: `xids` and `heated` devices, `silent` agents that say nothing for `silence_s`,
    `late_ratio` of all frames so much as `late_s` behind their time, `drops` in each of which `drop_ratio` of the
    fleet drops its session at one moment, `hostile` agents that break the rules of the protocol all the time."""

    xids: int = 0
    heated: int = 0
    silent: int = 0
    silence_s: float = 15.0
    late_ratio: float = 0.0
    late_s: float = 2.0
    drops: int = 0
    drop_ratio: float = 0.5
    hostile: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """`agents` with `devices` each; a frame each `interval_s`, measured for `duration_s`."""

    agents: int
    devices: int = 8
    interval_s: float = 1.0
    duration_s: float = 60.0
    seed: int = 1
    faults: Faults = Faults()


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """At `at_s` this agent does something: `value` is an XID, or the seconds of a silence."""

    at_s: float
    agent: int
    kind: Kind
    device: int = 0
    value: float = 0.0


def check(fleet: Fleet) -> None:
    """Raises ScriptInvalid."""
    faults = fleet.faults
    for name, value, least, most in (
        ("agents", fleet.agents, 1, MAX_AGENTS),
        ("devices", fleet.devices, 1, MAX_DEVICES),
        ("interval", fleet.interval_s, SHORTEST_INTERVAL_S, LONGEST_INTERVAL_S),
        ("the measured window", fleet.duration_s, SHORTEST_S, LONGEST_S),
        ("xids", faults.xids, 0, fleet.agents * fleet.devices),
        ("heat", faults.heated, 0, fleet.agents),
        ("silence", faults.silent, 0, fleet.agents),
        ("the length of a silence", faults.silence_s, 0.0, 3600.0),
        ("late", faults.late_ratio, 0.0, 1.0),
        ("how late", faults.late_s, 0.0, 60.0),
        ("drops", faults.drops, 0, 20),
        ("the share of a drop", faults.drop_ratio, 0.0, 1.0),
        ("hostile", faults.hostile, 0, min(MAX_HOSTILE, fleet.agents - 1)),
    ):
        if not least <= value <= most:
            raise ScriptInvalid(f"{name}: {value:g} is out of range, {least:g} to {most:g}")
    if faults.hostile + faults.silent + faults.heated > fleet.agents:
        raise ScriptInvalid("silence, heat and hostile are of different agents: together they are more than there are")


def share(seed: int, *what: object) -> float:
    """0 up to 1, the same for the same arguments, and for others as good as independent."""
    digest = blake2b(":".join(map(str, (seed, *what))).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def name_of(fleet: Fleet, agent: int) -> str:
    """How the node is called."""
    return f"bench-{fleet.seed}-{agent:05d}"


def phase_s(fleet: Fleet, agent: int) -> float:
    """When within the interval its heartbeats are."""
    return share(fleet.seed, "phase", agent) * fleet.interval_s


def late_s(fleet: Fleet, agent: int, beat: int) -> float:
    """By how much this heartbeat comes late."""
    faults = fleet.faults
    if faults.late_ratio <= 0.0:
        return 0.0
    drawn = share(fleet.seed, "late", agent, beat)
    return faults.late_s * drawn / faults.late_ratio if drawn < faults.late_ratio else 0.0


def acts(fleet: Fleet) -> tuple[Act, ...]:
    """Every fault of the fleet in the order of time. Hostile, silent and heated agents are different ones; XIDs are
    of the others, each of another node for as long as there are any. Raises ScriptInvalid."""
    check(fleet)
    faults = fleet.faults
    ranked = sorted(range(fleet.agents), key=lambda agent: share(fleet.seed, "who", agent))
    hostile, rest = ranked[: faults.hostile], ranked[faults.hostile :]
    silent, rest = rest[: faults.silent], rest[faults.silent :]
    heated, rest = rest[: faults.heated], rest[faults.heated :]
    # Where everybody has a fault already, those that behave have an XID as well.
    good = rest or [*heated, *silent]
    found = [Act(at_s=0.0, agent=agent, kind=Kind.HOSTILE) for agent in hostile]
    found += [
        Act(at_s=_when(fleet, number, faults.silent), agent=agent, kind=Kind.SILENCE, value=faults.silence_s)
        for number, agent in enumerate(silent)
    ]
    found += [
        Act(at_s=_when(fleet, number, faults.heated), agent=agent, kind=Kind.HEAT)
        for number, agent in enumerate(heated)
    ]
    found += [_xid(fleet, number, good) for number in range(faults.xids if good else 0)]
    for turn in range(faults.drops):
        at_s = fleet.duration_s * (turn + 1) / (faults.drops + 1)
        found += [
            Act(at_s=at_s, agent=agent, kind=Kind.DROP)
            for agent in (*silent, *heated, *rest)
            if share(fleet.seed, "drop", turn, agent) < faults.drop_ratio
        ]
    return tuple(sorted(found, key=lambda act: (act.at_s, act.agent)))


def _when(fleet: Fleet, number: int, of: int) -> float:
    """Evenly over the part of the window in which faults begin."""
    return fleet.duration_s * (BEGINNING + (ENDING - BEGINNING) * (number + 0.5) / of)


def _xid(fleet: Fleet, number: int, good: list[int]) -> Act:
    """By turns a program's and a device's."""
    codes = (APPLICATION_XIDS, RESET_XIDS)[number % 2]
    return Act(
        at_s=_when(fleet, number, fleet.faults.xids),
        agent=good[number % len(good)],
        kind=Kind.XID,
        device=number // len(good) % fleet.devices,
        value=float(codes[int(share(fleet.seed, "xid", number) * len(codes))]),
    )
