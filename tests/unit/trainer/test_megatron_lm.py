"""Hooks around a module that calls its own functions as `megatron.training.training` does.

Megatron-LM's package is not on the index; this stands for where its `train` calls what.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace as Box
from typing import Any

import pytest

from controlplane.protocol.rank import CheckpointReport, RankProgress, SaveNow, StepReport, StopTraining, TrainingDone
from controlplane.protocol.states import Section
from tests.unit.trainer.agent import FakeAgent
from trainer.hooks.megatron_lm import Hooked
from trainer.hooks.run import Run
from trainer.hooks.tracker import NAME


class Training:
    """The module: `pretrain` trains, saves what no interval has, and returns."""

    def __init__(self, save: Path | None, *, steps: int, save_interval: int = 0) -> None:
        self.args = Box(
            save=str(save) if save else None, curr_iteration=0, global_batch_size=8, seq_length=16, steps=steps
        )
        self.save_interval = save_interval
        self.at: Callable[[int], None] = lambda step: None
        self.exit_handler_saw = False

    def get_args(self) -> Any:
        return self.args

    def train_step(self, *_given: Any, iteration: int | None = None) -> tuple[Any, ...]:
        self.at(self.args.curr_iteration)
        return {"lm loss": 5.0 - self.args.curr_iteration}, 0, False, False, 0, 1.5, 0, None

    def save_checkpoint(self, iteration: int, *_given: Any, **_named: Any) -> None:
        folder = Path(self.args.save)
        (folder / f"iter_{iteration:07d}").mkdir(parents=True, exist_ok=True)
        (folder / f"iter_{iteration:07d}" / "__0_0.distcp").write_bytes(b"x")
        (folder / NAME).write_text(str(iteration))

    def save_checkpoint_and_time(self, iteration: int, *given: Any, train_data_iterator: Any = None) -> None:
        self.save_checkpoint(iteration, *given, train_data_iterator=train_data_iterator)

    def checkpoint_and_decide_exit(
        self, model: Any, optimizer: Any, scheduler: Any, iteration: int, *rest: Any
    ) -> bool:
        if self.exit_handler_saw:
            self.save_checkpoint_and_time(iteration, model, optimizer, scheduler)
            return True
        if self.save_interval and iteration % self.save_interval == 0:
            self.save_checkpoint_and_time(iteration, model, optimizer, scheduler)
        return False

    def pretrain(self) -> None:
        iteration = 0
        while iteration < self.args.steps:
            self.args.curr_iteration = iteration
            self.train_step("forward", "data", iteration=iteration)
            iteration += 1
            if self.checkpoint_and_decide_exit("model", "optimizer", "scheduler", iteration, 0.0, {}, "data"):
                sys.exit(0)
        if self.args.save and self.save_interval and iteration % self.save_interval:
            self.save_checkpoint(iteration)


def saves(agent: FakeAgent) -> list[tuple[str, int, str]]:
    return [(said.state, said.step, said.kind) for said in agent.of(CheckpointReport)]


def hear(agent: FakeAgent, run: Run, order: SaveNow | StopTraining) -> None:
    agent.tell(order)
    there = run._control.mailbox.save if isinstance(order, SaveNow) else run._control.mailbox.stop
    while there() is None:
        run._control.mailbox.wait(1.0)


def test_steps_saves_and_the_end_are_told(agent: FakeAgent, start: Callable[..., Run], tmp_path: Path) -> None:
    training = Training(tmp_path, steps=3, save_interval=2)
    with Hooked(training, run=start()):
        training.pretrain()
    agent.until(lambda: agent.of(TrainingDone))
    assert [(said.step, said.loss, said.grad_norm, said.tokens) for said in agent.of(StepReport)] == [
        (0, 5.0, 1.5, 128),
        (1, 4.0, 1.5, 128),
        (2, 3.0, 1.5, 128),
    ]
    complete = [("complete", 2, "scheduled"), ("complete", 3, "scheduled")]
    agent.until(lambda: [said for said in saves(agent) if said[0] == "complete"] == complete)


def test_a_save_is_in_its_section(start: Callable[..., Run], tmp_path: Path) -> None:
    run, seen = start(), []
    training = Training(tmp_path, steps=2, save_interval=2)
    own = training.save_checkpoint
    training.save_checkpoint = lambda *given, **named: (
        seen.append(run._control.progress.report().section),
        own(*given, **named),
    )
    with Hooked(training, run=run):
        training.pretrain()
    assert seen == [Section.CHECKPOINTING]


def test_an_order_to_save_is_carried_out_behind_the_step(
    agent: FakeAgent, start: Callable[..., Run], tmp_path: Path
) -> None:
    run, training = start(), Training(tmp_path, steps=3)
    training.at = lambda step: hear(agent, run, SaveNow("cmd_1", "emergency", "ECC")) if step == 1 else None
    with Hooked(training, run=run):
        training.pretrain()
    agent.until(lambda: saves(agent) == [("writing", 2, "emergency"), ("complete", 2, "emergency")])
    assert agent.of(CheckpointReport)[1].command_id == "cmd_1"


@pytest.mark.parametrize("by", ["signal", "socket", "exit handler"])
def test_a_stop_saves_and_leaves(agent: FakeAgent, start: Callable[..., Run], tmp_path: Path, by: str) -> None:
    run, training = start(), Training(tmp_path, steps=9)

    def stop(step: int) -> None:
        if step == 1 and by == "socket":
            hear(agent, run, StopTraining(save=True, reason="preempted"))
        elif step == 1 and by == "signal":
            os.kill(os.getpid(), signal.SIGTERM)
        training.exit_handler_saw = step == 1 and by == "exit handler"

    training.at = stop
    with pytest.raises(SystemExit) as left, Hooked(training, run=run):
        training.pretrain()
    assert left.value.code == 15
    agent.until(lambda: saves(agent) == [("writing", 2, "preemption"), ("complete", 2, "preemption")])
    assert not agent.of(TrainingDone)


def test_without_a_place_for_saves_it_leaves_and_says_so(
    agent: FakeAgent, start: Callable[..., Run], tmp_path: Path
) -> None:
    training = Training(None, steps=9)
    training.at = lambda step: os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(SystemExit) as left, Hooked(training, run=start()):
        training.pretrain()
    assert left.value.code == 14


def test_the_module_is_its_own_again_afterwards(start: Callable[..., Run], tmp_path: Path) -> None:
    training = Training(tmp_path, steps=1)
    before = training.train_step
    with Hooked(training, run=start()):
        assert training.train_step != before
    assert training.train_step == before


def test_setup_lasts_until_the_first_step(agent: FakeAgent, start: Callable[..., Run], tmp_path: Path) -> None:
    run, training = start(), Training(tmp_path, steps=1)
    with Hooked(training, run=run):
        agent.until(lambda: agent.of(RankProgress))
        assert run._control.progress.report().section is Section.SETUP
        training.pretrain()
        assert run._control.progress.report().section is Section.OUT_OF_SECTION
