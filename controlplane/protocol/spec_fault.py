"""One thing wrong in a job spec, and what a check of one is. A module of its own, so that
checks need no other."""

from collections.abc import Callable, Iterator

import msgspec

from controlplane.protocol.spec import TrainSpec


class Fault(msgspec.Struct, frozen=True):
    """One thing wrong: where (JSON Pointer), what, and how to mend it."""

    pointer: str
    message: str
    fix: str


def plain_number(value: float) -> str:
    """`1,000,000,000` and not `1e+09`; what is below a ten-thousandth as people write it: `1e-12`."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:g}"


class Ground(msgspec.Struct, frozen=True):
    """What a check may know besides the spec. `reachable_risk`: the highest score (0..1) that
    a device of this fleet can get, by the readings that the fleet gives (a fleet without error
    counters can score 0.75); 1 where that is not known. `checkpoint_roots`: where the server keeps checkpoints; None:
    not known here, as on somebody's own machine. `local_roots`: below which a local tier may lie; None: anywhere
    that the nodes' policies allow."""

    reachable_risk: float = 1.0
    checkpoint_roots: tuple[str, ...] | None = None
    local_roots: tuple[str, ...] | None = None


Check = Callable[[TrainSpec, Ground], Iterator[Fault]]
