"""The callback under a program that goes the way of Megatron-Bridge 0.3.1's `pretrain`.

Bridge needs CUDA to install; this stands for the order of its events, saves and exits, and
for the fields of its context. `tests/integration/agents/test_hooks.py` has the real one.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace as Box
from typing import Any

import pytest

from controlplane.protocol.rank import CheckpointReport, RankProgress, SaveNow, StepReport, StopTraining, TrainingDone
from controlplane.protocol.states import Section
from tests.unit.trainer.agent import FakeAgent
from trainer.hooks.bridge import HoldfastCallback, terminate_self
from trainer.hooks.run import Run
from trainer.hooks.tracker import NAME

EVENTS = (
    "on_train_start", "on_train_step_start", "on_train_step_end", "on_train_end",
    "on_eval_start", "on_eval_step_start", "on_eval_step_end", "on_eval_end",
    "on_test_start", "on_test_step_start", "on_test_step_end", "on_test_end",
)  # fmt: skip


@dataclass
class Context:
    """What an event is given: nothing more, so that a field Bridge has not fails the test."""

    state: Any
    model: list[Any]
    user_state: dict[str, Any] = field(default_factory=dict)
    optimizer: Any = None
    scheduler: Any = None
    loss_dict: dict[str, float] | None = None
    grad_norm: float | None = None
    skipped_iter: bool | None = None
    total_loss_dict: dict[str, float] | None = None


class ExitHandler:
    """As Bridge's: made with the configuration, and in 0.3.1 installed by nobody."""

    def __init__(self) -> None:
        self.seen = False

    def __enter__(self) -> "ExitHandler":
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "seen", True))
        return self


class Bridge:
    """`pretrain`: train, save once more, evaluate once more."""

    def __init__(
        self, callback: object, *, steps: int, save: Path | None = None, at: Callable[[int], None] = lambda step: None
    ) -> None:
        # As Bridge's manager does it: bound methods, by the name of the event.
        self.methods = {name: getattr(callback, name) for name in EVENTS if hasattr(callback, name)}
        assert all(hasattr(method, "__func__") for method in self.methods.values())
        self.steps, self.at, self.skipped, self.evaluations = steps, at, False, 0
        self.saved: list[int] = []
        train = Box(global_batch_size=8, exit_signal_handler=True, exit_signal=signal.SIGTERM)
        checkpoint = Box(save=str(save) if save else None, save_interval=None)
        cfg = Box(train=train, model=Box(seq_length=16), checkpoint=checkpoint)
        self.state = Box(train_state=Box(step=0), cfg=cfg, signal_handler=ExitHandler())

    @property
    def save_interval(self) -> int | None:
        return self.state.cfg.checkpoint.save_interval

    @property
    def step(self) -> int:
        return self.state.train_state.step

    def fire(self, event: str, **more: Any) -> None:
        if event in self.methods:
            self.methods[event](Context(self.state, [], **more))

    def pretrain(self) -> None:
        self.train()
        if self.state.cfg.checkpoint.save and self.save_interval:
            self.save()
        self.evaluate("eval")
        self.evaluate("test")

    def train(self) -> None:
        self.fire("on_train_start")
        while self.step < self.steps:
            self.at(self.step)
            self.fire("on_train_step_start")
            losses = {"lm loss": 5.0 - self.step}
            self.fire("on_train_step_end", loss_dict=losses, grad_norm=1.5, skipped_iter=self.skipped)
            self.state.train_state.step += 1
            if self.step == 2:
                self.evaluate("eval")
            if self.state.cfg.train.exit_signal_handler and self.state.signal_handler.seen:
                if self.state.cfg.checkpoint.save:
                    self.save()
                sys.exit(0)
            if self.save_interval and self.step % self.save_interval == 0:
                self.save()
        self.fire("on_train_end")

    def evaluate(self, kind: str) -> None:
        self.fire(f"on_{kind}_start")
        for _ in range(self.evaluations):
            self.fire(f"on_{kind}_step_start")
            self.fire(f"on_{kind}_step_end")
        self.fire(f"on_{kind}_end", total_loss_dict={})

    def save(self, _context: Any = None) -> None:
        self.saved.append(self.step)
        folder = Path(self.state.cfg.checkpoint.save)
        (folder / f"iter_{self.step:07d}").mkdir(parents=True, exist_ok=True)
        (folder / f"iter_{self.step:07d}" / "__0_0.distcp").write_bytes(os.urandom(8))
        (folder / NAME).write_text(str(self.step))


