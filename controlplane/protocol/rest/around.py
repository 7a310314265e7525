"""Device readings around an incident's fault."""

from typing import Literal

from controlplane.protocol.rest.base import Answer
from controlplane.protocol.rest.fleet import DeviceSeries


class ReadingAround(Answer, frozen=True, kw_only=True):
    """One reading of a device: the last value before the fault, the lowest and highest of the whole time, the last
    value after the fault; `change`: from `before` to `after`. `level`: limit (past a limit that a rule uses),
    changed (a counter rose, a state changed), left_range (it left the range that it had before the fault by more
    than that range is wide), steady; `sentence` says which, and `at` since when."""

    reading: str
    title: str
    unit: str
    before: float | None
    low: float | None
    high: float | None
    after: float | None
    change: float | None
    level: Literal["limit", "changed", "left_range", "steady"]
    sentence: str
    at: str | None


class Gap(Answer, frozen=True, kw_only=True):
    """Between these two moments nothing was observed."""

    since: str
    until: str


class XidAround(Answer, frozen=True, kw_only=True):
    """An XID that the device reported."""

    xid: int
    meaning: str
    at: str


class DeviceAround(Answer, frozen=True, kw_only=True):
    """One device. `readings`: those with a value, what is out of the ordinary first; `not_reported`: titles of the
    others. `note` says why there are none. `gaps`: the longest, in order of time. `series`: with a moment without
    values in each gap."""

    node_id: str
    node_name: str
    index: int
    note: str
    readings: list[ReadingAround]
    not_reported: list[str]
    gaps: list[Gap]
    gaps_left_out: int
    xids: list[XidAround]
    xids_left_out: int
    series: DeviceSeries | None


class IncidentReadings(Answer, frozen=True, kw_only=True):
    """Of the devices that the incident's findings name, from 5 minutes before the fault (the last progress, or its
    first sign) until 2 minutes after it and after its detection. `complete`: that time is over; `awaited`:
    readings of its end may not be stored yet. `note` says what was left out."""

    since: str
    fault_at: str
    detected_at: str | None
    until: str
    complete: bool
    awaited: bool
    devices: list[DeviceAround]
    nodes_left_out: int
    devices_left_out: int
    note: str
