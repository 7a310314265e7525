"""PPO runs on real ranks that lose some of them, all in one process without threads:
`python -m tests.integration.workloads.scenarios FOLDER` writes FOLDER/outcomes.json.

One import serves every rank of every scenario. The tests read the outcomes.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"
# What a launcher of an older world could have left.
os.environ.update(MASTER_ADDR="10.0.0.9", MASTER_PORT="1", WORLD_SIZE="64", RANK="63", LOCAL_RANK="7", GROUP_RANK="7")

import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from agents.core.state import Identity
from agents.ranks.debug_client import FOLDER
from agents.ranks.diagnose import Subject, look
from agents.ranks.identity import identity_of
from trainer.workloads.errors import NoRanksLeft, RanksLost, WorldLost
from trainer.workloads.ppo.controller import PpoController, Recovery, StepResult
from trainer.workloads.ppo.messages import EnterWorld
from trainer.workloads.ppo.session import import_everything, session
from trainer.workloads.ppo.settings import PpoSettings

STEPS = 3
BASE = PpoSettings(global_batch=8, mini_batch=4, micro_batch=1, prompt_length=4, response_length=4)


class Outcome(msgspec.Struct):
    """What a run left. `state`: digest by "tp,pp"; `notes`: what the scenario saw besides."""

    steps: list[StepResult]
    state: dict[str, str]
    recoveries: list[Recovery | None] = []
    notes: dict[str, Any] = {}


Story = Callable[[PpoController, Outcome], None]


def tell(folder: Path, settings: PpoSettings, story: Story, *, steps: int = STEPS) -> Outcome:
    """Run `story`, then go on to the last step."""
    outcome = Outcome([], {}, [], {})
    with session(settings, folder) as controller:
        controller.start()
        story(controller, outcome)
        while controller.step_count < steps:
            controller.step()
        outcome.steps = [controller.history[step] for step in sorted(controller.history)]
        if controller.pool.alive:
            outcome.state = {f"{tp},{pp}": digest for (tp, pp), digest in controller.fingerprints().items()}
    return outcome


def nothing(_controller: PpoController, _outcome: Outcome) -> None:
    """An undisturbed run."""


def replica_killed(controller: PpoController, outcome: Outcome) -> None:
    """Between steps; a recovery with nothing to do before and after it."""
    controller.step()
    controller.save()
    outcome.recoveries.append(controller.recover())
    outcome.notes["before"] = {str(number): here.rendezvous for number, here in controller.living().items()}
    controller.pool.kill([1, 3])
    outcome.recoveries.append(controller.recover())
    outcome.recoveries.append(controller.recover())
    outcome.notes["after"] = {str(number): here.rendezvous for number, here in controller.living().items()}


def scattered_kill_in_a_step(controller: PpoController, outcome: Outcome) -> None:
    """One rank of either replica and of either stage, in the midst of a step."""
    controller.step()
    controller.save()
    controller.step()
    try:
        controller.step(meanwhile=lambda: controller.pool.kill([0, 3]))
    except RanksLost as error:
        outcome.notes["lost"] = sorted(error.lost)
    outcome.recoveries.append(controller.recover())


def no_spare(controller: PpoController, outcome: Outcome) -> None:
    """The mesh shrinks."""
    controller.step()
    controller.save()
    controller.pool.kill([2])
    outcome.recoveries.append(controller.recover())


def all_lost(controller: PpoController, outcome: Outcome) -> None:
    """Every rank dies, the spares take over from storage; then everybody dies."""
    controller.step()
    controller.save()
    controller.pool.kill(controller.world.holders)
    outcome.recoveries.append(controller.recover())
    controller.step()
    controller.step()
    controller.pool.kill(controller.world.holders)
    try:
        controller.recover()
    except NoRanksLeft as error:
        outcome.notes["end"] = str(error)


def hung_rank(controller: PpoController, outcome: Outcome) -> None:
    """One rank is stopped in a step: its peers give up, it is ended."""
    controller.step()
    controller.save()
    try:
        controller.step(meanwhile=lambda: os.kill(controller.pool.pid(1), signal.SIGSTOP))
    except RanksLost as error:
        outcome.notes["lost"] = {str(number): how for number, how in error.lost.items()}
    outcome.recoveries.append(controller.recover())


def stopped_and_continued(controller: PpoController, outcome: Outcome) -> None:
    """One rank stands still for longer than its peers wait, then goes on: nobody is dead."""
    controller.step()
    controller.save()

    def pause() -> None:
        pid = controller.pool.pid(1)
        os.kill(pid, signal.SIGSTOP)
        subprocess.Popen(["sh", "-c", f"sleep 7; kill -CONT {pid}"])

    try:
        controller.step(meanwhile=pause)
    except WorldLost as error:
        outcome.notes["words"] = str(error)
    outcome.notes["alive"] = sorted(controller.pool.alive)
    outcome.recoveries.append(controller.recover())


def loss_in_a_recovery(controller: PpoController, outcome: Outcome) -> None:
    """A survivor dies while the new world is entered."""
    controller.step()
    controller.save()
    controller.pool.kill([1])
    ask, victims = controller.pool.ask, [0]

    def sabotaged(calls: Mapping[int, Any], **options: Any) -> dict[int, Any]:
        if victims and any(isinstance(call, EnterWorld) for call in calls.values()):
            # Stopped first: what gloo has begun with one that dies nothing can wake.
            os.kill(controller.pool.pid(victims[0]), signal.SIGSTOP)
            options["meanwhile"] = lambda: controller.pool.kill([victims.pop()])
        return ask(calls, **options)

    controller.pool.ask = sabotaged  # type: ignore[method-assign]
    outcome.recoveries.append(controller.recover())


def save_only(controller: PpoController, outcome: Outcome) -> None:
    """Leaves a checkpoint of one step; its ranks are looked at as an agent would."""
    controller.step()
    controller.save()
    doors = controller._root.parent / FOLDER
    outcome.notes["doors"] = [oct(path.stat().st_mode & 0o777) for path in (doors, *doors.glob("*.sock"))]
    log = doors.parent / "logs" / "process-1.log"
    whom = Subject(
        rank=1, identity=_identity(controller.pool.pid(1)), log_path=log, debug_servers=doors, duration_s=0.1
    )
    looks = ("ping", "stacks", "flight_recorder", "wait_counters", "profile")
    outcome.notes["looks"] = {what: look(what, whom) for what in looks}


def _identity(pid: int) -> Identity:
    found = identity_of(pid)
    assert found is not None
    return found


def learning(controller: PpoController, outcome: Outcome) -> None:
    """Long enough to see the reward rise."""
    outcome.notes["rewards"] = [controller.step().reward for _ in range(16)]


def main(folder: Path) -> None:
    """Every scenario, one after another."""
    warnings.filterwarnings("ignore")
    import_everything()
    change = msgspec.structs.replace
    one = change(BASE, dp=1, pp=1, spares=0)
    outcomes = {
        "undisturbed": tell(folder / "undisturbed", change(BASE, spares=0), nothing),
        "replica_killed": tell(folder / "replica_killed", BASE, replica_killed),
        "scattered": tell(folder / "scattered", change(BASE, spares=2), scattered_kill_in_a_step),
        "no_spare": tell(folder / "no_spare", change(BASE, spares=0), no_spare),
        "hung_rank": tell(folder / "hung_rank", change(BASE, spares=1, inner_timeout_s=8.0, patience_s=8.0), hung_rank),
        "stopped_and_continued": tell(
            folder / "stopped", change(BASE, spares=0, inner_timeout_s=4.0, patience_s=30.0), stopped_and_continued
        ),
        "loss_in_a_recovery": tell(
            folder / "loss_in_a_recovery", change(BASE, spares=2, inner_timeout_s=10.0), loss_in_a_recovery
        ),
        "saved": tell(folder / "saved", change(BASE, spares=0), save_only, steps=1),
        "resumed": tell(folder / "saved", one, nothing),
        "one_rank": tell(folder / "one_rank", one, nothing, steps=1),
        "two_tensor_ranks": tell(folder / "two_tensor_ranks", change(one, tp=2), nothing, steps=1),
        "all_lost": tell(folder / "all_lost", change(BASE, dp=1, spares=2), all_lost, steps=0),
        "learning": tell(
            folder / "learning", change(one, global_batch=32, mini_batch=16, micro_batch=16), learning, steps=0
        ),
    }
    (folder / "outcomes.json").write_bytes(msgspec.json.encode(outcomes))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
