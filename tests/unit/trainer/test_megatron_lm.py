"""Hooks around a module that calls its own functions as `megatron.training.training` does.

It stands for where Megatron-LM's `pretrain` calls what and how it ends;
`tests/integration/agents/test_hooks.py` runs the real one where its source tree is at hand.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace as Box
from typing import Any

import pytest

from controlplane.protocol.launch import Resume
from controlplane.protocol.rank import CheckpointReport, RankProgress, SaveNow, StepReport, StopTraining, TrainingDone
from controlplane.protocol.states import Section
from tests.unit.trainer.agent import FakeAgent
from trainer.checkpoint.manifest import Manifest, verify, write_marker
from trainer.hooks.megatron_lm import Hooked
from trainer.hooks.run import Run
from trainer.hooks.tracker import NAME


class Training:
    """The module: `pretrain` trains, saves what no interval has, evaluates and returns."""

    def __init__(
        self, save: Path | None, *, steps: int, save_interval: int | None = None, evaluations: int = 0
    ) -> None:
        self.args = Box(
            save=str(save) if save else None,
            save_interval=save_interval,
            curr_iteration=0,
            micro_batch_size=2,
            data_parallel_size=2,
            seq_length=16,
            steps=steps,
        )
        self.evaluations = evaluations
        self.micro_batches = 2
        self.at: Callable[[int], None] = lambda step: None
        self.exit_handler_saw = False
        self.refused_at = -1
        self.saved: list[int] = []

    def get_args(self) -> Any:
        return self.args

    def get_num_microbatches(self) -> int:
        return self.micro_batches

    def train_step(self, *_given: Any, iteration: int | None = None) -> tuple[Any, ...]:
        self.at(self.args.curr_iteration)
        if self.refused_at == self.args.curr_iteration:
            return {}, True, True, True, 16, None, None, None
        return {"lm loss": 5.0 - self.args.curr_iteration}, 0, False, False, 0, 1.5, 0, None

    def evaluate(self, forward_step: Callable[[str, str], str], data: str, model: str, verbose: bool = False) -> None:
        for _ in range(self.evaluations):
            assert forward_step(data, model) == "data of the model"

    def save_checkpoint(self, iteration: int, *_given: Any, **_named: Any) -> None:
        self.saved.append(iteration)
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
        if self.args.save and self.args.save_interval and iteration % self.args.save_interval == 0:
            self.save_checkpoint_and_time(iteration, model, optimizer, scheduler)
        return False

    def pretrain(self) -> None:
        iteration = 0
        while iteration < self.args.steps:
            self.args.curr_iteration = iteration
            *_, should_checkpoint, should_exit, exit_code, _, _, _ = self.train_step(
                "forward", "data", iteration=iteration
            )
            if should_checkpoint:
                self.save_checkpoint_and_time(iteration, "model", "optimizer", "scheduler")
            if should_exit:
                sys.exit(exit_code)
            iteration += 1
            if self.checkpoint_and_decide_exit("model", "optimizer", "scheduler", iteration, 0.0, {}, "data"):
                sys.exit(0)
        if self.args.save and self.args.save_interval and iteration % self.args.save_interval:
            self.save_checkpoint(iteration)
        self.evaluate(lambda data, model: f"{data} of the {model}", "data", "model", verbose=True)


def saves(agent: FakeAgent) -> list[tuple[str, int, str]]:
    return [(said.state, said.step, said.kind) for said in agent.of(CheckpointReport)]


def hear(agent: FakeAgent, run: Run, order: SaveNow | StopTraining) -> None:
    agent.tell(order)
    there = run._control.mailbox.save if isinstance(order, SaveNow) else run._control.mailbox.stop
    while there() is None:
        run._control.mailbox.wait(1.0)


def test_steps_saves_and_the_end_are_told(agent: FakeAgent, start: Callable[..., Run], tmp_path: Path) -> None:
    training = Training(tmp_path, steps=3, save_interval=2)
    training.at = lambda step: setattr(training, "micro_batches", 3) if step == 2 else None
    with Hooked(training, run=start()):
        training.pretrain()
    agent.until(lambda: agent.of(TrainingDone))
    assert [(said.step, said.loss, said.grad_norm, said.tokens) for said in agent.of(StepReport)] == [
        (0, 5.0, 1.5, 128),
        (1, 4.0, 1.5, 128),
        (2, 3.0, 1.5, 192),
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


def test_an_order_at_an_intervals_save_is_answered_by_that_one(
    agent: FakeAgent, start: Callable[..., Run], tmp_path: Path
) -> None:
    run, training = start(), Training(tmp_path, steps=4, save_interval=2)
    training.at = lambda step: hear(agent, run, SaveNow("cmd_1", "emergency", "ECC")) if step == 1 else None
    with Hooked(training, run=run):
        training.pretrain()
    agent.until(lambda: agent.of(TrainingDone))
    assert training.saved == [2, 4]
    complete = [(said.step, said.command_id) for said in agent.of(CheckpointReport) if said.state == "complete"]
    assert complete == [(2, "cmd_1"), (4, "")]


def test_each_step_of_an_evaluation_is_a_sign_of_life(
    start: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, renewed = start(), []
    monkeypatch.setattr(run._control.progress, "renew", lambda: renewed.append(1))
    with Hooked(training := Training(tmp_path, steps=1, evaluations=5), run=run):
        training.pretrain()
    assert len(renewed) == 5


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


def test_an_order_without_a_place_for_saves_is_told_in_the_log(
    agent: FakeAgent, start: Callable[..., Run], capfd: pytest.CaptureFixture[str]
) -> None:
    run, training = start(), Training(None, steps=2)
    training.at = lambda step: hear(agent, run, SaveNow("cmd_1", "emergency", "ECC")) if step == 0 else None
    with Hooked(training, run=run):
        training.pretrain()
    assert capfd.readouterr().err.count("nothing is saved on order: set --save") == 1


def test_a_refused_step_is_not_committed_and_the_program_ends_when_its_save_is_told(
    agent: FakeAgent, start: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(path: Path, manifest: Manifest) -> None:
        time.sleep(0.3)
        write_marker(path, manifest)

    monkeypatch.setattr("trainer.hooks.saves.write_marker", slowly)
    training = Training(tmp_path, steps=9)
    training.refused_at = 2
    with pytest.raises(SystemExit) as left, Hooked(training, run=start()):
        training.pretrain()
    assert left.value.code == 16
    assert verify(tmp_path / "iter_0000002").ok
    agent.until(lambda: saves(agent) == [("writing", 2, "scheduled"), ("complete", 2, "scheduled")])
    assert [said.step for said in agent.of(StepReport)] == [0, 1]
    assert not agent.of(TrainingDone)


def test_a_life_goes_on_from_the_checkpoint_it_was_given(agent: FakeAgent, start: Callable[..., Run]) -> None:
    resumed = start(resume=Resume("/shared/run1/iter_0000120", 120))
    with Hooked(Training(None, steps=0), run=resumed) as holdfast:
        assert holdfast.save_arguments() == ["--save", str(holdfast.run.checkpoint_dir)]
        assert holdfast.resume_arguments() == ["--load", "/shared/run1", "--ckpt-step", "120"]


def test_a_first_life_loads_nothing(start: Callable[..., Run]) -> None:
    with Hooked(Training(None, steps=0), run=start()) as holdfast:
        assert holdfast.resume_arguments() == []


@pytest.mark.parametrize(("resume", "code"), [(Resume("/shared/run1/iter_0000120", 120), 74), (None, None)])
def test_an_exit_before_the_first_step_is_a_failed_load_where_there_was_one_to_load(
    agent: FakeAgent, start: Callable[..., Run], resume: Resume | None, code: int | None
) -> None:
    with pytest.raises(SystemExit) as left, Hooked(Training(None, steps=9), run=start(resume=resume)):
        sys.exit()
    assert left.value.code == code
    assert not agent.of(TrainingDone)


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
