"""SXIDs: what an NVSwitch reports through the kernel log, judged for this node. Pure.

A line reads `nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 30 LTSSM Fault Up`. The
driver's own word decides: a fatal one means that traffic of the GPUs behind that switch is lost
until it was reset, so nothing is started here for a day or until the next boot; one that is not
fatal is a fault only when it comes again and again. How often that is, is ours to say: the Fabric
Manager guide gives no number.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

WINDOW_S = 86_400.0
REPEATS = 10
"""So many of the same number of the same switch and link within `WINDOW_S`."""
MAX_TOLD = 3
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
    recent = [one for one in seen if now_s - one.at_s < WINDOW_S]
    fatal = [one for one in recent if one.fatal]
    if fatal:
        named = ", ".join(dict.fromkeys(_named(one) for one in reversed(fatal[-MAX_TOLD:])))
        return f"fatal {named}: reset its GPUs and switches, or reboot the node"
    often = Counter((one.switch, one.number, one.link) for one in recent)
    worst = max(often.items(), key=lambda item: item[1], default=None)
    if worst is None or worst[1] < REPEATS:
        return ""
    last = next(one for one in reversed(recent) if (one.switch, one.number, one.link) == worst[0])
    # No figure of now: it would make each check a new verdict.
    return f"{_named(last)}, {REPEATS} times or more in a day: look at the link, run the vendor's diagnostics"


def _named(one: Sxid) -> str:
    link = "" if one.link is None else f" link {one.link}"
    return f"SXid {one.number} ({one.text}) of NVSwitch {one.switch}{link}"
