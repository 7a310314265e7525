"""However many incidents a job has at a time: each second in which its training stood still is in one at most."""

from collections import defaultdict
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.changes.due.course import Mark
from controlplane.changes.due.stalls import Moved, Span, Stop, owner, stall_of

STOOD_S = st.sampled_from([0.0, 0.0, 0.5, 1.25, 30.0])


@dataclass
class Story:
    """A job's life as it went, told twice: as marks and rows, and as a ledger that was kept while it went."""

    spans: dict[str, Span] = field(default_factory=dict)
    moved: list[Moved] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    opened_in: dict[str, int] = field(default_factory=dict)
    movers: list[str | None] = field(default_factory=list)
    own_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    others_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    job_s: float = 0.0
    attempt: int = 1
    epoch: int = 1
    commit: tuple[int, int, int] = (0, -1, 0)

    def mark(self) -> Mark:
        of_attempt, step, _ = self.commit
        return Mark(of_attempt=of_attempt, step=step, attempt=self.attempt, epoch=self.epoch)

    def begin(self) -> None:
        name = f"inc_{len(self.spans):03d}"
        self.spans[name] = Span(incident=name, began=self.mark(), ended=self.mark())
        self.open.append(name)
        self.opened_in[name] = self.attempt

    def end(self, which: int) -> None:
        if self.open:
            name = self.open.pop(which % len(self.open))
            self.spans[name] = Span(incident=name, began=self.spans[name].began, ended=self.mark())

    def move(self, which: int | None, *, restart: bool = False) -> None:
        """Of an incident (None: of none), by a decision that makes a view or another attempt."""
        of = self.open[which % len(self.open)] if which is not None and self.open else None
        self.epoch += 1
        self.attempt += restart
        self.moved.append(Moved(epoch=self.epoch, incident=of))
        self.movers.append(of)

    def step(self, stood_s: float, gap_s: float) -> None:
        """The next step is committed; of a new attempt after `gap_s`, from some steps back."""
        of_attempt, last, since = self.commit
        fresh, number = of_attempt != self.attempt, last + 1
        if fresh and of_attempt:
            number = max(0, last - 3)
            self.stop(Stop(attempt=self.attempt, step=number, epoch=self.epoch, since_epoch=since, stood_s=gap_s,
                           between=True))  # fmt: skip
        self.stop(Stop(attempt=self.attempt, step=number, epoch=self.epoch, since_epoch=since, stood_s=stood_s))
        self.commit, self.movers = (self.attempt, number, self.epoch), []

    def stop(self, stop: Stop) -> None:
        """The ledger: who is open at this very moment, and who was the first to move since the last commit."""
        self.stops.append(stop)
        self.job_s += stop.stood_s
        there = [name for name in self.open if not stop.between or self.opened_in[name] < stop.attempt]
        of = next((name for name in (self.movers or there) if name in there), None)
        for name in there:
            if name == of:
                self.own_s[name] += stop.stood_s
            elif of is not None:
                self.others_s[name] += stop.stood_s


@st.composite
def stories(draw: st.DrawFn) -> Story:
    story, some = Story(), st.integers(0, 5)
    for _ in range(draw(st.integers(1, 40))):
        match draw(st.sampled_from(["begin", "end", "move", "move of none", "restart", "step", "step", "step"])):
            case "begin":
                story.begin()
            case "end":
                story.end(draw(some))
            case "move":
                story.move(draw(some))
            case "move of none":
                story.move(None)
            case "restart":
                story.move(draw(some), restart=True)
            case _:
                story.step(draw(STOOD_S), draw(STOOD_S))
    while story.open:
        story.end(0)
    return story


@given(stories())
@settings(max_examples=300, deadline=None)
def test_what_incidents_carry_is_what_a_ledger_kept_while_it_happened(story: Story) -> None:
    spans = list(story.spans.values())
    found = {name: stall_of(name, story.stops, spans, story.moved) for name in story.spans}
    for name, stall in found.items():
        assert stall.own_s == pytest.approx(story.own_s[name]), name
        assert stall.others_s == pytest.approx(story.others_s[name]), name
        assert stall.own_s + stall.others_s <= sum(s.stood_s for s in story.stops if story.spans[name].has(s)) + 1e-9
    assert sum(stall.own_s for stall in found.values()) <= story.job_s + 1e-9, "no second twice"


@given(stories())
@settings(max_examples=150, deadline=None)
def test_a_stop_without_a_change_of_members_belongs_to_somebody_where_anybody_is_open(story: Story) -> None:
    spans = list(story.spans.values())
    for stop in story.stops:
        moved = [each for each in story.moved if stop.since_epoch < each.epoch <= stop.epoch]
        if not moved:
            assert (owner(stop, spans, story.moved) is None) == (not any(span.has(stop) for span in spans))
