"""The simulator as the shadow's task asks it: the change of one case, with its deviation. Touches no row."""

from collections.abc import Callable

from controlplane.policy.config import PolicyConfig
from controlplane.protocol.rest.policy import ReplayCase
from controlplane.simulator.continued import carried_on


def carry_on(
    case: ReplayCase, own: PolicyConfig, other: PolicyConfig, step: Callable[[], bool]
) -> tuple[float, float] | str:
    """GPU-seconds that `other` wastes more; or why that cannot be told. One world at least is played, more while `step`
    says so."""
    begun = False

    def more() -> bool:
        nonlocal begun
        first, begun = not begun, True
        return first or step()

    found = carried_on(case, own, other, step=more)
    return found if isinstance(found, str) else (found.change_gpu_s, found.spread_gpu_s or 0.0)
