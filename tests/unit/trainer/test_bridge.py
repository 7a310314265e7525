"""The callback under a loop that fires events as Megatron-Bridge's `train` documents.

Bridge itself needs CUDA to install; this loop stands for the order of its calls and what
its contexts hold, no more.
"""

import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace as Box
from typing import Any

import pytest

from controlplane.protocol.rank import CheckpointReport, RankProgress, SaveNow, StepReport, StopTraining, TrainingDone
from controlplane.protocol.states import Section
from tests.unit.trainer.agent import FakeAgent
from trainer.hooks.bridge import HoldfastCallback, terminate_self
from trainer.hooks.run import Run

EVENTS = (
    "on_data_init_start", "on_train_start", "on_train_step_start", "on_train_step_end", "on_train_end",
    "on_eval_start", "on_eval_step_start", "on_eval_step_end", "on_eval_end",
    "on_test_start", "on_test_step_start", "on_test_step_end", "on_test_end",
    "on_checkpoint_save", "on_checkpoint_load",
)  # fmt: skip


class Loop:
    """`train` of Bridge: step start, step, step end, count, evaluate, save, exit on a signal."""

    def __init__(self, callback: object, *, steps: int, at: Callable[[int], None] = lambda step: None) -> None:
        # As Bridge's manager does it: methods, by the name of the event.
        self.methods = {name: getattr(callback, name) for name in EVENTS if hasattr(callback, name)}
        assert all(hasattr(method, "__func__") for method in self.methods.values())
        self.steps, self.at, self.exit = steps, at, False
        cfg = Box(train=Box(global_batch_size=8), model=Box(seq_length=16))
        self.state = Box(train_state=Box(step=0), cfg=cfg)

    def fire(self, event: str, **more: Any) -> None:
        context = Box(state=self.state, model=[], user_state={}, loss_dict=None, grad_norm=None, skipped_iter=None)
        context.__dict__.update(more)
        if event in self.methods:
            self.methods[event](context)

    def run(self) -> None:
        self.fire("on_data_init_start")
        self.fire("on_train_start")
        while self.state.train_state.step < self.steps and not self.exit:
            self.at(self.state.train_state.step)
            self.fire("on_train_step_start")
            losses = {"lm loss": 5.0 - self.state.train_state.step}
            self.fire("on_train_step_end", loss_dict=losses, grad_norm=1.5, skipped_iter=False)
            self.state.train_state.step += 1
            if self.state.train_state.step == 2:
                self.fire("on_eval_start")
                self.fire("on_eval_step_start")
                self.fire("on_eval_end", total_loss_dict={})
        if not self.exit:
            self.fire("on_train_end")


@pytest.fixture
def run(start: Callable[..., Run]) -> Run:
    return start(signals=False)


def test_steps_evaluation_and_the_end_are_told(agent: FakeAgent, run: Run) -> None:
    loop = Loop(HoldfastCallback(run=run), steps=3)
    agent.until(lambda: Section.SETUP in {said.section for said in agent.of(RankProgress)})
    loop.run()
    agent.until(lambda: agent.of(TrainingDone))
    assert [(said.step, said.loss, said.grad_norm, said.tokens) for said in agent.of(StepReport)] == [
        (0, 5.0, 1.5, 128),
        (1, 4.0, 1.5, 128),
        (2, 3.0, 1.5, 128),
    ]
    agent.until(lambda: agent.of(RankProgress)[-1].section is Section.OUT_OF_SECTION)


def test_an_order_to_save_is_carried_out_at_the_boundary(agent: FakeAgent, run: Run, tmp_path: Path) -> None:
    saved: list[int] = []

    def save(context: Any) -> Path:
        saved.append(context.state.train_state.step)
        (tmp_path / "now").mkdir()
        (tmp_path / "now" / "shard").write_bytes(b"x")
        loop.fire("on_checkpoint_save", checkpoint_name=str(tmp_path / "now"), checkpoint_type=None)
        return tmp_path / "now"

    def order(step: int) -> None:
        if step == 1:
            agent.tell(SaveNow("cmd_1", "emergency", "ECC"))
            while run._control.mailbox.save() is None:
                run._control.mailbox.wait(1.0)

    loop = Loop(HoldfastCallback(run=run, save=save), steps=3, at=order)
    loop.run()
    agent.until(lambda: agent.of(TrainingDone))
    assert [said.state for said in agent.of(CheckpointReport)] == ["writing", "complete"]
    assert saved == [1], "one step is committed, the next has not begun"
    assert (agent.of(CheckpointReport)[1].command_id, agent.of(CheckpointReport)[1].step) == ("cmd_1", 1)


def test_a_save_of_bridges_own_is_reported(agent: FakeAgent, run: Run, tmp_path: Path) -> None:
    (tmp_path / "iter_0000002").mkdir()
    (tmp_path / "iter_0000002" / "shard").write_bytes(b"x")
    loop = Loop(HoldfastCallback(run=run), steps=2)
    loop.run()
    loop.fire("on_checkpoint_save", checkpoint_name=str(tmp_path / "iter_0000002"), checkpoint_type=None)
    agent.until(lambda: agent.of(CheckpointReport)[1:])
    assert (agent.of(CheckpointReport)[1].state, agent.of(CheckpointReport)[1].step) == ("complete", 2)


def test_a_stop_is_handed_to_bridges_exit_handler_once(agent: FakeAgent, run: Run) -> None:
    left: list[int] = []
    loop = Loop(HoldfastCallback(run=run, leave=lambda context: left.append(context.state.train_state.step)), steps=4)

    def stop(step: int) -> None:
        if step == 1:
            agent.tell(StopTraining(save=True, reason="preempted"))
            while run._control.mailbox.stop() is None:
                run._control.mailbox.wait(1.0)
        loop.exit = step == 3

    loop.at = stop
    loop.run()
    assert left == [1]
    run.finish()
    assert not agent.of(TrainingDone), "it left; it did not finish"


def test_a_stop_without_an_exit_handler_does_not_kill_the_program(capfd: pytest.CaptureFixture[str]) -> None:
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    terminate_self(None)
    assert "exit_signal_handler" in capfd.readouterr().err


def test_a_local_checkpoint_is_not_reported(agent: FakeAgent, run: Run, tmp_path: Path) -> None:
    loop = Loop(HoldfastCallback(run=run), steps=1)
    loop.fire("on_checkpoint_save", checkpoint_name=str(tmp_path), checkpoint_type="CheckpointType.LOCAL")
    loop.run()
    agent.until(lambda: agent.of(TrainingDone))
    assert not agent.of(CheckpointReport)


def test_a_skipped_step_claims_no_loss(agent: FakeAgent, run: Run) -> None:
    loop = Loop(HoldfastCallback(run=run), steps=0)
    loop.fire("on_train_start")
    loop.fire("on_train_step_start")
    loop.fire("on_train_step_end", loss_dict={}, skipped_iter=True)
    agent.until(lambda: agent.of(StepReport))
    assert agent.of(StepReport)[0].loss is None
