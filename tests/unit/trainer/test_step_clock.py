"""Where the time of a step goes that a failure interrupts."""

from types import SimpleNamespace
from typing import Any

import pytest

from trainer import loop
from trainer.loop import Loop
from trainer.reporting import StepClock


class Time:
    """A clock that stands still unless somebody waits."""

    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def wait(self, seconds: float, result: Any) -> Any:
        self.now_s += seconds
        return result


def test_waiting_for_a_peer_that_is_gone_is_stall_and_no_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, done = Time(), object()
    monkeypatch.setattr(loop, "time", clock)
    attempts = iter([lambda: clock.wait(42.0, None), lambda: clock.wait(0.25, done)])
    running = Loop(
        steps=1,
        engine=SimpleNamespace(clear=lambda: None),  # type: ignore[arg-type]
        pilot=SimpleNamespace(  # type: ignore[arg-type]
            standing=SimpleNamespace(committed=0, epoch=1), bring=lambda event: [], take=lambda *kinds: None
        ),
        exchange=SimpleNamespace(attempt=lambda: next(attempts)()),  # type: ignore[arg-type]
        membership=SimpleNamespace(change_view=lambda: clock.wait(1.5, None)),  # type: ignore[arg-type]
        boundary=SimpleNamespace(),  # type: ignore[arg-type]
        recomputer=SimpleNamespace(),  # type: ignore[arg-type]
        progress=SimpleNamespace(enter=lambda *_, **__: None),  # type: ignore[arg-type]
        keeper=SimpleNamespace(),  # type: ignore[arg-type]
        send=lambda _: None,
    )
    parts = StepClock(began_s=clock.now_s)
    assert running._step(parts) is done
    assert (parts.stall_s, parts.exchange_s) == (43.5, 0.25)
