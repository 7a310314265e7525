"""What a job's time was spent on does not follow the server's clock, however often and late it is known that it was
set: as in the same story by a clock that nobody touched."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.policy.pace import Commit, Pace, count, stands_still
from controlplane.policy.spent import KINDS, Spent, begin
from controlplane.policy.spent import count as count_spent
from controlplane.policy.stepped import ClockSet, move

BEGAN_S = 1_000_000.0
CALM = 30
SEEN_WITHIN_S = 2.0


class Told:
    """Commits by a clock that is set now and then, and what is kept of them. Steps of the clock wait in `unknown`
    until somebody has moved what is kept."""

    def __init__(self) -> None:
        self.pace, self.spent = Pace(), begin(BEGAN_S)
        self.true_s, self.ahead_s, self.step, self.epoch = BEGAN_S, 0.0, 0, 1
        self.unknown: list[tuple[float, float]] = []

    def commit(self, gap_s: float, *, view: bool = False) -> None:
        self.true_s += gap_s
        self.epoch += view
        said = Commit(
            attempt=1, step=self.step, epoch=self.epoch, at_s=self.true_s + self.ahead_s, gpus=6, kept=self.step + 1
        )
        count(self.pace, said)
        count_spent(self.spent, said, self.pace)
        self.step += 1

    def set_clock(self, step_s: float, *, after_s: float = 0.3) -> None:
        self.true_s += after_s
        self.ahead_s += step_s
        self.unknown.append((step_s, self.true_s + self.ahead_s))

    def know(self) -> None:
        """The first of them. `now_s` is the clock's own time, of which later steps are part."""
        step_s, set_s = self.unknown.pop(0)
        now_s = self.true_s + self.ahead_s
        move(self.pace, self.spent, ClockSet(step_s=step_s, since_s=set_s - SEEN_WITHIN_S, now_s=now_s))


STEPS = st.one_of(st.floats(300.0, 90_000.0), st.floats(-90_000.0, -300.0))
STORY = st.lists(
    st.one_of(
        st.tuples(st.just("steps"), st.integers(1, 6)),
        st.tuples(st.just("stall"), st.floats(4.0, 60.0)),
        st.tuples(st.just("view"), st.floats(1.0, 60.0)),
        st.tuples(st.just("set"), STEPS, st.integers(0, 8)),
    ),
    min_size=1,
    max_size=12,
)


def tell(story: list[tuple], *, clock: bool) -> Told:
    """Each step of the clock is known so many commits later, or before the next step."""
    told, left = Told(), 0
    for _ in range(CALM):
        told.commit(1.0)

    def commit(gap_s: float, *, view: bool = False) -> None:
        nonlocal left
        told.commit(gap_s, view=view)
        left -= 1
        if told.unknown and left <= 0:
            told.know()

    for kind, *args in story:
        if kind == "steps":
            for _ in range(args[0]):
                commit(1.0)
        elif kind == "stall":
            commit(args[0])
        elif kind == "view":
            commit(args[0], view=True)
        else:
            while told.unknown:
                told.know()
            told.true_s += 0.0 if clock else 0.3
            if clock:
                told.set_clock(args[0])
                left = args[1]
                if left == 0:
                    told.know()
    while told.unknown:
        told.know()
    return told


def shown(spent: Spent) -> dict[str, float]:
    return {kind: spent.seconds.get(kind, 0.0) for kind in KINDS} | {"wall": spent.at_s - spent.began_s}


@given(STORY)
def test_the_clock_leaves_no_trace_in_what_time_was_spent_on(story: list[tuple]) -> None:
    told, quiet = tell(story, clock=True), tell(story, clock=False)
    assert shown(told.spent) == pytest.approx(shown(quiet.spent), abs=1e-3)
    assert [told.spent.steps.get(kind, 0) for kind in KINDS] == [quiet.spent.steps.get(kind, 0) for kind in KINDS]
    # Since the newest commit no more than the beginnings of the steps of the clock have passed.
    assert told.spent.at_s == told.pace.at_s == pytest.approx(told.true_s + told.ahead_s, abs=12 * 0.3 + 0.1)
    assert told.pace.marks[0].kept == 1
    assert told.pace.marks[0].at_s == pytest.approx(BEGAN_S + 1.0 + told.ahead_s)
    assert max(told.pace.recent) <= 61.0


@pytest.mark.parametrize("step_s", [3600.0, -3600.0], ids=["ahead", "back"])
@pytest.mark.parametrize("late", [0, 5], ids=["known at once", "known after five commits"])
def test_speed_and_hourly_marks_go_on_as_before(step_s: float, late: int) -> None:
    told = Told()
    for _ in range(CALM):
        told.commit(1.0)
    told.set_clock(step_s)
    for _ in range(late):
        told.commit(1.0)
    told.know()
    for _ in range(7):
        told.commit(1.0)
    assert stands_still(told.pace, open_s=10.0), "nothing came for ten steps"
    for _ in range(3600):
        told.commit(1.0)
    # What looked like a pause of an hour until the step of the clock was known has one where it began.
    pauses = 1 if late and step_s > 0 else 0
    assert len(told.pace.marks) == 2 + pauses, "one at its first step, one an hour later"
    assert msgspec.to_builtins(told.pace)["best_s"] == pytest.approx(1.0)
