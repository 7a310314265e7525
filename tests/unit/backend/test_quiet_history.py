"""The last readings of a node that falls silent are stored before what shows them expires."""

import pytest

from controlplane.runtime import bus
from controlplane.sentinel import history
from controlplane.sentinel.history import QUIET_S, History
from controlplane.telemetry.codec import Part
from tests.unit.backend.test_sentinel import picture_of, sampled


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> dict[str, Part]:
    found: dict[str, Part] = {}
    monkeypatch.setattr(history, "store_chunks", lambda wholes, unit: found.update(wholes) or len(wholes))
    monkeypatch.setattr(bus, "drop_parts", lambda names: True)
    return found


def test_a_node_that_is_quiet_is_stored_before_its_unstored_samples_expire(stored: dict[str, Part]) -> None:
    live_state, kept = picture_of("a", "b"), History(600.0)
    for number in range(1, 4):
        kept.take(live_state.take([sampled("a", number, [0], at_s=float(number))]), live_state)
    assert QUIET_S < bus.LIVE_EXPIRE_S
    assert kept.flush(3.0 + QUIET_S - 0.1, known={"a", "b"}) == 0
    kept.take(live_state.take([sampled("b", 1, [0], at_s=2.0 + QUIET_S)]), live_state)
    assert kept.flush(3.0 + QUIET_S, known={"a", "b"}) == 1
    assert stored["a"].t_ms.tolist() == [1000, 2000, 3000]
    assert list(stored) == ["a"], "b still sends"
    assert kept.flush(4.0 + QUIET_S, known={"a", "b"}) == 0, "once"


def test_a_fleet_that_falls_silent_at_once_is_stored_in_parts(
    stored: dict[str, Part], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "QUIET_AT_ONCE", 2)
    live_state, kept = picture_of("a", "b", "c"), History(600.0)
    kept.take(live_state.take([sampled(name, 1, [0], at_s=1.0) for name in "abc"]), live_state)
    assert [kept.flush(100.0, known=set("abc")) for _ in range(3)] == [2, 1, 0]
