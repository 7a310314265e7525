"""The detector's arrays say what the policy's formulas say; findings come once."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.policy.risk import PAST_ERRORS_S, SAMPLE_S, WEIGHTS, RiskSample, risk_score
from controlplane.protocol.frames import AgentFrame, RankStatus
from controlplane.protocol.launch import RankRef
from controlplane.protocol.samples import DeviceSample
from controlplane.protocol.states import Phase, RankState, Section
from controlplane.sentinel import history
from controlplane.sentinel.detect import RiskLatch, find_silent, mostly_silent
from controlplane.sentinel.fleetmap import DeviceInfo, FleetMap, JobLimits, NodeInfo
from controlplane.sentinel.heard import Heard, waves
from controlplane.sentinel.live_state import GROW, LiveState
from controlplane.sentinel.scores import COLUMNS, WINDOW, score
from controlplane.telemetry.codec import METRICS, Chunk, Part, pack_whole, unpack
from controlplane.telemetry.services import Unit

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
        past_errors=st.none() | st.integers(0, 3),
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
            errors=r.errors, past_errors=r.past_errors, power_w=r.power_w,
            utilization_ratio=r.utilization_ratio, training=r.training,
        )
        for i, r in enumerate(readings)
    ]  # fmt: skip
    window = np.full((1, WINDOW, len(COLUMNS)), np.nan)
    for offset, r in enumerate(reversed(timed[-WINDOW:])):
        values = (
            r.at_s, r.temperature_c, r.memory_utilization_ratio, r.errors, r.past_errors, r.power_w,
            r.utilization_ratio,
        )  # fmt: skip
        window[0, WINDOW - 1 - offset, :-1] = [np.nan if v is None else v for v in values]
        window[0, WINDOW - 1 - offset, -1] = float(r.training)
    assert abs(float(score(window)[0]) - risk_score(timed)) < 1e-9


def heard(node: str, seq: int, *, at_s: float = 0.0, session: str = "s", temperature_c: float = 50.0) -> Heard:
    """A frame with one device."""
    sample = DeviceSample(index=0, temperature_c=temperature_c, power_w=300.0, utilization_ratio=0.9)
    # One frame an interval of the score: each closes the one before.
    frame = AgentFrame(seq=seq, uptime_s=seq * SAMPLE_S, devices=(sample,))
    return Heard(node_id=node, session_id=session, at_s=at_s, frame=frame)


def picture_of(*nodes: str, devices: int = 1) -> LiveState:
    """A live state that expects these nodes with so many devices each, and REF on the first."""
    made = LiveState()
    made.expect(set(nodes), {(node, index) for node in nodes for index in range(devices)}, {REF: nodes[0]})
    return made


def test_a_wave_holds_a_node_once_and_keeps_its_order() -> None:
    batch = [heard("a", 1), heard("a", 2), heard("b", 1), heard("a", 3)]
    found = [[(item.node_id, item.frame.seq) for item in wave] for wave in waves(batch)]
    assert found == [[("a", 1), ("b", 1)], [("a", 2)], [("a", 3)]]


def test_a_repeated_frame_is_dropped_and_a_new_session_begins_anew() -> None:
    live_state = picture_of("a")
    live_state.take([heard("a", 1), heard("a", 2), heard("a", 2), heard("a", 1)])
    assert live_state.duplicates == 2
    live_state.take([heard("a", 1, session="t", at_s=9.0)])
    assert live_state.silent_s("a", 10.0) == 1.0


@pytest.mark.parametrize(("later", "what"), [({}, "says nothing of it"), ({"rss_bytes": 0, "cpu_ratio": 0.0}, "old")])
def test_a_frame_that_does_not_measure_its_agent_leaves_what_was_measured(later: dict[str, float], what: str) -> None:
    live_state = picture_of("a")

    def take(seq: int, **cost: float) -> None:
        frame = AgentFrame(seq=seq, uptime_s=float(seq), **cost)  # type: ignore[arg-type]
        live_state.take([Heard(node_id="a", session_id="s", at_s=float(seq), frame=frame)])

    take(1, **later)
    assert live_state.nodes["a"].agent == {}, what
    take(2, cpu_ratio=0.03, rss_bytes=60_000_000)
    take(3, **later)
    assert live_state.nodes["a"].agent == {"cpu_ratio": 0.03, "rss_bytes": 60_000_000}, what


def test_many_nodes_make_the_arrays_grow() -> None:
    live_state = picture_of(*(f"n{i}" for i in range(200)))
    live_state.take([heard(f"n{i}", k, at_s=5.0, temperature_c=40.0 + i) for i in range(200) for k in (1, 2)])
    assert all(live_state.silent_s(f"n{i}", 6.0) == 1.0 for i in range(200))
    assert live_state.risk_of("n0", 0) == 0.0
    assert (live_state.risk_of("n150", 0) or 0.0) > 0.0


def sampled(node: str, seq: int, indexes: list[int], *, refs: tuple[RankRef, ...] = (), at_s: float = 0.0) -> Heard:
    """A frame with a sample of each of these indexes and a status of each of these ranks."""
    samples = tuple(DeviceSample(index=index, temperature_c=50.0) for index in indexes)
    ranks = tuple(
        RankStatus(
            ref=ref, state=RankState.TRAINING, pid=1, device_index=0, section=Section.STEP, phase=Phase.COMPUTE,
            step=1, phase_age_s=0.0, silent_s=0.0,
        )
        for ref in refs
    )  # fmt: skip
    frame = AgentFrame(seq=seq, uptime_s=float(seq), devices=samples, ranks=ranks)
    return Heard(node_id=node, session_id="s", at_s=at_s, frame=frame)


def test_devices_that_a_node_never_listed_and_repeated_ones_are_dropped_and_counted() -> None:
    live_state = picture_of("a", "b", devices=2)
    taken = live_state.take([sampled("a", 1, [0, 1, 1, 2, -1, 2**40])])
    assert [sample.index for sample in taken[0].frame.devices] == [0, 1]
    assert sorted(live_state.slots) == [("a", 0), ("a", 1)]
    assert live_state.dropped == {("a", "unknown_device"): 4}
    assert len(live_state.nodes["a"].samples) == 2


def test_a_frame_of_a_node_that_is_not_in_the_tables_is_dropped() -> None:
    live_state = picture_of("a")
    assert live_state.take([sampled("stranger", 1, [0])]) == []
    assert not live_state.nodes
    assert live_state.dropped == {("?", "unknown_node"): 1}


def test_ranks_that_are_placed_elsewhere_are_dropped_and_counted_once_the_tables_had_time() -> None:
    live_state = picture_of("a", "b")
    other = RankRef("job_x", 1, 0, 1, 0)
    live_state.take([sampled("b", 1, [0], refs=(REF, other), at_s=10.0)])
    assert not live_state.ranks
    assert not live_state.dropped
    live_state.take([sampled("b", 2, [0], refs=(REF, other), at_s=16.0)])
    assert live_state.dropped == {("b", "unknown_rank"): 2}
    live_state.take([sampled("a", 1, [0], refs=(REF,), at_s=16.0)])
    assert set(live_state.ranks) == {REF}


def test_a_frame_that_cannot_be_taken_costs_no_other_node_its_own() -> None:
    live_state = picture_of("a", "b")
    broken = DeviceSample(index=0, temperature_c="live")  # type: ignore[arg-type]
    frame = AgentFrame(seq=1, uptime_s=1.0, devices=(broken,))
    taken = live_state.take([Heard(node_id="a", session_id="s", at_s=0.0, frame=frame), sampled("b", 1, [0])])
    assert [item.node_id for item in taken] == ["b"]
    assert live_state.nodes["b"].samples[0].temperature_c == 50.0
    assert live_state.dropped == {("a", "failed_frame"): 1}


def test_a_node_that_goes_gives_its_rows_back_to_the_next_one() -> None:
    live_state = picture_of("a", "b", devices=3)
    live_state.take([sampled("a", 1, [0, 1, 2], refs=(REF,)), sampled("b", 1, [0, 1, 2])])
    for number in range(300):
        name = f"next{number}"
        live_state.expect({"b", name}, {(n, i) for n in ("b", name) for i in range(3)}, {})
        live_state.take([sampled(name, 1, [0, 1, 2], at_s=float(number))])
        assert live_state.silent_s(name, float(number)) == 0.0
        assert live_state.risk_of(name, 0) is None, "what its row held belongs to another device"
    assert (len(live_state.nodes), len(live_state.slots), len(live_state.ranks)) == (2, 6, 0)
    assert len(live_state.risk) == GROW
    assert len(live_state.last_seen_s) == GROW


def test_a_history_holds_no_more_than_its_limit_of_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_READINGS", 10)
    live_state, kept = picture_of("a", devices=4), history.History(60.0)
    for number in range(1, 9):
        kept.take(live_state.take([sampled("a", number, [0, 1, 2, 3], at_s=float(number))]), live_state)
    assert kept.nodes["a"].samples == 2


@pytest.mark.parametrize("devices", [1, 2, 8, 72])
def test_a_node_with_so_many_devices_has_its_history_stored_whole(
    devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: dict[str, Chunk] = {}

    def store(wholes: dict[str, Part], unit: Unit) -> int:
        stored.update({node_id: unpack(pack_whole(part)) for node_id, part in wholes.items()})
        return len(wholes)

    monkeypatch.setattr(history, "store_chunks", store)
    monkeypatch.setattr(history.bus, "drop_parts", lambda names: True)
    live_state, kept = picture_of("a", devices=devices), history.History(60.0)
    for number in range(1, 4):
        kept.take(live_state.take([sampled("a", number, list(range(devices)), at_s=float(number))]), live_state)
    assert kept.force(known={"a"}) == 1
    assert stored["a"].devices == list(range(devices))
    assert stored["a"].values[METRICS.index("temperature_c")].tolist() == [[50.0] * 3] * devices


def test_a_history_that_cannot_be_packed_costs_no_other_node_its_own_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored: list[str] = []

    def store(wholes: dict[str, Part], unit: Unit) -> int:
        stored.extend(wholes)
        return len(wholes)

    monkeypatch.setattr(history, "store_chunks", store)
    monkeypatch.setattr(history.bus, "drop_parts", lambda names: True)
    monkeypatch.setattr(history.bus, "write_parts", lambda changes: stored.extend(name for name, _, _ in changes) or {})
    live_state, kept = picture_of("a", "b"), history.History(60.0)
    kept.take(live_state.take([sampled("a", 1, [0]), sampled("b", 1, [0])]), live_state)
    kept.nodes["a"].rows[0] = None  # type: ignore[call-overload]
    kept.publish()
    assert kept.force(known={"a", "b"}) == 1
    assert stored == ["pending:b", "b"]


def second(number: int, **fields: float) -> Heard:
    """The frame of one second of a device that trains."""
    reading = {"temperature_c": 60.0, "power_w": 400.0, "utilization_ratio": 0.9} | fields
    status = RankStatus(
        ref=REF, state=RankState.TRAINING, pid=1, device_index=0, section=Section.STEP, phase=Phase.COMPUTE, step=1,
        phase_age_s=0.0, silent_s=0.0,
    )  # fmt: skip
    sample = DeviceSample(index=0, **reading)  # type: ignore[arg-type]
    frame = AgentFrame(seq=number + 1, uptime_s=float(number), devices=(sample,), ranks=(status,))
    return Heard(node_id="a", session_id="s", at_s=float(number), frame=frame)


def test_the_score_is_of_ten_seconds_as_its_formulas_are() -> None:
    # Power that swings by a third each second, as attention and the exchange take turns, is no swing
    # over ten seconds; once a second it would be the whole part.
    live_state = picture_of("a")
    live_state.take([second(i, power_w=300.0 if i % 2 else 450.0, temperature_c=60.0 + i * 0.02) for i in range(121)])
    means = [np.mean([300.0 if i % 2 else 450.0 for i in range(k, k + 10)]) for k in range(0, 120, 10)]
    samples = [
        RiskSample(
            at_s=10.0 * k, power_w=float(mean), utilization_ratio=0.9,
            temperature_c=60.0 + float(np.mean([i * 0.02 for i in range(10 * k, 10 * k + 10)])),
        )
        for k, mean in enumerate(means)
    ]  # fmt: skip
    assert live_state.risk_of("a", 0) == pytest.approx(risk_score(samples), abs=1e-9)
    assert live_state.parts_of("a", 0)["power"] == 0.0
    assert sum(live_state.parts_of("a", 0).values()) == pytest.approx(live_state.risk_of("a", 0), abs=1e-3)


def test_a_healthy_device_at_76_degrees_with_noise_stays_under_the_default_limit() -> None:
    random = np.random.default_rng(7)
    live_state, over = picture_of("a"), 0
    for number in range(10_000):
        noise = {
            "temperature_c": 76.0 + random.normal(0.0, 1.0),
            "power_w": 620.0 * (1.0 + random.normal(0.0, 0.06)),
            "utilization_ratio": float(np.clip(random.normal(0.9, 0.06), 0.0, 1.0)),
            "memory_utilization_ratio": float(np.clip(random.normal(0.55, 0.05), 0.0, 1.0)),
        }
        live_state.take([second(number, **noise)])
        over += (live_state.risk_of("a", 0) or 0.0) >= 0.30
    assert over == 0


@pytest.mark.parametrize(
    ("ecc", "accused_s", "share"),
    [((0, 0), None, 0.0), ((0, 1), None, 1.0), ((5, 0), None, 0.5), ((0, 0), 25.0, 1.0), ((0, 0), -3600.0, 0.5),
     ((0, 0), -PAST_ERRORS_S - 60.0, 0.0)],
)  # fmt: skip
def test_errors_of_both_kinds_and_xids_enter_the_score_each_in_its_way(
    ecc: tuple[int, int], accused_s: float | None, share: float
) -> None:
    live_state = picture_of("a")
    accused = {} if accused_s is None else {("a", 0): accused_s}
    live_state.expect({"a"}, {("a", 0)}, {REF: "a"}, accused)
    for number in range(31):
        late = number > 24
        live_state.take(
            [second(number, ecc_corrected_total=ecc[0] if late else 0, ecc_uncorrected_total=ecc[1] if late else 0)]
        )
    assert live_state.parts_of("a", 0)["errors"] == pytest.approx(WEIGHTS["errors"] * share)


@pytest.mark.parametrize(
    ("fields", "reachable"),
    [({}, 0.60), ({"memory_utilization_ratio": 0.5}, 0.75),
     ({"memory_utilization_ratio": 0.5, "ecc_uncorrected_total": 0}, 1.0)],
)  # fmt: skip
def test_what_the_fleet_can_reach_is_what_its_devices_report(fields: dict[str, float], reachable: float) -> None:
    live_state = picture_of("a")
    assert live_state.reachable_risk() is None
    live_state.take([second(number, **fields) for number in range(11)])
    assert live_state.reachable_risk() == pytest.approx(reachable)


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
    live_state, latch, where = picture_of("n0"), RiskLatch(), fleet(limits=JobLimits(risk=0.2, hysteresis_s=30.0))
    seq = 0

    def step(now_s: float, temperature_c: float) -> list[bool]:
        nonlocal seq
        seq += 1
        live_state.take([heard("n0", seq, at_s=now_s, temperature_c=temperature_c)])
        return [move.alarm for move in latch.step(live_state, where, now_s)]

    # A reading is judged when the next interval begins.
    assert step(0.0, 50.0) == []
    assert step(10.0, 95.0) == []
    assert step(20.0, 96.0) == [True]
    assert step(30.0, 50.0) == []
    assert step(40.0, 95.0) == []
    assert step(50.0, 50.0) == []
    assert step(60.0, 50.0) == []
    assert step(89.9, 50.0) == []
    assert step(90.1, 50.0) == [False]


def test_only_nodes_with_ranks_are_missed_and_never_before_two_frames() -> None:
    live_state = picture_of("n0", "n1")
    live_state.take([heard("n0", 1, at_s=0.0), heard("n1", 1, at_s=0.0)])
    where = fleet(nodes=2)
    assert find_silent(live_state, where, 1.9, frame_interval_s=1.0) == []
    found = find_silent(live_state, where, 2.1, frame_interval_s=1.0)
    assert [(item.node_id, item.job_id) for item in found] == [("n0", "job_a")]
    assert find_silent(live_state, where, 2.1, frame_interval_s=2.0) == []


def test_when_most_of_the_fleet_is_silent_at_once_the_fault_is_ours() -> None:
    live_state = picture_of(*(f"n{i}" for i in range(4)))
    live_state.take([heard(f"n{i}", 1, at_s=0.0) for i in range(4)])
    assert mostly_silent(live_state, fleet(nodes=4), 5.0, limit_s=2.0)
    live_state.take([heard("n0", 2, at_s=5.0), heard("n1", 2, at_s=5.0)])
    assert not mostly_silent(live_state, fleet(nodes=4), 5.0, limit_s=2.0)


@pytest.mark.parametrize(("cut", "ours"), [(True, True), (False, False)])
def test_nodes_whose_connection_one_of_our_processes_took_along_count_as_silent_by_our_fault(
    cut: bool, ours: bool
) -> None:
    live_state = picture_of(*(f"n{i}" for i in range(4)))
    live_state.take([heard(f"n{i}", 1, at_s=0.0) for i in range(4)])
    closed = replace(
        fleet(nodes=4), nodes={f"n{i}": NodeInfo(name=f"n{i}", connected=False, cut=cut) for i in range(4)}
    )
    assert mostly_silent(live_state, closed, 5.0, limit_s=2.0) is ours
