"""Packed device history: quantised integers, delta, byte-shuffled, zstd.

About half a byte a point (feasibility 3.4). A missing reading survives the round trip as
NaN; every other reading to within half of its metric's step. A chunk names its metrics, and
from "q2" on their steps, so a metric that is added, dropped or made finer later leaves what
is stored readable: what a chunk does not have is missing, what we do not know is left out.
"""

from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import zstandard

from controlplane.protocol.readings import HISTORY

CODEC = "q2"
LEVEL = 3
STEP_OF: dict[str, float] = {reading.name: reading.step for reading in HISTORY}
METRICS = tuple(STEP_OF)
STEPS = np.array(list(STEP_OF.values()))
_STEPS_Q1 = {name: STEP_OF[name] for name in ("temperature_c", "power_w", "utilization_ratio", "sm_clock_mhz", "risk")}
_STEPS_Q1["memory_used_bytes"] = float(1 << 20)
MISSING = np.int32(-(2**31))
LARGEST = 2**31 - 1
MAX_VALUES = 50_000_000


class Header(msgspec.Struct, frozen=True, array_like=True):
    """Before the payload, length-prefixed. `t0_ms` Unix; `devices` indices in row order;
    `steps` of the metrics (none in a "q1" chunk, whose steps are fixed)."""

    t0_ms: int
    samples: int
    devices: list[int]
    metrics: list[str]
    steps: list[float] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """`t_s`: [samples] Unix seconds; `values`: [METRICS, devices, samples], NaN is missing."""

    t_s: npt.NDArray[np.float64]
    devices: list[int]
    values: npt.NDArray[np.float64]


def storable(name: str, value: float) -> bool:
    """Whether a reading fits the packed form; what does not is counted by who collects it."""
    return abs(value / STEP_OF[name]) < LARGEST


def pack(chunk: Chunk) -> bytes:
    """Bytes of a chunk with at least one sample. Raises ValueError for a reading that is not
    `storable`."""
    t_ms = np.round(chunk.t_s * 1000.0).astype(np.int64)
    scaled = np.round(chunk.values / STEPS[:, None, None])
    if np.any(np.abs(scaled) > LARGEST):
        raise ValueError("a reading is too large for packed history; ask `storable` before it is collected")
    quantised = np.where(np.isnan(scaled), float(MISSING), scaled)
    rows = quantised.astype(np.int32).reshape(-1, len(t_ms))
    offsets = (t_ms - t_ms[0]).astype(np.int32)[None, :]
    table = np.concatenate([offsets, rows])
    # Differences wrap around in 32 bits, and so does their sum: nothing is lost. The bytes are
    # taken row by row, however the caller's array lies in memory.
    delta = np.ascontiguousarray(np.diff(table, axis=1, prepend=np.int32(0)), dtype=np.int32)
    shuffled = delta.view(np.uint8).reshape(-1, 4).T.tobytes()
    header = msgspec.msgpack.encode(
        Header(
            t0_ms=int(t_ms[0]),
            samples=len(t_ms),
            devices=chunk.devices,
            metrics=list(METRICS),
            steps=list(STEP_OF.values()),
        )
    )
    return len(header).to_bytes(4, "big") + header + zstandard.compress(shuffled, LEVEL)


def unpack(payload: bytes) -> Chunk:
    """A chunk of any format version, by the names of its metrics. Raises ValueError for bytes
    that are no chunk."""
    try:
        size = int.from_bytes(payload[:4], "big")
        header = msgspec.msgpack.decode(payload[4 : 4 + size], type=Header)
        rows = 1 + len(header.metrics) * len(header.devices)
        count = rows * header.samples
        if not 0 < count <= MAX_VALUES:
            raise ValueError("not a chunk: impossible size")
        raw = zstandard.decompress(payload[4 + size :], max_output_size=count * 4)
        delta = np.frombuffer(raw, np.uint8).reshape(4, count).T.copy().view(np.int32).reshape(rows, header.samples)
    except (msgspec.DecodeError, zstandard.ZstdError) as error:
        raise ValueError(f"not a chunk: {error}") from error
    table = np.cumsum(delta, axis=1, dtype=np.int32)
    t_s = (header.t0_ms + table[0].astype(np.int64)) / 1000.0
    whole = table[1:].reshape(len(header.metrics), len(header.devices), header.samples)
    return Chunk(t_s=t_s, devices=header.devices, values=_by_name(header, whole))


def _by_name(header: Header, whole: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    """Rows in the order of METRICS, in their units."""
    if header.steps and len(header.steps) != len(header.metrics):
        raise ValueError("not a chunk: steps and metrics differ in number")
    steps = dict(zip(header.metrics, header.steps, strict=True)) if header.steps else _STEPS_Q1
    values = np.full((len(METRICS), len(header.devices), header.samples), np.nan)
    for row, name in enumerate(header.metrics):
        if name in STEP_OF and name in steps:
            values[METRICS.index(name)] = np.where(whole[row] == MISSING, np.nan, whole[row] * steps[name])
    return values
