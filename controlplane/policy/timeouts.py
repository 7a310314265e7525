"""How long a section may last: given by the spec, learned from this job, or not known yet.

As in nvidia-resiliency-ext a learned timeout ("auto") is the longest time seen x
`SAFETY_FACTOR`, and each section teaches under conditions of its own:

- a step: after `MIN_STEPS` steps, without those that a start or a view change made longer;
- setup: one that loaded a persistent checkpoint, for one that does not is no measure of it; until
  there was one, a checkpoint that is to be loaded teaches by the time in which it was written or read
  back. The limit follows that also where it is the spec's own default;
- checkpointing: a save that held training up, so never under asynchronous saves;
- out of section: the longest time of a rank that ended well; one that was killed may have
  been killed in the middle of a longer one. What came before its warm-up is left out.

With the watchdog "heartbeat" there are two limits, both given: until the first beat, and
between beats. A rank that beats is somewhere in setup before its first one.

None falls below its floor. What is learned rests on rows of the control plane, so the next
attempt starts from it, and travels in the launch order, which the agent keeps in its
journal over its own restart.
"""

from enum import StrEnum

import msgspec

from controlplane.protocol.spec import Timeouts
from controlplane.protocol.states import Section

SAFETY_FACTOR = 5.0
GRACE_FACTOR = 1.5
"""Over the 95th percentile of the saves seen: everybody saves at once when many must go."""
LEAVE_TOGETHER_S = 2.0
"""How long a trainer waits for its peers to leave with it (trainer.loop.LEAVE_PATIENCE_S)."""
MIN_STEPS = 16
LEASE_STEPS = 2.0
UNMEASURED_LEASE_S = 60.0
WARM_UP_STEPS = 1
"""Steps of each epoch of membership that do not count: they pay for what was built."""
UNLEARNED_S = {
    Section.SETUP: 600.0,
    Section.STEP: 180.0,
    Section.CHECKPOINTING: 420.0,
    Section.OUT_OF_SECTION: 300.0,
}
NEVER_S = 30 * 86400.0
"""What "for ever" is, where a number is needed: a month without a word."""
# A host that is busy with something else for a while must not look like a hang.
FLOOR_S = {Section.SETUP: 30.0, Section.CHECKPOINTING: 10.0, Section.OUT_OF_SECTION: 10.0}
_UNIT = {
    Section.SETUP: "setups from a checkpoint",
    Section.STEP: "steps",
    Section.CHECKPOINTING: "saves that held training up",
    Section.OUT_OF_SECTION: "ranks that ended well",
}


class Source(StrEnum):
    """Where a timeout comes from."""

    GIVEN = "given"
    LEARNED = "learned"
    DEFAULT = "default"


