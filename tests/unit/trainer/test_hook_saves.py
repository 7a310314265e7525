"""What a program's checkpoints say of themselves, and which of its lives may commit them."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from controlplane.protocol.membership import Install, Member, MemberRole, View
from controlplane.protocol.rank import CheckpointReport, InstallView, SetView, StepReport, TrainingDone
from controlplane.protocol.spec import Parallelism
from tests.unit.trainer.agent import FakeAgent
from trainer.checkpoint.fence import Fence
from trainer.checkpoint.manifest import MARKER, Layout, Manifest, verify
from trainer.hooks.run import Run

Start = Callable[..., Run]


def save(run: Run, path: Path, *, step: int) -> None:
    with run.saving(path, step=step):
        path.mkdir(exist_ok=True)
        (path / "shard").write_bytes(b"x")


def manifest_of(path: Path) -> Manifest:
    found = verify(path).manifest
    assert found is not None
    return found


def test_a_checkpoint_names_the_whole_layout_that_wrote_it(agent: FakeAgent, start: Start, tmp_path: Path) -> None:
    run = start(parallelism=Parallelism(tp=2, pp=2, vp=3, cp=2, ep=4, replica_dp=4))
    save(run, tmp_path / "saved", step=1)
    run.finish()
    layout = manifest_of(tmp_path / "saved").layout
    assert layout == Layout(tp=2, pp=2, replicas=1, vp=3, cp=2, ep=4, replica_dp=4)


def test_an_older_life_cannot_commit_over_its_successor_and_trains_on(
    agent: FakeAgent, start: Start, tmp_path: Path
) -> None:
    fence, place = Fence(tmp_path / "checkpoints"), tmp_path / "iter_0000004"
    old = start(attempt=1)
    save(old, tmp_path / "iter_0000002", step=2)
    old.settle()
    assert manifest_of(tmp_path / "iter_0000002").attempt == 1
    new = start(attempt=2)
    until(lambda: fence.current() == (2, 0))
    save(new, place, step=4)
    new.settle()
    save(old, place, step=4)
    with old.step(4):
        pass
    assert old.finish() == 0
    agent.until(lambda: agent.of(TrainingDone))
    last = agent.of(CheckpointReport)[-1]
    assert (last.state, last.step) == ("failed", 4)
    assert last.error == "CheckpointFault: attempt 1, epoch 0 is fenced: attempt 2, epoch 0 is in its place"
    assert [said.step for said in agent.of(StepReport)] == [4]
    assert manifest_of(place).attempt == 2
    save(old, tmp_path / "iter_0000006", step=6)
    old.settle()
    assert not (tmp_path / "iter_0000006" / MARKER).exists()


def test_a_save_that_a_later_view_of_its_own_life_overtakes_is_committed(
    agent: FakeAgent, start: Start, tmp_path: Path
) -> None:
    fence, run = Fence(tmp_path / "checkpoints"), start()
    for epoch in (2, 3):
        with run.saving(tmp_path / str(epoch), step=epoch):
            agent.tell(SetView(View("job_1", 1, epoch, (Member(0, 3, MemberRole.CONTRIBUTOR),))))
            agent.tell(InstallView(Install("job_1", 1, epoch, 0, (0,))))
            until(lambda epoch=epoch: fence.current() == (1, epoch))
            (tmp_path / str(epoch)).mkdir()
            (tmp_path / str(epoch) / "shard").write_bytes(b"x")
    run.finish()
    agent.until(lambda: agent.of(TrainingDone))
    assert [said.step for said in agent.of(CheckpointReport) if said.state == "complete"] == [2, 3]


@pytest.mark.parametrize("place", ["/dev/null/checkpoints", "nowhere://bucket/job_1"])
def test_a_fence_that_cannot_be_raised_is_said_and_the_program_trains_on(
    agent: FakeAgent, start: Start, capfd: pytest.CaptureFixture[str], place: str
) -> None:
    run = start(checkpoint_dir=place)
    with run.step(0):
        pass
    assert run.finish() == 0
    heard: list[str] = []
    until(lambda: heard.append(capfd.readouterr().err) or f"no checkpoint fence at {place}" in "".join(heard))


def test_only_the_rank_that_commits_raises_the_fence(agent: FakeAgent, start: Start, tmp_path: Path) -> None:
    start(rank=1, world_size=2).settle()
    assert not (tmp_path / "checkpoints").exists()


def until(holds: Callable[[], object]) -> None:
    """The fence is raised by a thread; this polls, with a bound."""
    deadline_s = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