@pytest.fixture
def run(start: Callable[..., Run]) -> Iterator[Run]:
    before = signal.getsignal(signal.SIGTERM)
    yield start(signals=False)
    signal.signal(signal.SIGTERM, before)


def hear(agent: FakeAgent, run: Run, order: SaveNow | StopTraining) -> None:
    """The order has come as far as the mailbox."""
    agent.tell(order)
    there = run._control.mailbox.save if isinstance(order, SaveNow) else run._control.mailbox.stop
    while there() is None:
        run._control.mailbox.wait(1.0)


def terminate() -> None:
    """SIGTERM to this process, which is the tests' own."""
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL, "nobody installed the handler"
    os.kill(os.getpid(), signal.SIGTERM)


def until_said(agent: FakeAgent, *wanted: tuple[str, int, str]) -> None:
    agent.until(lambda: states(agent)[-len(wanted) :] == list(wanted))


def states(agent: FakeAgent) -> list[tuple[str, int, str]]:
    return [(said.state, said.step, said.kind) for said in agent.of(CheckpointReport)]


def test_steps_and_the_end_are_told(agent: FakeAgent, run: Run) -> None:
    with HoldfastCallback(run=run) as callback:
        agent.until(lambda: Section.SETUP in {said.section for said in agent.of(RankProgress)})
        Bridge(callback, steps=3).pretrain()
        assert not agent.of(TrainingDone), "Bridge still saves and evaluates after on_train_end"
    agent.until(lambda: agent.of(TrainingDone))
    assert [(said.step, said.loss, said.grad_norm, said.tokens) for said in agent.of(StepReport)] == [
        (0, 5.0, 1.5, 128),
        (1, 4.0, 1.5, 128),
        (2, 3.0, 1.5, 128),
    ]
    agent.until(lambda: agent.of(RankProgress)[-1].section is Section.OUT_OF_SECTION)


def test_each_evaluation_step_is_a_sign_of_getting_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    renewed: list[int] = []
    monkeypatch.setattr(run._control.progress, "renew", lambda: renewed.append(1))
    with HoldfastCallback(run=run) as callback:
        loop = Bridge(callback, steps=0)
        loop.evaluations = 5
        loop.pretrain()
    assert len(renewed) == 2 * (2 + 2 * 5)


def test_evaluation_without_training_ends_setup(run: Run) -> None:
    with HoldfastCallback(run=run) as callback:
        Bridge(callback, steps=0).evaluate("eval")
        assert run._control.progress.report().section is Section.OUT_OF_SECTION


def test_an_order_to_save_is_carried_out_at_the_boundary(agent: FakeAgent, run: Run, tmp_path: Path) -> None:
    with HoldfastCallback(run=run, save=lambda context: loop.save(context)) as callback:
        loop = Bridge(callback, steps=3, save=tmp_path / "checkpoints")
        loop.at = lambda step: hear(agent, run, SaveNow("cmd_1", "emergency", "ECC")) if step == 1 else None
        loop.pretrain()
    agent.until(lambda: agent.of(TrainingDone))
    until_said(agent, ("writing", 1, "emergency"), ("complete", 1, "emergency"))
    assert len(states(agent)) == 2
    assert agent.of(CheckpointReport)[1].command_id == "cmd_1"


@pytest.mark.parametrize("first", [0, 2])
def test_an_order_behind_an_intervals_save_is_answered_by_that_one(
    agent: FakeAgent, run: Run, tmp_path: Path, first: int
) -> None:
    """But not by one that an earlier life made."""
    with HoldfastCallback(run=run, save=lambda context: loop.save(context)) as callback:
        loop = Bridge(callback, steps=first + 3, save=tmp_path)
        loop.state.train_state.step, loop.state.cfg.checkpoint.save_interval = first, 2
        loop.at = lambda step: hear(agent, run, SaveNow("cmd_1", "emergency", "ECC")) if step == 2 else None
        loop.pretrain()
    agent.until(lambda: agent.of(TrainingDone))
    assert loop.saved == ([2, 3] if first == 0 else [2, 4, 5])
    agent.until(lambda: ("complete", 2, "emergency") in states(agent))


