"""Differences of a replay, each continued in the simulator on the reader's machine, within a span of time.

The server gives cases and the policies behind them (`policy.continuable`); no process of it simulates for a reader.
What cannot be continued has a reason and no figure. Those whose acts differ come first; of one incident the first
that can be continued is counted in the sum, since its world plays what follows as well.
"""

import math
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from controlplane.cli import context

if TYPE_CHECKING:
    from controlplane.policy.config import PolicyConfig

NOT_ASKED = "it was not asked for"
UNREAD = "what the server sent of it cannot be read here: its release may be newer"
NO_TIME = "there was no time left for it: --within gives more"


def continued(whole: dict[str, Any], *, seeds: int, within_s: float) -> dict[str, Any]:
    """The replay with `continued` beside each difference (None: `no_case` says why), and what it comes to."""
    configs = _configs(whole["policies"])
    until_s = time.monotonic() + within_s
    open_ones = [each for each in whole["differences"] if each["case"] is not None]
    turns = sorted(range(len(open_ones)), key=lambda index: _alike(open_ones[index]))
    for number, index in enumerate(turns):
        each = open_ones[index]
        if seeds and time.monotonic() < until_s:
            context.hint(f"Continuing {number + 1} of {len(turns)}: {each['decision_id']}")
            each["continued"], each["no_case"] = _one(each, configs, seeds, until_s)
        else:
            each["continued"], each["no_case"] = None, NO_TIME if seeds else NOT_ASKED
    for each in whole["differences"]:
        each.setdefault("continued", None)
    kept = {name: value for name, value in whole.items() if name != "policies"}
    return kept | {"continued": summed(whole["differences"])}


def summed(differences: list[dict[str, Any]]) -> dict[str, Any]:
    """GPU-seconds that the candidate would have wasted more, of the first continued decision of each incident, with its
    spread; and how many of the others could not be continued, by reason."""
    change_s, variance, decisions, incidents = 0.0, 0.0, 0, set[str]()
    why: Counter[str] = Counter()
    for each in differences:
        found = each["continued"]
        if found is None:
            why[each["no_case"]] += 1
            continue
        decisions += 1
        incident = each["incident_id"] or each["decision_id"]
        if incident not in incidents:
            incidents.add(incident)
            change_s += found["change_gpu_s"]
            variance += (found["spread_gpu_s"] or 0.0) ** 2
    return {
        "decisions": decisions,
        "incidents": len(incidents),
        "change_gpu_s": change_s if incidents else None,
        "spread_gpu_s": math.sqrt(variance) if incidents else None,
        "not_continued": dict(why),
    }


def words(whole: dict[str, Any]) -> list[str]:
    """What it came to, for people."""
    found = whole["continued"]
    said = []
    if found["incidents"]:
        word = "fewer" if found["change_gpu_s"] < 0 else "more"
        said.append(
            f"Continued in the simulator from {found['incidents']} recorded states, the candidate would have wasted"
            f" {abs(found['change_gpu_s']):.0f} GPU-seconds {word} (+/- {found['spread_gpu_s']:.0f} by what nobody can"
            " know)."
        )
    said += [f"Cannot be continued: {number}, {reason}." for reason, number in found["not_continued"].items()]
    return said


def line(each: dict[str, Any]) -> str:
    """Of one difference."""
    found = each["continued"]
    if found is None:
        return f"Cannot be continued: {each['no_case']}."
    spread = "" if found["spread_gpu_s"] is None else f" +/- {found['spread_gpu_s']:.0f}"
    missed = f"; {found['missed']} more came to another state" if found["missed"] else ""
    seeds = "1 seed" if found["seeds"] == 1 else f"{found['seeds']} seeds"
    return f"Continued: {found['change_gpu_s']:+.0f}{spread} GPU-seconds over {seeds}{missed}."


def _one(
    each: dict[str, Any], configs: dict[str, "PolicyConfig"], seeds: int, until_s: float
) -> tuple[dict[str, Any] | None, str]:
    from controlplane.protocol.rest.policy import ReplayCase
    from controlplane.simulator.continued import carried_on

    try:
        case = msgspec.convert(each["case"], ReplayCase)
        own, other = configs[each["own"]], configs[each["other"]]
    except (msgspec.ValidationError, KeyError):
        return None, UNREAD
    found = carried_on(case, own, other, seeds=seeds, step=lambda: time.monotonic() < until_s)
    if isinstance(found, str):
        return None, found
    return {
        "change_gpu_s": found.change_gpu_s,
        "spread_gpu_s": found.spread_gpu_s,
        "own_gpu_s": list(found.own_gpu_s),
        "other_gpu_s": list(found.other_gpu_s),
        "seeds": len(found.own_gpu_s),
        "missed": found.missed,
    }, ""


def _configs(policies: dict[str, str]) -> dict[str, "PolicyConfig"]:
    """Those that can be read here. A field of a newer server has no reader."""
    from controlplane.policy.document import from_content

    found = {}
    for version, content in policies.items():
        with suppress(ValueError, AttributeError):
            found[version] = from_content(content)
    return found


def _alike(each: dict[str, Any]) -> bool:
    sides = (each["before"], each["after"])
    return None not in sides and sides[0]["choice"] == sides[1]["choice"]
