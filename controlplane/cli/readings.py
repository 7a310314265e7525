"""Device readings around an incident's fault as lines: a few a device, or all of them."""

from collections.abc import Iterator, Mapping
from typing import Any

from controlplane.cli.output import parse
from controlplane.protocol.readings import READINGS, in_words

Row = Mapping[str, Any]
BY_NAME = {reading.name: reading for reading in READINGS}
STEADY = "steady"


def lines(around: Row, *, whole: bool) -> Iterator[str]:
    """What is out of the ordinary, the device and since when; with `whole` every reading that has a value."""
    if not around["devices"]:
        yield "No finding names a device or a node."
        return
    yield f"From {_clock(around['since'])} to {_clock(around['until'])} UTC; fault at {_clock(around['fault_at'])}."
    for device in around["devices"]:
        yield from _device(device, whole=whole)
    if around["note"]:
        yield around["note"]


def _device(device: Row, *, whole: bool) -> Iterator[str]:
    name = f"{device['node_name']} gpu {device['index']}"
    if device["note"]:
        yield f"{name}: {device['note']}"
    else:
        yield f"{name}:"
    for xid in device["xids"]:
        yield f"  {_clock(xid['at'])}  XID {xid['xid']}{': ' + xid['meaning'] if xid['meaning'] else ''}"
    if device["xids_left_out"]:
        yield f"  {device['xids_left_out']} more XIDs are not shown."
    if not device["note"]:
        for gap in device["gaps"]:
            yield f"  No readings between {_clock(gap['since'])} and {_clock(gap['until'])}."
        if device["gaps_left_out"]:
            yield f"  {device['gaps_left_out']} shorter gaps are not shown."
    notable = [reading for reading in device["readings"] if reading["level"] != STEADY]
    for reading in notable:
        yield f"  {_clock(reading['at'])}  {reading['sentence']}"
        if not whole:
            yield f"            {_values(reading)}"
    if whole:
        for reading in device["readings"]:
            yield f"  {reading['title']}: {_values(reading)}"
        if device["not_reported"]:
            yield f"  Not reported: {', '.join(device['not_reported'])}."
    elif device["readings"] and not notable:
        yield "  No reading changed or passed a limit."


def _values(reading: Row) -> str:
    of = BY_NAME.get(reading["reading"])

    def said(value: float | None) -> str:
        return "-" if value is None else in_words(of, value) if of else f"{value:g}"

    parts = [f"before {said(reading['before'])}", f"low {said(reading['low'])}", f"high {said(reading['high'])}"]
    return ", ".join([*parts, f"after {said(reading['after'])}"])


def _clock(instant: str | None) -> str:
    if not instant:
        return "-"
    try:
        return f"{parse(instant):%H:%M:%S}"
    except ValueError:
        return instant
