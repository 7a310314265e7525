"""Packed device history: quantised integers, delta, zigzag, byte-shuffled, zstd.

A missing reading survives the round trip as NaN; every other one to within half of its metric's step (what is held
still before, and how far that may be off, says `telemetry.held`). A chunk names its metrics, and from "q2" on their
steps, so a metric that is added, dropped or made finer later leaves what is stored readable: what a chunk does not have
is missing, what we do not know is left out. From "q3" on differences are zigzag: small ones of either sign are small
numbers, whose upper bytes are all 0. A part is a chunk on its way: of our own metrics, without their names.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import msgspec
import numpy as np
import numpy.typing as npt
import zstandard

from controlplane.protocol.readings import HISTORY

CODEC = "q3"
LEVEL = 9
PART_LEVEL = 1
ZIGZAG = 3
STEP_OF: dict[str, float] = {reading.name: reading.step for reading in HISTORY}
METRICS = tuple(STEP_OF)
STEPS = np.array(list(STEP_OF.values()))
_STEPS_Q1 = {
    "temperature_c": 0.25,
    "power_w": 0.5,
    "utilization_ratio": 0.001,
    "sm_clock_mhz": 1.0,
    "memory_used_bytes": float(1 << 20),
    "risk": 0.001,
}
MISSING = np.int32(-(2**31))
LARGEST = 2**31 - 1
MAX_VALUES = 50_000_000
MAX_HEAD_BYTES = 65_536
TABLE = crc32(repr(list(STEP_OF.items())).encode())
"""Of our metrics and their steps: a part of another release's is not ours to read."""

Whole = npt.NDArray[np.int32]
"""[METRICS, devices, samples] in steps; MISSING where nothing was read."""


class Header(msgspec.Struct, frozen=True, array_like=True):
    """Before the payload, length-prefixed. `t0_ms` Unix; `devices` indices in row order;
    `steps` of the metrics (none in a "q1" chunk, whose steps are fixed). `layout`: ZIGZAG, or 0 before; a payload of
    it has its number in front, so that a release which does not know it refuses the chunk. `table`: of a part, whose
    metrics and steps are ours."""

    t0_ms: int
    samples: int
    devices: list[int]
    metrics: list[str]
    steps: list[float] = []
    layout: int = 0
    table: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """`t_s`: [samples] Unix seconds; `values`: [METRICS, devices, samples], NaN is missing."""

    t_s: npt.NDArray[np.float64]
    devices: list[int]
    values: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The same as whole numbers of steps. `t_ms`: [samples] Unix milliseconds."""

    t_ms: npt.NDArray[np.int64]
    devices: list[int]
    whole: Whole


def storable(values: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Which readings fit the packed form, [.., METRICS]; what does not is counted by who collects it."""
    fits: npt.NDArray[np.bool_] = ~(np.abs(values / STEPS) >= LARGEST)
    return fits


def quantised(chunk: Chunk) -> Part:
    """Raises ValueError for a reading that is not `storable`."""
    scaled = np.round(chunk.values / STEPS[:, None, None])
    if np.any(np.abs(scaled) > LARGEST):
        raise ValueError("a reading is too large for packed history; ask `storable` before it is collected")
    whole = np.where(np.isnan(scaled), float(MISSING), scaled).astype(np.int32)
    return Part(t_ms=np.round(chunk.t_s * 1000.0).astype(np.int64), devices=chunk.devices, whole=whole)


def pack(chunk: Chunk) -> bytes:
    """Bytes of a chunk with at least one sample. Raises ValueError for a reading that is not
    `storable`."""
    return pack_whole(quantised(chunk))


def pack_whole(part: Part) -> bytes:
    """A chunk to be stored, with the names and steps of its metrics. At least one sample."""
    # Whole numbers take a byte each.
    steps = [int(step) if step.is_integer() else step for step in STEP_OF.values()]
    header = _header(part, metrics=list(METRICS), steps=steps, table=0)
    return _packed(header, part, LEVEL)


def pack_part(part: Part) -> bytes:
    """A chunk on its way, for `unpack_part` of the same release. At least one sample."""
    return _packed(_header(part, metrics=[], steps=[], table=TABLE), part, PART_LEVEL)


def _header(part: Part, *, metrics: list[str], steps: list[float], table: int) -> Header:
    return Header(
        t0_ms=int(part.t_ms[0]),
        samples=len(part.t_ms),
        devices=part.devices,
        metrics=metrics,
        steps=steps,
        layout=ZIGZAG,
        table=table,
    )