def test_saves_of_bridges_own_are_reported_without_an_event_and_never_twice(
    agent: FakeAgent, run: Run, tmp_path: Path
) -> None:
    """The last interval's save and the one behind the loop write one directory, the second
    while nobody may be reading its digests."""
    with HoldfastCallback(run=run) as callback:
        loop = Bridge(callback, steps=4, save=tmp_path)
        loop.state.cfg.checkpoint.save_interval = 2
        loop.pretrain()
        agent.until(lambda: ("complete", 2, "scheduled") in states(agent))
        assert not [state for state in states(agent) if state[1] == 4], "it may still be written again"
    until_said(agent, ("writing", 4, "scheduled"), ("complete", 4, "scheduled"))
    assert len(states(agent)) == 4
    assert [said.path for said in agent.of(CheckpointReport)][-1] == str(tmp_path / "iter_0000004")


def test_what_an_earlier_life_saved_is_no_news(agent: FakeAgent, run: Run, tmp_path: Path) -> None:
    with HoldfastCallback(run=run) as callback:
        loop = Bridge(callback, steps=2, save=tmp_path)
        loop.save()
        loop.pretrain()
    assert not states(agent)


def test_a_stop_on_the_socket_makes_bridge_save_and_leave(agent: FakeAgent, run: Run, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as left, HoldfastCallback(run=run) as callback:
        loop = Bridge(callback, steps=9, save=tmp_path)
        loop.at = lambda step: hear(agent, run, StopTraining(save=True, reason="preempted")) if step == 1 else None
        loop.pretrain()
    assert left.value.code == 15
    until_said(agent, ("writing", 2, "preemption"), ("complete", 2, "preemption"))
    assert not agent.of(TrainingDone), "it left; it did not finish"


def test_sigterm_that_bridge_sees_first_is_leaving_all_the_same(agent: FakeAgent, run: Run, tmp_path: Path) -> None:
    """Bridge exits with 0 before any boundary; and up to 0.3.1 it has not installed its handler."""
    with pytest.raises(SystemExit) as left, HoldfastCallback(run=run) as callback:
        loop = Bridge(callback, steps=9, save=tmp_path)
        loop.at = lambda step: terminate() if step == 1 else None
        loop.pretrain()
    assert left.value.code == 15
    until_said(agent, ("complete", 2, "preemption"))
    assert not agent.of(TrainingDone)


def test_leaving_without_a_save_says_so(run: Run) -> None:
    with pytest.raises(SystemExit) as left, HoldfastCallback(run=run) as callback:
        Bridge(callback, steps=9, at=lambda step: terminate()).pretrain()
    assert left.value.code == 14


@pytest.mark.parametrize("end", [SystemExit(16), RuntimeError("NCCL")], ids=str)
def test_other_ends_are_passed_on(agent: FakeAgent, run: Run, end: BaseException) -> None:
    with pytest.raises(type(end)) as seen, HoldfastCallback(run=run):
        raise end
    assert seen.value is end
    assert not agent.of(TrainingDone)


def test_without_the_exit_handler_a_stop_waits_and_says_why(
    run: Run, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with HoldfastCallback(run=run) as callback:
        loop = Bridge(callback, steps=1, save=tmp_path)
        loop.state.cfg.train.exit_signal_handler = False
        loop.pretrain()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        terminate_self(Context(loop.state, []))
    said = capfd.readouterr().err
    assert "SIGTERM will not save: set train.exit_signal_handler" in said and "a stop waits" in said


def test_a_callback_alone_asks_for_its_with(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    Bridge(HoldfastCallback(run=run), steps=1).pretrain()
    assert "not inside `with HoldfastCallback" in capfd.readouterr().err


def test_a_skipped_step_claims_no_loss(agent: FakeAgent, run: Run) -> None:
    with HoldfastCallback(run=run) as callback:
        loop = Bridge(callback, steps=1)
        loop.skipped = True
        loop.pretrain()
    agent.until(lambda: agent.of(StepReport))
    assert agent.of(StepReport)[0].loss is None


def test_without_an_agent_it_changes_nothing(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with HoldfastCallback(run=Run(None)) as callback:
        Bridge(callback, steps=3, save=tmp_path).pretrain()
    assert signal.getsignal(signal.SIGTERM) is before
    assert "holdfast" not in capfd.readouterr().err
