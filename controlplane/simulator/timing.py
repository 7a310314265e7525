"""How long what a simulated trainer does takes."""

from collections.abc import Callable
from dataclasses import dataclass

Span = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds. Pairs are drawn from evenly, anew each time; `fetch_s` and `save_s` are a
    state's. `setup_s`: from a rank's start to its hello; `load_s` more where it loads a checkpoint.
    `regroup_s`: every member of a view that leaves someone out stands still that long before
    it goes on; `rejoin_s`: of any other view after its first, as when a replica comes back. `save_holds_s`: a
    replica that saves stands still so long. `meets`: a group is
    built only when all its members have come. `word_s`: what an agent hands to a rank is read so much later.
    `saves_asked`: ranks save when they are asked to, and as they leave."""

    micro_batch_s: Span = (0.2, 0.3)
    exchange_s: Span = (0.001, 0.04)
    fetch_s: Span = (1.0, 6.0)
    save_s: Span = (0.5, 2.0)
    setup_s: Span = (1.0, 3.0)
    load_s: Span = (0.0, 0.0)
    peer_notice_s: Span = (0.01, 0.15)
    regroup_s: float = 0.0
    rejoin_s: float = 0.0
    save_holds_s: float = 0.0
    meets: bool = False
    word_s: Span = (0.0, 0.0)
    saves_asked: bool = False

    def start_s(self, between: Callable[[float, float], float], *, loads: bool) -> float:
        """From a rank's start to its hello, drawn anew."""
        more_s = between(*self.load_s) if loads and self.load_s[1] > 0.0 else 0.0
        return between(*self.setup_s) + more_s
