"""Strategies for what nobody should send: bytes, JSON, and messages with one value changed."""

import json
from typing import Any

import msgspec
from hypothesis import strategies as st

from controlplane.protocol import frames, rank
from controlplane.protocol.codec import encode_frame, encode_line
from controlplane.protocol.launch import RankRef
from controlplane.protocol.membership import Flush, MemberRole
from controlplane.protocol.rank import SectionTime
from controlplane.protocol.recompute import RecomputedStep
from controlplane.protocol.samples import DeviceSample
from controlplane.protocol.states import Phase, RankState, Section

REF = RankRef("job_1", 1, 0, 1, 0)
DEEP = 100_000
TIMES = SectionTime(1, 1.0, 1.0, 1.0)

LINES: tuple[Any, ...] = (
    rank.RankHello(REF, 1),
    rank.RankProgress(Section.STEP, Phase.COMPUTE, 0.1, 0.1, 3),
    rank.StepReport(3, 1, 0.5, 10, (0, 1), 2.5, 1.0, "ab", trained=(0, 1)),
    Flush("job_1", 1, 1, 0, 1, 0, 3, False, MemberRole.CONTRIBUTOR),
    rank.OuterError(1, 3, "peer closed"),
    rank.CaughtUp(1, 3, 2, 0.5, 100, -1),
    rank.ViewInstalled(1, 3, False, 0.1),
    rank.CheckpointReport(3, "/ckpt/a", "complete", "scheduled", 1, holders=(("node_1",),)),
    rank.TimingReport(1, 3, 1, TIMES, TIMES, TIMES, TIMES, TIMES),
    rank.NumericsReport(3, 1, "loss_spike", "transient", "1.0", "2.0"),
    rank.DeterminismReport(3, 1, 1, 0.0),
    rank.TrainingDone(3),
    rank.RecomputeReport("rec_1", (RecomputedStep(3, 2.5, 1.0),), "ab", "cpu", 0.5),
    rank.StacksReport("File a"),
)
HOST_LINES: tuple[Any, ...] = (
    rank.HostReady(1, 0.5),
    rank.RankForked(REF, 12, 34),
    rank.RankGone(REF, 12, 0, None),
    rank.HostState((rank.RankForked(REF, 12, 34),)),
)
FRAME = frames.AgentFrame(
    seq=1,
    uptime_s=1.0,
    devices=(DeviceSample(index=0, temperature_c=50.0, throttle_reasons=("power",)),),
    ranks=(
        frames.RankStatus(
            ref=REF,
            state=RankState.TRAINING,
            pid=12,
            device_index=0,
            section=Section.STEP,
            phase=Phase.COMPUTE,
            step=3,
            phase_age_s=0.1,
            silent_s=0.1,
        ),
    ),
    events=tuple(
        frames.AgentEvent(number, 0.1, frames.RankSaid(REF, report))
        for number, report in enumerate(LINES, start=1)
        if not isinstance(report, rank.RankHello | rank.RankProgress | rank.StacksReport)
    ),
)
HELLO = frames.AgentHello(
    protocol_min=1, protocol_max=1, node_name="node-1", agent_version="1", boot_id="b", journal_id="j", devices=()
)

odd_numbers = st.sampled_from(
    [2**31, 2**53, 2**63 - 1, 2**63, 2**63 + 5, 2**64 - 1, 2**70, 10**400, -1, -(2**63), -(2**63) - 1, 1e308, -1e9, 0.5]
)
odd_texts = st.sampled_from(["\0", "a\0b", "x" * 70_000, "", "\x1b[2J", "\u202e", "\n", "../../etc/passwd", "\ufffd"])
odd_values = st.one_of(
    odd_numbers,
    odd_texts,
    st.text(max_size=30),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.none(),
    st.booleans(),
    st.just([0] * 20_000),
    st.just([[[]]] * 3),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
)


def changed(plain: Any, path: list[int], value: Any) -> Any:
    """A copy with the value at `path` (each number taken modulo what there is) replaced."""
    if not path or not isinstance(plain, dict | list) or not plain:
        return value
    if isinstance(plain, list):
        at = path[0] % len(plain)
        return [*plain[:at], changed(plain[at], path[1:], value), *plain[at + 1 :]]
    key = sorted(plain)[path[0] % len(plain)]
    return {**plain, key: changed(plain[key], path[1:], value)}


paths = st.lists(st.integers(0, 40), min_size=1, max_size=6)


def mutated_lines(messages: tuple[Any, ...]) -> st.SearchStrategy[bytes]:
    """Lines of which one value is another, as the `json` module writes it (lone surrogates and
    integers of any size included)."""
    plain = [json.loads(encode_line(message)) for message in messages]
    return st.builds(
        lambda message, path, value: json.dumps(changed(message, path, value)).encode(),
        st.sampled_from(plain),
        paths,
        st.one_of(odd_values, st.just("\ud800")),
    )


def mutated_frames() -> st.SearchStrategy[bytes]:
    """MessagePack frames of which one value is another; NaN and infinity too."""
    plain = [msgspec.msgpack.decode(encode_frame(message)) for message in (FRAME, HELLO)]
    values = st.one_of(odd_values, st.sampled_from([float("nan"), float("inf"), b"\0\1", 2**64 - 1]))
    packed = st.builds(
        lambda message, path, value: changed(message, path, value), st.sampled_from(plain), paths, values
    )
    return packed.filter(_packable).map(msgspec.msgpack.encode)


def _packable(plain: Any) -> bool:
    try:
        msgspec.msgpack.encode(plain)
    except (OverflowError, ValueError):
        return False
    return True


nested = st.sampled_from(
    [
        b"[" * DEEP,
        b"[" * DEEP + b"]" * DEEP,
        b'{"type":' * 1000,
        b'{"type":"step","step":' + b"[" * DEEP + b"]" * DEEP + b"}",
        b'{"a":' * DEEP + b"1" + b"}" * DEEP,
        b"\x91" * DEEP + b"\xc0",
        b"\x81\xa1a" * DEEP + b"\xc0",
        b'{"type":"step","step":' + b"9" * 100_000 + b"}",
        b'{"type":"stacks","text":"' + b"x" * (1 << 20) + b'"}',
        b'{"type":"stacks","text":"\xed\xa0\x80"}',
        rb'{"type":"stacks","text":"\ud800"}',
        rb'{"type":"outer_error","epoch":1,"step":1,"error":"a\u0000b"}',
        b'{"type":"step","step":1,"epoch":1,"step_time_s":1e999,"tokens":1,"micro_batches":[]}',
        b'{"type":"step","step":1,"epoch":1,"step_time_s":NaN,"tokens":1,"micro_batches":[]}',
    ]
)
any_json = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
).map(lambda value: json.dumps(value).encode())
