"""Hooks tell the agent where a program is, bring its orders, and never disturb the program."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from controlplane.protocol.launch import Resume
from controlplane.protocol.membership import Flush, Install, Member, MemberRole, View
from controlplane.protocol.rank import (
    CheckpointReport,
    InstallView,
    RankHello,
    RankProgress,
    SaveNow,
    SetView,
    StepReport,
    StopTraining,
    TrainingDone,
    ViewInstalled,
)
from controlplane.protocol.spec import Checkpoint
from controlplane.protocol.states import Phase, Section
from tests.unit.trainer.agent import REF, FakeAgent
from trainer import hooks
from trainer.checkpoint.manifest import verify
from trainer.config import hook_settings
from trainer.hooks.run import Run

Start = Callable[..., Run]


def borders(agent: FakeAgent) -> list[tuple[Section, Phase, int]]:
    return [(said.section, said.phase, said.step) for said in agent.of(RankProgress)]


def loop(run: Run, steps: int) -> None:
    for number in range(steps):
        with run.step(number) as said:
            said.report(loss=5.0 - number, tokens=128, grad_norm=1.0)


def test_sections_and_steps_are_told_as_they_pass(agent: FakeAgent, start: Start) -> None:
    run = start()
    agent.until(lambda: (Section.SETUP, Phase.BUILDING, 0) in borders(agent))
    with run.section("setup"):
        pass
    agent.until(lambda: (Section.OUT_OF_SECTION, Phase.IDLE, 0) in borders(agent))
    with run.step(0):
        agent.until(lambda: (Section.STEP, Phase.COMPUTE, 0) in borders(agent))
        with run.section("checkpointing"):
            agent.until(lambda: (Section.CHECKPOINTING, Phase.SAVING, 0) in borders(agent))
    agent.until(lambda: (Section.OUT_OF_SECTION, Phase.IDLE, 1) in borders(agent))
    assert isinstance(agent.said[0], RankHello)
    assert (agent.said[0].ref, agent.said[0].pid) == (REF, os.getpid())


def test_a_program_that_only_beats_leaves_setup_with_the_first_and_renews_its_age_with_each(
    agent: FakeAgent, start: Start
) -> None:
    run = start()
    run.beat()
    agent.until(lambda: (Section.OUT_OF_SECTION, Phase.IDLE, 0) in borders(agent))
    # Told again within the second of the reporter's own, with an age that began anew.
    agent.until(lambda: agent.of(RankProgress)[-1].phase_age_s > 0.3)
    run.beat()
    agent.until(lambda: agent.of(RankProgress)[-1].phase_age_s < 0.3)
    with run.section("step"):
        agent.until(lambda: agent.of(RankProgress)[-1].section is Section.STEP)
        run.beat()
        agent.until(lambda: agent.of(RankProgress)[-1].phase_age_s > 0.3)
        assert agent.of(RankProgress)[-1].section is Section.STEP


def test_a_finished_loop_is_reported_step_by_step_and_as_done(agent: FakeAgent, start: Start) -> None:
    run = start()
    loop(run, 3)
    assert run.finish() == 0
    agent.until(lambda: agent.of(TrainingDone))
    assert [(said.step, said.loss, said.tokens) for said in agent.of(StepReport)] == [
        (0, 5.0, 128),
        (1, 4.0, 128),
        (2, 3.0, 128),
    ]
    assert agent.of(TrainingDone) == [TrainingDone(3)]


def test_a_step_that_raised_is_not_committed(agent: FakeAgent, start: Start) -> None:
    run = start()
    with pytest.raises(ZeroDivisionError), run.step(0):
        _ = 1 / 0
    loop(run, 1)
    agent.until(lambda: agent.of(StepReport))
    assert len(agent.of(StepReport)) == 1


def test_an_order_to_save_is_wanted_once_and_its_checkpoint_can_be_trusted(
    agent: FakeAgent, start: Start, tmp_path: Path
) -> None:
    run = start()
    order = SaveNow("cmd_1", "emergency", "ECC")
    agent.tell(order)
    until(lambda: run.wanted().save)
    path = tmp_path / "step_3"
    with run.saving(path, step=3):
        path.mkdir()
        (path / "shard").write_bytes(b"x" * 100)
    agent.tell(order)
    agent.until(lambda: agent.of(CheckpointReport)[1:])
    writing, complete = agent.of(CheckpointReport)
    assert (writing.state, complete.state, complete.bytes) == ("writing", "complete", 100)
    assert (complete.command_id, complete.kind, complete.step) == ("cmd_1", "emergency", 3)
    assert verify(path).ok
    assert not run.wanted().save


def test_a_save_is_wanted_at_every_interval_of_the_job_without_any_order(
    agent: FakeAgent, start: Start, tmp_path: Path
) -> None:
    """`checkpoint.interval_steps` was accepted of such programs, and nothing was ever saved by it."""
    run = start(checkpoint=Checkpoint(interval_steps=3), resume=Resume(str(tmp_path), 4))
    saved = []
    for number in range(4, 18):
        with run.step(number):
            pass
        if run.wanted().save:
            saved.append(number + 1)
            (tmp_path / f"step_{number + 1}").mkdir()
            with run.saving(tmp_path / f"step_{number + 1}", step=number + 1):
                (tmp_path / f"step_{number + 1}" / "shard").write_bytes(b"x")
        if number == 11:  # A save of the program's own begins the interval anew.
            run.saved(tmp_path / "own", step=12)
    assert saved == [7, 10, 15, 18]
    assert {said.kind for said in agent.of(CheckpointReport)} <= {"scheduled"}


def test_the_interval_is_rank_0s_and_the_others_follow_by_agreement(agent: FakeAgent, start: Start) -> None:
    asked: list[list[int]] = []

    def agree(flags: object) -> list[int]:
        asked.append(list(flags))
        return [1, 0, 0]

    run = start(agree, rank=1, world_size=2, checkpoint=Checkpoint(interval_steps=1))
    loop(run, 2)
    assert run.wanted().save
    assert asked == [[0, 0, 0]]


def test_a_save_that_is_told_of_twice_is_one_checkpoint(agent: FakeAgent, start: Start, tmp_path: Path) -> None:
    run = start()
    (tmp_path / "once").mkdir()
    (tmp_path / "once" / "shard").write_bytes(b"x")
    run.saved(tmp_path / "once", step=1)
    run.saved(tmp_path / "once", step=1)
    run.finish()
    agent.until(lambda: agent.of(TrainingDone))
    assert [said.state for said in agent.of(CheckpointReport)].count("complete") == 1
    assert "failed" not in {said.state for said in agent.of(CheckpointReport)}


def test_a_save_from_before_an_order_is_not_its_answer(agent: FakeAgent, start: Start, tmp_path: Path) -> None:
    run = start()
    for step in (1, 3):
        (tmp_path / str(step)).mkdir()
        (tmp_path / str(step) / "shard").write_bytes(b"x")
    for step in range(3):
        with run.step(step):
            pass
    agent.tell(SaveNow("cmd_1", "emergency", "ECC"))
    until(lambda: run.wanted().save)
    run.saved(tmp_path / "1", step=1)
    run.saved(tmp_path / "3", step=3)
    run.finish()
    agent.until(lambda: agent.of(TrainingDone))
    complete = {said.step: said.command_id for said in agent.of(CheckpointReport) if said.state == "complete"}
    assert complete == {1: "", 3: "cmd_1"}


def test_a_save_that_failed_is_told_and_raises_for_the_program(agent: FakeAgent, start: Start, tmp_path: Path) -> None:
    run = start()
    with pytest.raises(OSError, match="full"), run.saving(tmp_path / "x", step=1):
        raise OSError("disk full")
    agent.until(lambda: [said.state for said in agent.of(CheckpointReport)] == ["writing", "failed"])
    assert "disk full" in agent.of(CheckpointReport)[1].error
    with run.saving(tmp_path / "never-written", step=2):
        pass
    agent.until(lambda: agent.of(CheckpointReport)[-1].state == "failed" and agent.of(CheckpointReport)[-1].step == 2)


def test_sigterm_means_save_and_leave(agent: FakeAgent, start: Start, tmp_path: Path) -> None:
    run = start()
    os.kill(os.getpid(), signal.SIGTERM)
    assert run.wanted() == hooks.Wanted(save=True, leave=True)
    (tmp_path / "last").mkdir()
    (tmp_path / "last" / "shard").write_bytes(b"x")
    with run.saving(tmp_path / "last", step=1):
        pass
    assert run.finish() == 15
    agent.until(lambda: [said.kind for said in agent.of(CheckpointReport)] == ["preemption"] * 2)
    assert not agent.of(TrainingDone)


def test_a_stop_without_a_save_is_left_unsaved(agent: FakeAgent, start: Start) -> None:
    run = start()
    agent.tell(StopTraining(save=False, reason="cancelled"))
    until(lambda: run.wanted().leave)
    assert run.wanted() == hooks.Wanted(save=False, leave=True)
    assert run.finish() == 14


def test_views_are_answered_without_the_loop(agent: FakeAgent, start: Start) -> None:
    run = start()
    view = View("job_1", 1, 2, (Member(0, 3, MemberRole.CONTRIBUTOR),))
    agent.tell(SetView(view))
    flush = agent.until(lambda: agent.of(Flush))
    assert (flush[0].epoch, flush[0].incarnation, flush[0].committed_step, flush[0].prepared) == (2, 3, 0, False)
    agent.tell(InstallView(Install("job_1", 1, 2, 0, (0,))))
    agent.until(lambda: agent.of(ViewInstalled))
    loop(run, 1)
    agent.until(lambda: agent.of(StepReport))
    assert agent.of(StepReport)[0].epoch == 2


def test_a_view_that_does_not_name_this_incarnation_is_not_answered(agent: FakeAgent, start: Start) -> None:
    start()
    agent.tell(SetView(View("job_1", 1, 2, (Member(0, 4, MemberRole.CONTRIBUTOR),))))
    agent.tell(SetView(View("job_1", 1, 3, (Member(0, 3, MemberRole.CONTRIBUTOR),))))
    assert [flush.epoch for flush in agent.until(lambda: agent.of(Flush))] == [3]


def test_ranks_agree_so_that_all_save_at_the_same_step(agent: FakeAgent, start: Start) -> None:
    asked: list[list[int]] = []

    def agree(flags: object) -> list[int]:
        asked.append(list(flags))
        return [1, 0, 0]

    run = start(agree, rank=1, world_size=2)
    agent.tell(SaveNow("cmd_1", "manual", ""))
    until(lambda: run._control.mailbox.save() is not None)
    assert run.wanted() == hooks.Wanted(save=True, leave=False)
    assert asked[-1] == [0, 0, 0], "rank 0's copy of the order counts"


def test_without_an_agreement_orders_wait(agent: FakeAgent, start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    run = start(lambda _flags: None, world_size=2)
    os.kill(os.getpid(), signal.SIGTERM)
    assert run.wanted() == hooks.Wanted()
    assert "cannot agree" in capfd.readouterr().err


def test_training_goes_on_without_its_agent_and_tells_it_later(agent: FakeAgent, start: Start) -> None:
    run = start()
    agent.until(lambda: agent.of(RankHello))
    agent.close()
    loop(run, 50)
    agent.open()
    agent.until(lambda: len({said.step for said in agent.of(StepReport)}) == 50)
    assert len(agent.of(RankHello)) == 2


def test_calls_from_many_threads_lose_nothing(agent: FakeAgent, start: Start, tmp_path: Path) -> None:
    run = start()
    for number in range(20):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / "shard").write_bytes(b"x")
    threads = [threading.Thread(target=run.saved, args=(tmp_path / f"{n}",), kwargs={"step": n}) for n in range(20)]
    for thread in threads:
        thread.start()
    loop(run, 20)
    for thread in threads:
        thread.join()
    run.finish()
    agent.until(lambda: agent.of(TrainingDone))
    complete = [said.step for said in agent.of(CheckpointReport) if said.state == "complete"]
    assert sorted(complete) == list(range(20))


def test_nothing_of_ours_raises_into_the_loop(
    agent: FakeAgent, start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    run = start()
    with run.step(0) as said:
        said.report(loss="not a number", tokens=None)
    with run.section("lunch"):
        pass
    said = capfd.readouterr().err
    assert "a report was lost: ValueError" in said or "a report was lost: TypeError" in said
    assert "'lunch' is none of setup, step" in said


def test_without_an_agent_nothing_happens() -> None:
    before = signal.getsignal(signal.SIGTERM)
    run = Run(None)
    with run.section("setup"):
        pass
    loop(run, 2)
    with run.saving("/nowhere", step=1):
        pass
    assert (run.wanted(), run.active, run.resume, run.checkpoint_path(1)) == (hooks.Wanted(), False, None, None)
    assert run.finish() == 0
    assert signal.getsignal(signal.SIGTERM) is before
    assert hook_settings({}) is None


@pytest.mark.parametrize("harm", ["HOLDFAST_REF", "HOLDFAST_CONFIG", "WORLD_SIZE"])
def test_a_malformed_environment_switches_the_hooks_off(agent: FakeAgent, harm: str) -> None:
    done = python("from trainer import hooks; print(hooks.start().active)", agent.environment() | {harm: "{"})
    assert done.stdout == "False\n"
    assert "hooks: off" in done.stderr


def test_an_absent_socket_neither_blocks_nor_raises(agent: FakeAgent) -> None:
    body = "from trainer import hooks; r = hooks.start(); s = r.step(0); s.__enter__(); s.__exit__(None, None, None)"
    done = python(f"{body}; print('trained')", agent.environment() | {"HOLDFAST_SOCKET": "/nowhere/agent.sock"})
    assert done.stdout == "trained\n"


def test_hooks_need_neither_torch_nor_megatron_nor_numpy() -> None:
    block = (
        "import sys\n"
        "class No:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        allowed = set(sys.stdlib_module_names) | {'msgspec', 'controlplane', 'trainer'}\n"
        "        if name.split('.')[0] not in allowed: raise ImportError(name)\n"
        "sys.meta_path.insert(0, No())\n"
    )
    done = python(block + "import trainer.hooks, trainer.hooks.bridge\nprint(trainer.hooks.start().active)", {})
    assert done.stdout == "False\n", done.stderr


def test_a_shielded_worker_outlives_the_preemption_signal() -> None:
    pid = os.fork()
    if pid == 0:
        os.environ["HOLDFAST_SOCKET"] = "/run/agent.sock"
        hooks.shield_worker(0)
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def python(body: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    argv = [sys.executable, "-c", body]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, env=clean | environment, check=False)


def until(holds: Callable[[], object]) -> None:
    """Orders cross a thread; this polls, with a bound."""
    deadline_s = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
