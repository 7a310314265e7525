"""What one process of the generator counts; several of them add up."""

import random
from collections import Counter
from dataclasses import dataclass, field

import msgspec

from controlplane.bench.figures import Spread


class Reset(msgspec.Struct, frozen=True):
    """A device had an XID, and its agent the command to reset it so much later."""

    node: str
    device: int
    after_s: float


class Xid(msgspec.Struct, frozen=True):
    """The node's driver reported it."""

    node: str
    device: int
    xid: int


class Counted(msgspec.Struct, kw_only=True):
    """Of one process. `up`: agents with a session now; `back_s`: of those that have one again since `watch`, how long
    it took. `lateness`: of heartbeats, from their planned moment to their frame's; `held`: heartbeats whose turn came
    while the one before was not sent yet; `skipped`: that a late generator left out; `away`: that fell into a time
    without session. `acknowledged`: from an event until the server said that it is stored; `unacknowledged` events
    are left at the end. `window_frames` took `window_cpu_s`, from `begin` to the first `hold`."""

    agents: int = 0
    up: int = 0
    frames: int = 0
    events: int = 0
    unacknowledged: int = 0
    held: int = 0
    skipped: int = 0
    silent: int = 0
    away: int = 0
    backfilled: int = 0
    commands: int = 0
    window_frames: int = 0
    window_cpu_s: float = 0.0
    rss_bytes: int = 0
    lateness: Spread = msgspec.field(default_factory=Spread)
    acknowledged: Spread = msgspec.field(default_factory=Spread)
    xids_acknowledged_s: list[float] = []
    xids: list[Xid] = []
    resets: list[Reset] = []
    back_s: list[float] = []
    refused: dict[str, int] = {}
    notes: dict[str, int] = {}
    hostile: dict[str, int] = {}


def plus(parts: list[Counted]) -> Counted:
    """All processes together."""
    whole = Counted()
    for part in parts:
        for name in Counted.__struct_fields__:
            mine, theirs = getattr(whole, name), getattr(part, name)
            if isinstance(mine, Spread):
                setattr(whole, name, mine.plus(theirs))
            elif isinstance(mine, dict):
                setattr(whole, name, dict(Counter(mine) + Counter(theirs)))
            else:
                setattr(whole, name, mine + theirs)
    return whole


@dataclass(slots=True)
class Tally:
    """The same while it is counted. `jitter`: by how much agents spread their returns, seeded by the fleet.
    `watched_s`: since when agents that come back are noted, None: they are not."""

    jitter: random.Random
    frames: int = 0
    events: int = 0
    held: int = 0
    skipped: int = 0
    silent: int = 0
    away: int = 0
    backfilled: int = 0
    commands: int = 0
    lateness: Spread = field(default_factory=Spread)
    acknowledged: Spread = field(default_factory=Spread)
    xids_acknowledged_s: list[float] = field(default_factory=list)
    xids: list[Xid] = field(default_factory=list)
    resets: list[Reset] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    hostile: Counter[str] = field(default_factory=Counter)
    watched_s: float | None = None
    back_s: dict[int, float] = field(default_factory=dict)

    def begin(self) -> None:
        """The measured window: what came before is no part of how late or how long things were."""
        self.lateness, self.acknowledged = Spread(), Spread()
        self.held = self.skipped = self.silent = self.away = 0

    def counted(self, **now: float) -> Counted:
        """As it stands. `now`: fields that are not kept here."""
        kept = ("jitter", "watched_s", "back_s")
        return Counted(
            **{name: getattr(self, name) for name in Tally.__dataclass_fields__ if name not in kept},
            back_s=list(self.back_s.values()),
            **now,  # type: ignore[arg-type]
        )