def _packed(header: Header, part: Part, level: int) -> bytes:
    offsets = (part.t_ms - part.t_ms[0]).astype(np.int32)[None, :]
    table = np.concatenate([offsets, part.whole.reshape(-1, len(part.t_ms))])
    # Differences wrap around in 32 bits, and so does their sum: nothing is lost. The bytes are
    # taken row by row, however the caller's array lies in memory.
    delta = np.ascontiguousarray(np.diff(table, axis=1, prepend=np.int32(0)), dtype=np.int32)
    zigzag = (delta << 1) ^ (delta >> 31)
    shuffled = bytes([ZIGZAG]) + zigzag.view(np.uint8).reshape(-1, 4).T.tobytes()
    head = msgspec.msgpack.encode(header)
    if header.metrics:
        # The same names in each chunk, a tenth of its bytes as they come.
        head = zstandard.compress(head, LEVEL)
    return len(head).to_bytes(4, "big") + head + zstandard.compress(shuffled, level)


def unpack(payload: bytes) -> Chunk:
    """A chunk of any format version, by the names of its metrics. Raises ValueError for bytes
    that are no chunk."""
    header, t_ms, whole = _unpacked(payload)
    return Chunk(t_s=t_ms / 1000.0, devices=header.devices, values=_by_name(header, whole))


def unpack_part(payload: bytes) -> Part:
    """Of our own metrics. Raises ValueError for any other bytes."""
    header, t_ms, whole = _unpacked(payload)
    if header.table != TABLE:
        raise ValueError("not a part: its metrics are not ours")
    return Part(t_ms=t_ms, devices=header.devices, whole=whole)


def joined(parts: Sequence[Part]) -> Part:
    """One after the other; a device that is not in one of them is missing there. At least one."""
    if len(parts) == 1:
        return parts[0]
    devices = sorted({index for part in parts for index in part.devices})
    t_ms = np.concatenate([part.t_ms for part in parts])
    if all(part.devices == devices for part in parts):
        return Part(t_ms=t_ms, devices=devices, whole=np.concatenate([part.whole for part in parts], axis=2))
    whole = np.full((len(METRICS), len(devices), len(t_ms)), MISSING, dtype=np.int32)
    place = 0
    for part in parts:
        rows = [devices.index(index) for index in part.devices]
        whole[:, rows, place : place + len(part.t_ms)] = part.whole
        place += len(part.t_ms)
    return Part(t_ms=t_ms, devices=devices, whole=whole)


def chunk_of(part: Part) -> Chunk:
    """In units."""
    values = np.where(part.whole == MISSING, np.nan, part.whole * STEPS[:, None, None])
    return Chunk(t_s=part.t_ms / 1000.0, devices=part.devices, values=values)


def _unpacked(payload: bytes) -> tuple[Header, npt.NDArray[np.int64], Whole]:
    try:
        size = int.from_bytes(payload[:4], "big")
        head = payload[4 : 4 + size]
        if head.startswith(zstandard.FRAME_HEADER):
            head = zstandard.decompress(head, max_output_size=MAX_HEAD_BYTES)
        header = msgspec.msgpack.decode(head, type=Header)
        metrics = len(METRICS) if header.table == TABLE else len(header.metrics)
        rows = 1 + metrics * len(header.devices)
        count = rows * header.samples
        if not 0 < count <= MAX_VALUES:
            raise ValueError("not a chunk: impossible size")
        front = 1 if header.layout else 0
        raw = zstandard.decompress(payload[4 + size :], max_output_size=count * 4 + front)
        if front and (header.layout, raw[:1]) != (ZIGZAG, bytes([ZIGZAG])):
            raise ValueError("not a chunk: another layout than ours")
        shuffled = np.frombuffer(raw, np.uint8, offset=front)
        delta = shuffled.reshape(4, count).T.copy().view(np.int32).reshape(rows, header.samples)
    except (msgspec.DecodeError, zstandard.ZstdError) as error:
        raise ValueError(f"not a chunk: {error}") from error
    if front:
        unsigned = delta.view(np.uint32)
        delta = (unsigned >> 1).view(np.int32) ^ -(unsigned & 1).view(np.int32)
    table = np.cumsum(delta, axis=1, dtype=np.int32)
    t_ms = header.t0_ms + table[0].astype(np.int64)
    return header, t_ms, table[1:].reshape(metrics, len(header.devices), header.samples)


def _by_name(header: Header, whole: Whole) -> npt.NDArray[np.float64]:
    """Rows in the order of METRICS, in their units."""
    if header.table:
        raise ValueError("not a chunk: a part of one")
    if header.steps and len(header.steps) != len(header.metrics):
        raise ValueError("not a chunk: steps and metrics differ in number")
    steps = dict(zip(header.metrics, header.steps, strict=True)) if header.steps else _STEPS_Q1
    values = np.full((len(METRICS), len(header.devices), header.samples), np.nan)
    for row, name in enumerate(header.metrics):
        if name in STEP_OF and name in steps:
            values[METRICS.index(name)] = np.where(whole[row] == MISSING, np.nan, whole[row] * steps[name])
    return values
