"""A replica whose node comes and goes is taken back later each time: a view change each way has its price.

The first return is immediate. After that it waits where it is, out of the view and with nothing of it
ended, for a pause that doubles with each time it is left out, up to a limit; a window without any begins
the count anew. Server and simulator count with the same function.
"""

from controlplane.policy.config import PolicyConfig
from controlplane.policy.snapshot import ReplicaFact

WINDOW_S = 600.0
"""Since it was left out last: after that, once more is the first time."""

MAX_TIMES = 1000


def times_out(before: int, out_s: float | None, now_s: float) -> int:
    """How often it was left out, counted with this time; `out_s` server time of the last one (None: never)."""
    recent = out_s is not None and now_s - out_s <= WINDOW_S
    return min(before + 1, MAX_TIMES) if recent else 1


def pause_s(times: int, config: PolicyConfig) -> float:
    """From when it was left out until it may come back, for one that was so `times` times lately."""
    if times <= 1:
        return 0.0
    return min(config.rejoin_pause_s * 2.0 ** (times - 2), config.rejoin_pause_max_s)


def returns_s(replica: ReplicaFact, config: PolicyConfig) -> float:
    """Server time before which one that was left out is not taken back."""
    return replica.state_since_s + pause_s(replica.times_out, config)
