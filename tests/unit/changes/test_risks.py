"""A device's risk: one alarm however the score trembles, and all clear when it was below for long enough."""

from controlplane.changes.kinds import Raise, Settle, Wake
from controlplane.changes.risks import Risk, RiskState, risk_moved
from controlplane.policy.signals.devices import DeviceAtRisk

from .builders import NODES, training

LIMIT = 0.3


def step(state: RiskState, score: float, now_s: float) -> bool | None:
    return state.step(score, limit=LIMIT, hysteresis_s=30.0, now_s=now_s)


def test_a_score_that_trembles_at_its_limit_alarms_once() -> None:
    state = RiskState()
    assert [step(state, score, at_s) for at_s, score in enumerate((0.2, 0.3, 0.2, 0.31, 0.29))] == [
        None,
        True,
        None,
        None,
        None,
    ]


def test_it_is_clear_when_it_was_below_all_the_time() -> None:
    state = RiskState(alarmed=True)
    assert step(state, 0.1, 0.0) is None and step(state, 0.4, 29.0) is None and step(state, 0.1, 31.0) is None
    assert step(state, 0.1, 60.9) is None, "it was not below for so long"
    assert step(state, 0.1, 61.0) is False
    assert step(state, 0.1, 62.0) is None


def test_an_alarm_is_a_finding_and_all_clear_settles_it() -> None:
    world = training()
    risk = Risk(node_id=NODES[0], index=1, device_id="d1", uuid="u1", score=0.5, limit=LIMIT, parts={"errors": 1.0})
    raised, wake = risk_moved(world.store, risk, alarm=True)
    assert isinstance(raised, Raise) and isinstance(raised.found, DeviceAtRisk) and wake == Wake()
    assert (raised.found.value, raised.found.threshold, raised.found.node) == (0.5, LIMIT, NODES[0])
    world.store.commit([raised])
    (known,) = world.rows.signals
    assert list(risk_moved(world.store, risk, alarm=False)) == [
        Settle((known,), "the score is below its limit again"),
        Wake(),
    ]
    world.store.commit(risk_moved(world.store, risk, alarm=False))
    assert list(risk_moved(world.store, risk, alarm=False)) == [Wake()], "nothing is left to settle"
