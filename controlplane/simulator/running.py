"""One run of a simulated agent, and what becomes of what comes to it while it is stopped."""

from dataclasses import dataclass, field, replace

from agents.core import events as ev
from agents.core.state import State

LEAPT_S = 1.0


@dataclass(slots=True)
class Running:
    """What one run of the agent holds beside its state; gone with it. Stopped until `still_until_s` (kernel's
    time), what comes waits in `held`, as in sockets. The timer was set by the state `armed`."""

    state: State
    heard_s: float = 0.0
    timer_s: float | None = None
    armed: State | None = None
    still_until_s: float = 0.0
    held: list[ev.Event] = field(default_factory=list)

    def holds(self, event: ev.Event, now_s: float) -> bool:
        """Whether it waits, at kernel's time `now_s`."""
        if now_s < self.still_until_s:
            self.held.append(event)
            return True
        return False

    def read(self, now_s: float) -> list[ev.Event]:
        """What has waited, as read at `now_s` of the machine."""
        held, self.held = self.held, []
        return [replace(event, now_s=now_s) for event in held]

    def is_set(self, due_s: float, now_s: float) -> bool:
        """A timer rings by then. One that the clock has leapt over does not: the world's own time has not come."""
        return self.timer_s is not None and now_s - LEAPT_S < self.timer_s <= due_s
