"""The detector's arrays say what the policy's formulas say; findings come once."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.policy.risk import RiskSample, risk_score
from controlplane.protocol.frames import AgentFrame
from controlplane.protocol.launch import RankRef
from controlplane.protocol.samples import DeviceSample
from controlplane.sentinel.detect import RiskLatch, find_silent, mostly_silent
from controlplane.sentinel.fleetmap import DeviceInfo, FleetMap, JobLimits, NodeInfo
from controlplane.sentinel.picture import Heard, Picture, waves
from controlplane.sentinel.scores import COLUMNS, WINDOW, score

REF = RankRef("job_a", 1, 0, 1, 0)


def optional(low: float, high: float) -> st.SearchStrategy[float | None]:
    """A reading, or none."""
    return st.none() | st.floats(low, high)


samples = st.lists(
    st.builds(
        RiskSample,
        at_s=st.just(0.0),
        temperature_c=optional(20, 110),
        memory_utilization_ratio=optional(0, 1),
        errors=st.none() | st.integers(0, 3),
        power_w=optional(0, 700),
        utilization_ratio=optional(0, 1),
        training=st.booleans(),
    ),
    min_size=1,
    max_size=WINDOW + 10,
)


@settings(max_examples=150, deadline=None)
@given(samples)
def test_the_vectorised_score_is_the_policys_score(readings: list[RiskSample]) -> None:
    timed = [
        RiskSample(
            at_s=float(i), temperature_c=r.temperature_c, memory_utilization_ratio=r.memory_utilization_ratio,
            errors=r.errors, power_w=r.power_w, utilization_ratio=r.utilization_ratio, training=r.training,
        )
        for i, r in enumerate(readings)
    ]  # fmt: skip
    window = np.full((1, WINDOW, len(COLUMNS)), np.nan)
    for offset, r in enumerate(reversed(timed[-WINDOW:])):
        values = (r.at_s, r.temperature_c, r.memory_utilization_ratio, r.errors, r.power_w, r.utilization_ratio)
        window[0, WINDOW - 1 - offset, :-1] = [np.nan if v is None else v for v in values]
        window[0, WINDOW - 1 - offset, -1] = float(r.training)
    assert abs(float(score(window)[0]) - risk_score(timed)) < 1e-9


def heard(node: str, seq: int, *, at_s: float = 0.0, session: str = "s", temperature_c: float = 50.0) -> Heard:
    """A frame with one device."""
    sample = DeviceSample(index=0, temperature_c=temperature_c, power_w=300.0, utilization_ratio=0.9)
    return Heard(
        node_id=node, session_id=session, at_s=at_s, frame=AgentFrame(seq=seq, uptime_s=float(seq), devices=(sample,))
    )


def test_a_wave_holds_a_node_once_and_keeps_its_order() -> None:
    batch = [heard("a", 1), heard("a", 2), heard("b", 1), heard("a", 3)]
    found = [[(item.node_id, item.frame.seq) for item in wave] for wave in waves(batch)]
    assert found == [[("a", 1), ("b", 1)], [("a", 2)], [("a", 3)]]


def test_a_repeated_frame_is_dropped_and_a_new_session_begins_anew() -> None:
    picture = Picture()
    picture.take([heard("a", 1), heard("a", 2), heard("a", 2), heard("a", 1)])
    assert picture.duplicates == 2
    picture.take([heard("a", 1, session="t", at_s=9.0)])
    assert picture.silent_s("a", 10.0) == 1.0


def test_many_nodes_make_the_arrays_grow() -> None:
    picture = Picture()
    picture.take([heard(f"n{i}", 1, at_s=5.0, temperature_c=40.0 + i) for i in range(200)])
    assert all(picture.silent_s(f"n{i}", 6.0) == 1.0 for i in range(200))
    assert picture.risk_of("n0", 0) == 0.0
    assert (picture.risk_of("n150", 0) or 0.0) > 0.0


def fleet(*, jobs_on: dict[str, set[str]] | None = None, nodes: int = 1, limits: JobLimits | None = None) -> FleetMap:
    """Nodes n0.. with a device each, of job_a."""
    names = [f"n{i}" for i in range(nodes)]
    return FleetMap(
        nodes={n: NodeInfo(name=n, connected=True) for n in names},
        devices={(n, 0): DeviceInfo(id=f"dev_{n}", present=True, risk=None, job_id="job_a") for n in names},
        placed={REF: "n0"},
        jobs_on=jobs_on if jobs_on is not None else {"n0": {"job_a"}},
        limits={"job_a": limits or JobLimits(hysteresis_s=30.0)},
    )


def test_a_hot_device_alarms_once_and_clears_only_after_its_hysteresis() -> None:
    picture, latch, where = Picture(), RiskLatch(), fleet(limits=JobLimits(risk=0.2, hysteresis_s=30.0))
    seq = 0

    def step(now_s: float, temperature_c: float) -> list[bool]:
        nonlocal seq
        seq += 1
        picture.take([heard("n0", seq, at_s=now_s, temperature_c=temperature_c)])
        return [move.alarm for move in latch.step(picture, where, now_s)]

    assert step(0.0, 50.0) == []
    assert step(1.0, 95.0) == [True]
    assert step(2.0, 96.0) == []
    assert step(3.0, 50.0) == []
    assert step(20.0, 95.0) == []
    assert step(21.0, 50.0) == []
    assert step(50.9, 50.0) == []
    assert step(51.1, 50.0) == [False]


def test_only_nodes_with_ranks_are_missed_and_never_before_two_frames() -> None:
    picture = Picture()
    picture.take([heard("n0", 1, at_s=0.0), heard("n1", 1, at_s=0.0)])
    where = fleet(nodes=2)
    assert find_silent(picture, where, 1.9, frame_interval_s=1.0) == []
    found = find_silent(picture, where, 2.1, frame_interval_s=1.0)
    assert [(item.node_id, item.job_id) for item in found] == [("n0", "job_a")]
    assert find_silent(picture, where, 2.1, frame_interval_s=2.0) == []


def test_when_most_of_the_fleet_is_silent_at_once_the_fault_is_ours() -> None:
    picture = Picture()
    picture.take([heard(f"n{i}", 1, at_s=0.0) for i in range(4)])
    assert mostly_silent(picture, fleet(nodes=4), 5.0, limit_s=2.0)
    picture.take([heard("n0", 2, at_s=5.0), heard("n1", 2, at_s=5.0)])
    assert not mostly_silent(picture, fleet(nodes=4), 5.0, limit_s=2.0)


@pytest.mark.parametrize(("cut", "ours"), [(True, True), (False, False)])
def test_nodes_whose_connection_one_of_our_processes_took_along_count_as_silent_by_our_fault(
    cut: bool, ours: bool
) -> None:
    picture = Picture()
    picture.take([heard(f"n{i}", 1, at_s=0.0) for i in range(4)])
    closed = replace(
        fleet(nodes=4), nodes={f"n{i}": NodeInfo(name=f"n{i}", connected=False, cut=cut) for i in range(4)}
    )
    assert mostly_silent(picture, closed, 5.0, limit_s=2.0) is ours
