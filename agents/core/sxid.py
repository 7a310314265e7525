"""SXIDs: what an NVSwitch reports through the kernel log, judged for this node. Pure.

A line reads `nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 30 LTSSM Fault Up`. The
driver's own word comes first: a fatal one means that traffic of the GPUs behind that switch is lost
until it was reset, so nothing is started here for a day or until the next boot. Then the numbers of
NVIDIA's Fabric Manager User Guide (DU-09883-001 v1.3, appendix D.4 to D.7): what the switch itself
corrects counts for nothing, what stalls traffic though it is called non-fatal counts at once, what is
always fatal asks for more than a reset. Any other that is not fatal is a fault only when it comes
again and again. How often that is, is ours to say: the guide gives no number.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

WINDOW_S = 86_400.0
REPEATS = 10
"""So many of the same number of the same switch and link within `WINDOW_S`."""
MAX_TOLD = 3
CORRECTED = frozenset(
    (11012, 11021, 11022, 11023, 12021, 12023, 15008, 15011, 19049, 19055, 19057, 19059, 19062, 19065, 19068, 19071,
     24001, 24002, 24003)
)  # fmt: skip
"""Single bits that the switch's ECC has put right: no effect on anybody (D.4)."""
IGNORED = CORRECTED | {22013, 10005}
"""Beside them an interrupt that the guide says to ignore, and the end of a thermal event."""
STALLING = frozenset((11004, 12028, 19084))
"""Not fatal by name, but traffic of the link's GPU stands still and its next access hangs (D.4)."""
WHOLE_FABRIC = frozenset((10003, 12020, 22003, 22011, *range(23001, 23018)))
"""Always fatal, and to the whole fabric: a reset of single devices does not bring it back (D.6, D.7)."""
RESET = "reset its GPUs and switches, or reboot the node"
ACTS = {
    10004: "look at the cooling of the machine",
    11004: "check the partitions that the Fabric Manager has set up, then " + RESET,
    20012: "check the link's connection",
    22012: "check the link's connection",
}
LOOK = "look at the link, run the vendor's diagnostics"
_LINE = re.compile(
    r"nvidia-nvswitch(?P<switch>\d+): SXid \(PCI:(?P<bus>[0-9a-fA-F:.]{7,16})\): (?P<number>\d{5}), "
    r"(?P<fatal>Fatal|Non-fatal), (?:Link (?P<link>\d+) )?(?P<text>.{0,200})"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sxid:
    """One report. `at_s` since the machine's boot; `link` None: of the whole switch."""

    at_s: float
    switch: int
    bus: str
    number: int
    fatal: bool
    link: int | None
    text: str


def parse(line: str, at_s: float) -> Sxid | None:
    """None for a line that is no SXID of the driver's own form."""
    found = _LINE.search(line)
    if found is None:
        return None
    link = found["link"]
    return Sxid(
        at_s=at_s,
        switch=int(found["switch"]),
        bus=found["bus"],
        number=int(found["number"]),
        fatal=found["fatal"] == "Fatal",
        link=None if link is None else int(link),
        text=" ".join(found["text"].split()),
    )


def fault(seen: Iterable[Sxid], now_s: float) -> str:
    """Why nothing is to be started here, and what to do; "" for no reason. `now_s` since boot."""
    recent = [one for one in seen if now_s - one.at_s < WINDOW_S and (one.fatal or one.number not in IGNORED)]
    fatal = [one for one in recent if one.fatal or one.number in STALLING]
    if fatal:
        named = ", ".join(dict.fromkeys(_named(one) for one in reversed(fatal[-MAX_TOLD:])))
        return f"{named}: {_act(fatal)}"
    often = Counter((one.switch, one.number, one.link) for one in recent)
    worst = max(often.items(), key=lambda item: item[1], default=None)
    if worst is None or worst[1] < REPEATS:
        return ""
    last = next(one for one in reversed(recent) if (one.switch, one.number, one.link) == worst[0])
    # No figure of now: it would make each check a new verdict.
    return f"{_named(last)}, {REPEATS} times or more in a day: {ACTS.get(last.number, LOOK)}"


def _act(fatal: list[Sxid]) -> str:
    """What brings all of them back."""
    if any(one.number in WHOLE_FABRIC for one in fatal):
        return "the whole fabric is lost, reboot the node"
    return ACTS.get(fatal[-1].number, RESET)


def _named(one: Sxid) -> str:
    link = "" if one.link is None else f" link {one.link}"
    return f"{'fatal ' if one.fatal else ''}SXid {one.number} ({one.text}) of NVSwitch {one.switch}{link}"
