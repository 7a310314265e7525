"""Which of a load test's XIDs became incidents, and when each was decided.

Read after the window, so that asking is no load of the measured one. The server dates a fault by the age that its
agent gives with the event, so no two clocks are compared.
"""

import time
from collections.abc import Sequence

import msgspec

from controlplane.bench.script import RESET_XIDS
from controlplane.bench.tally import Xid
from controlplane.demo.driver import Driver, Refused

WAIT_S, POLL_S = 20.0, 2.0
DECIDED = "decided"


class Opened(msgspec.Struct, frozen=True):
    """Of an XID of a device: what follows was decided so much after it; None: there is no incident."""

    node: str
    xid: int
    after_s: float | None


def opened(api: Driver, xids: Sequence[Xid]) -> list[Opened]:
    """One for each XID that blames a device; waits for those that are not there yet."""
    wanted = [xid for xid in xids if xid.xid in RESET_XIDS]
    deadline_s = time.monotonic() + WAIT_S
    found: list[Opened] = []
    while wanted:
        decided = _decided(api)
        found = [Opened(xid.node, xid.xid, decided.get(xid.node)) for xid in wanted]
        if all(each.after_s is not None for each in found) or time.monotonic() > deadline_s:
            break
        time.sleep(POLL_S)
    return found


def _decided(api: Driver) -> dict[str, float]:
    """Seconds from fault to decision, by the name of the incident's node; of several the first."""
    found: dict[str, float] = {}
    try:
        for incident in api.whole_list("/incidents"):
            for phase in incident["phases"]:
                if phase["name"] == DECIDED and phase["since_fault_s"] is not None and incident["node_name"]:
                    found[incident["node_name"]] = phase["since_fault_s"]
    except (OSError, Refused):
        return {}
    return found
