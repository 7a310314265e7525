"""The sentinel's two threads outlive whatever goes wrong in one turn, and health tells."""

import threading

import pytest

from controlplane.recovery import sweep
from controlplane.sentinel.picture import Heard
from controlplane.sentinel.process import Sentinel
from tests.integration.backend.builders import make_fleet

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(120)]
WAIT_S = 30.0


class FaultyReader:
    """Fails `faults` times as no reader should, then reads nothing."""

    def __init__(self, faults: int) -> None:
        self.ok = True
        self.faults = faults
        self.reads = 0
        self.recovered = threading.Event()

    def read(self) -> list[Heard]:
        """One turn's frames."""
        self.reads += 1
        if self.reads <= self.faults:
            raise KeyError("a bug of ours")
        self.recovered.set()
        return []


def test_a_turn_that_fails_ends_no_thread_and_the_sentinel_is_blind_meanwhile() -> None:
    make_fleet(1)
    sentinel = Sentinel()
    reader = FaultyReader(3)
    sentinel.reader = reader  # type: ignore[assignment]
    thread = threading.Thread(target=sentinel.run)
    thread.start()
    try:
        assert reader.recovered.wait(WAIT_S)
        assert thread.is_alive()
        assert sentinel.blind_why
        assert sentinel.blind_until > sentinel.started
    finally:
        sentinel.stop()
        thread.join(WAIT_S)
    assert not thread.is_alive()


def test_a_part_of_the_sweep_that_fails_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def broken() -> None:
        done.append("broken")
        raise KeyError("a bug of ours")

    monkeypatch.setattr(sweep, "expire_commands", broken)
    monkeypatch.setattr(sweep, "certify_due", lambda: done.append("after"))
    sweep.sweep()
    assert done == ["broken", "after"]
