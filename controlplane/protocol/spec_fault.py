"""One thing wrong in a job spec, and what a check of one is. A module of its own, so that
checks need no other."""

from collections.abc import Callable, Iterator

import msgspec

from controlplane.protocol.spec import TrainSpec

# S2.1's weights without `errors`: a fleet that reads no error counters can score no
# more, which is why the published threshold of 0.95 never fired. The control plane
# passes what its own fleet can reach.
REACHABLE_RISK_WITHOUT_ERRORS = 0.75


class Fault(msgspec.Struct, frozen=True):
    """One thing wrong: where (JSON Pointer), what, and how to mend it."""

    pointer: str
    message: str
    fix: str


class Ground(msgspec.Struct, frozen=True):
    """What a check may know besides the spec. `reachable_risk`: the highest score
    (0..1) a device of this fleet can get. `checkpoint_roots`: where the server keeps checkpoints; None:
    not known here, as on somebody's own machine."""

    reachable_risk: float = REACHABLE_RISK_WITHOUT_ERRORS
    checkpoint_roots: tuple[str, ...] | None = None


Check = Callable[[TrainSpec, Ground], Iterator[Fault]]
