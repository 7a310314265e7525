"""Where a job starts nothing again for a while, because of how a rank of its own ended there.

| end | what is barred |
|---|---|
| 201, 202: an error of the GPU driver, an earlier pod's remains | the rank's device |
| 247, SIGBUS: no memory, shared memory that ran full | the replica's devices on that node |
| 93: the configuration does not work there (a mount is missing) | the node |
| it was slow beside its peers when it left (`rules.straggler`) | the rank's device |

`proved` names them when the rank ends, `changes.assembly` tells them afterwards from rows
(`snapshot.BarFact`), and `pools.pool_for` places nothing on them. A bar is the job's own: the
node's state is left alone, for another job may well work there. A new attempt that would find
no place at all without the barred devices takes them back, but never those of a 93.
"""

import msgspec

from controlplane.policy.config import PolicyConfig
from controlplane.policy.exits import EXIT_DO_NOT_REQUEUE, normal
from controlplane.policy.placement import Slot
from controlplane.policy.snapshot import BarFact, JobSnapshot, Placement

DEVICE_ENDS = frozenset({201, 202})
REPLICA_ENDS = frozenset({247, -7})
NODE_ENDS = frozenset({EXIT_DO_NOT_REQUEUE})
SLOW = 1000
"""In the place of an exit code, of which none is as high."""


def accuses(code: int) -> bool:
    """This end bars something."""
    return normal(code) in DEVICE_ENDS | REPLICA_ENDS | NODE_ENDS


def bars_of(placements: tuple[Placement, ...], rank: int | None, code: int, *, since_s: float) -> tuple[BarFact, ...]:
    """What the end of this rank of a replica so placed bars; empty for an end that accuses no place."""
    code = normal(code)
    home = next((p for p in placements if p.rank == rank), None)
    if home is None or not accuses(code):
        return ()
    if code in NODE_ENDS:
        return (BarFact(node_id=home.node_id, code=code, since_s=since_s),)
    if code in DEVICE_ENDS:
        return (BarFact(node_id=home.node_id, device_index=home.device_index, code=code, since_s=since_s),)
    beside = (p.device_index for p in placements if p.node_id == home.node_id)
    return tuple(
        BarFact(node_id=home.node_id, device_index=index, code=code, since_s=since_s) for index in sorted(beside)
    )


def of_slow(node_id: str, device_index: int, *, since_s: float) -> BarFact:
    """What a rank bars that left while it was slow beside its peers: else its place is filled again there."""
    return BarFact(node_id=node_id, device_index=device_index, code=SLOW, since_s=since_s)


def is_slow(score: object, cause: object) -> bool:
    """The device of a rank with this finding is slow: it was told so beside its peers, and not for its input."""
    return score == "relative" and cause == "compute"


def bad_places(bars: tuple[BarFact, ...]) -> tuple[tuple[Slot, ...], tuple[str, ...]]:
    """(single devices, whole nodes)."""
    slots = tuple((bar.node_id, bar.device_index) for bar in bars if bar.device_index is not None)
    return slots, tuple(sorted({bar.node_id for bar in bars if bar.device_index is None}))


def words(bars: tuple[BarFact, ...], name: str, config: PolicyConfig) -> str:
    """For sentences; "" without a bar. All of them are on the node `name`."""
    if not bars:
        return ""
    indices = [str(bar.device_index) for bar in bars if bar.device_index is not None]
    what = f"device {' and '.join(indices)} of {name}" if indices else name
    return f"{what} takes nothing of this job for {config.bar_s / 60.0:.0f} min"


def standing(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[BarFact, ...]:
    """Those that hold now."""
    return tuple(bar for bar in snapshot.bars if snapshot.now_s - bar.since_s < config.bar_s)


def lifted(snapshot: JobSnapshot) -> JobSnapshot:
    """The same world without the bars that a new attempt lifts where there is no other place."""
    hard = tuple(bar for bar in snapshot.bars if bar.code in NODE_ENDS)
    return msgspec.structs.replace(snapshot, bars=hard)