class Seen(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The longest that counts, in seconds, and of how many. None: there was none."""

    longest_s: float | None = None
    samples: int = 0


NOTHING = Seen()


class Observed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a job's rows tell of each section, by the conditions above. `blocking_saves`
    False: its saves are asynchronous, and `saves` says nothing about checkpointing. `transfer_s`: the longer
    of the measured seconds in which the checkpoint that is to be loaded was written and read back; None: none
    is, or nobody has measured."""

    steps: Seen = NOTHING
    setups: Seen = NOTHING
    saves: Seen = NOTHING
    closes: Seen = NOTHING
    blocking_saves: bool = False
    transfer_s: float | None = None


class SectionTimeout(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One section's limit. `samples` it was learned from, `longest_s` of them; `why` it is so."""

    section: Section
    value_s: float
    source: Source
    samples: int = 0
    longest_s: float | None = None
    why: str = ""


def section_timeouts(settings: Timeouts, seen: Observed) -> tuple[SectionTimeout, ...]:
    """One for each section, in the order of a rank's life."""
    if settings.watchdog == "heartbeat":
        return tuple(_beat(section, settings) for section in Section)
    saves = seen.saves if seen.blocking_saves else NOTHING
    return (
        _setup(settings, seen),
        _limit(Section.STEP, settings.step_s, seen.steps, floor_s=settings.step_floor_s, needed=MIN_STEPS),
        _limit(Section.CHECKPOINTING, settings.checkpoint_s, saves, floor_s=FLOOR_S[Section.CHECKPOINTING]),
        _limit(Section.OUT_OF_SECTION, settings.out_of_section_s, seen.closes, floor_s=FLOOR_S[Section.OUT_OF_SECTION]),
    )


def timeout_of(found: tuple[SectionTimeout, ...], section: Section) -> float:
    """The section's limit in seconds."""
    return next(timeout.value_s for timeout in found if timeout.section is section)


def setup_limit_s(settings: Timeouts, learned_s: float | None) -> float:
    """How long the control plane itself waits for a replica's setup, in seconds. A `learned_s`
    that is shorter than what is allowed before anything was learned is kept by its agent alone,
    which knows when the process began; a longer one binds the control plane too."""
    if settings.watchdog == "heartbeat":
        return NEVER_S if settings.first_heartbeat_s is None else settings.first_heartbeat_s
    if not isinstance(settings.setup_s, str) and not setup_grows(settings):
        return settings.setup_s
    return max(UNLEARNED_S[Section.SETUP], learned_s or 0.0)


def setup_grows(settings: Timeouts) -> bool:
    """A setup may last longer than before anything was learned, where what it loads takes long: nobody
    has set another limit than the default."""
    return settings.watchdog == "sections" and settings.setup_s in ("auto", UNLEARNED_S[Section.SETUP])


def transfer_limit_s(least_s: float, *measured_s: float | None) -> float:
    """How long a state may take to arrive, that took so long before, one way or another; `least_s` at least."""
    return max(least_s, *(SAFETY_FACTOR * seconds for seconds in measured_s if seconds is not None), 0.0)


def lease_s(settings: Timeouts, step_s: float | None, *, floor_s: float) -> float:
    """Seconds of silence after which a replica's processes are ended and started elsewhere. A step
    that has begun without a word of its end proves nothing, so the lease outlasts `LEASE_STEPS`
    of the longest (`step_s`; None: none was measured yet)."""
    if not isinstance(settings.lease_s, str):
        return settings.lease_s
    return UNMEASURED_LEASE_S if step_s is None else max(floor_s, LEASE_STEPS * step_s)


def step_floor_s(settings: Timeouts) -> float | None:
    """Down to where an agent may tighten a step's limit by itself; None: not at all."""
    return settings.step_floor_s if settings.step_s == "auto" and settings.watchdog == "sections" else None


def _beat(section: Section, settings: Timeouts) -> SectionTimeout:
    first = section is Section.SETUP
    given_s = settings.first_heartbeat_s if first else settings.heartbeat_s
    why = "until the first heartbeat" if first else "between heartbeats"
    value_s = NEVER_S if given_s is None else given_s
    return SectionTimeout(section=section, value_s=value_s, source=Source.GIVEN, why=why)


def _setup(settings: Timeouts, seen: Observed) -> SectionTimeout:
    """Longer than the default where the checkpoint that is to be loaded asks for it, or setups that
    loaded one have lasted so long."""
    found = _limit(Section.SETUP, settings.setup_s, seen.setups, floor_s=FLOOR_S[Section.SETUP])
    asked_s = transfer_limit_s(found.value_s, seen.transfer_s, seen.setups.longest_s)
    if found.source is Source.LEARNED or not setup_grows(settings) or asked_s <= found.value_s:
        return found
    longest_s = max(seen.transfer_s or 0.0, seen.setups.longest_s or 0.0)
    return msgspec.structs.replace(
        found,
        value_s=asked_s,
        source=Source.LEARNED,
        samples=seen.setups.samples,
        longest_s=longest_s,
        why=f"the checkpoint took {longest_s:.0f} s to write, read back or load",
    )


def _limit(section: Section, settings: float | str, seen: Seen, *, floor_s: float, needed: int = 1) -> SectionTimeout:
    if not isinstance(settings, str):
        return SectionTimeout(section=section, value_s=float(settings), source=Source.GIVEN)
    if seen.longest_s is None or seen.samples < needed:
        return SectionTimeout(
            section=section,
            value_s=max(floor_s, UNLEARNED_S[section]),
            source=Source.DEFAULT,
            samples=seen.samples,
            longest_s=seen.longest_s,
            why=f"{seen.samples} of {needed} {_UNIT[section]} seen",
        )
    learned_s = seen.longest_s * SAFETY_FACTOR
    return SectionTimeout(
        section=section,
        value_s=max(floor_s, learned_s),
        source=Source.LEARNED,
        samples=seen.samples,
        longest_s=seen.longest_s,
        why="" if learned_s >= floor_s else f"not below its floor of {floor_s:g} s",
    )


def grace_needed_s(save_p95_s: float | None) -> float:
    """Seconds from SIGTERM to SIGKILL that let a save end: the step in progress is finished
    and left together first. 0 when no save has been measured."""
    return 0.0 if save_p95_s is None else save_p95_s * GRACE_FACTOR + LEAVE_TOGETHER_S
