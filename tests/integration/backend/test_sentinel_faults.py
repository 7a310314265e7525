"""The sentinel's two threads outlive whatever goes wrong in one turn, and health tells."""

import threading
import time

import pytest
from pytest_django.fixtures import Settings

from controlplane.recovery import sweep
from controlplane.runtime import bus
from controlplane.sentinel import scan
from controlplane.sentinel.heard import Heard
from controlplane.sentinel.leadership import Held
from controlplane.sentinel.process import SCAN_S, Every, Sentinel
from controlplane.sentinel.publishing import Publisher
from tests.integration.backend.builders import make_fleet

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(120)]
WAIT_S = 30.0
EACH = ("map", "scan", "ranks", "devices", "history", "dropped")


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


class QuietReader(FaultyReader):
    """Redis answers, and nothing is in it."""

    def __init__(self) -> None:
        super().__init__(0)
        self.batches = self

    def take_missing(self) -> int:
        """Of batches that never came."""
        return 0

    def unheard_s(self, web: str) -> float | None:
        """Since that web process was heard."""
        return 0.0


@pytest.mark.parametrize("grace_s", [0.0, 30.0])
def test_who_starts_and_who_takes_over_concludes_nothing_from_silence_for_the_grace(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, grace_s: float
) -> None:
    settings.GRACE_S = grace_s
    told: list[bool] = []
    monkeypatch.setattr(Publisher, "publish", lambda *_, sight, **__: told.append(sight["blind"]))
    monkeypatch.setattr(scan.Scanner, "scan", lambda *_, blind, **__: told.append(blind))
    monkeypatch.setattr(bus.health, "ok", True)
    sentinel = Sentinel()
    sentinel.reader = QuietReader()  # type: ignore[assignment]
    long = grace_s > 0.0
    for term, blind in ((None, []), (1, [True]), (1, [long]), (None, []), (2, [True]), (2, [long])):
        # Long after its own start, but for the first time as the one who judges, in each term.
        sentinel.blind_until = 0.0 if term is None else sentinel.blind_until
        told.clear()
        held = None if term is None else Held(term=term, kept_s=time.monotonic())
        sentinel.leadership.held = {} if held is None else {0: held}
        sentinel._turned_at = time.monotonic()
        sentinel._turn({name: Every(SCAN_S if name == "scan" else 1e9) for name in EACH})
        assert told == blind * 2, sentinel.blind_why
    assert Sentinel().blind_until >= time.monotonic() + grace_s - 5.0, "a start has one of its own"
