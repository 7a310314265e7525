"""The whole story by one command: start ranks and spares, step, save, kill one replica,
recover, step on, and compare everything with a run in which nothing went wrong."""

from pathlib import Path

import msgspec

from trainer.workloads.errors import RanksLost
from trainer.workloads.ppo.controller import Phase, PpoController, Recovery, StepResult
from trainer.workloads.ppo.session import session
from trainer.workloads.ppo.settings import PpoSettings

TOLERANCE = 1e-4
"""Absolute, on rewards, losses and norms, when the mesh became smaller: gradients are then
summed in another order. On an equal mesh every number must be equal to the last bit."""
COMPARED = ("reward", "actor_loss", "value_loss", "clipped_ratio", "actor_norm", "critic_norm")


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """`faults`: what differs from the undisturbed run; empty means nothing does.
    `exact`: compared bit by bit, models and optimizers included."""

    settings: PpoSettings
    phases: list[Phase]
    recovery: Recovery | None
    steps: list[StepResult]
    undisturbed: list[StepResult]
    exact: bool
    faults: list[str]


def run_demo(settings: PpoSettings, folder: Path, *, steps: int, replica: int, during_step: bool) -> Report:
    """`replica`: the data coordinate that is killed, after the first step was saved; with
    `during_step` in the midst of the second. Raises ConfigInvalid, NoRanksLeft."""
    with session(settings, folder / "killed") as controller:
        controller.start()
        controller.step()
        controller.save()
        _kill(controller, replica, during_step=during_step)
        recovery = controller.recover()
        while controller.step_count < steps:
            controller.step()
        found, phases = _outcome(controller), controller.phases
        exact = controller.world.mesh == settings.mesh
    alone = msgspec.structs.replace(settings, spares=0)
    with session(alone, folder / "undisturbed") as controller:
        with controller.timed("undisturbed run", f"{steps} steps from the start, for comparison"):
            controller.start()
            while controller.step_count < steps:
                controller.step()
            wanted = _outcome(controller)
        phases.append(controller.phases[-1])
    return Report(
        settings=settings,
        phases=phases,
        recovery=recovery,
        steps=found[0],
        undisturbed=wanted[0],
        exact=exact,
        faults=_differences(found, wanted, exact=exact),
    )


def table(report: Report) -> str:
    """Durations, steps and the verdict, as text."""
    width = max(len(phase.name) for phase in report.phases)
    lines = [f"{'phase':<{width}}  seconds  note"]
    lines += [f"{phase.name:<{width}}  {phase.seconds:7.3f}  {phase.note}".rstrip() for phase in report.phases]
    lines += ["", "step  reward  actor loss  value loss  responses"]
    for result in report.steps:
        numbers = f"{result.reward:6.4f}  {result.actor_loss:10.6f}  {result.value_loss:10.6f}"
        lines.append(f"{result.step:>4}  {numbers}  {result.responses}")
    lines.append("")
    if report.recovery is not None:
        sources = ", ".join(f"{count} ranks from {source}" for source, count in sorted(report.recovery.sources.items()))
        lines.append(f"recovered: {report.recovery.reason}; {sources}; back at step {report.recovery.step}")
    how = "to the last bit" if report.exact else f"within {TOLERANCE:g} on a smaller mesh"
    lines += [f"differs: {fault}" for fault in report.faults]
    lines.append("NOT equal to the undisturbed run" if report.faults else f"equal to the undisturbed run {how}")
    return "\n".join(lines)


def _kill(controller: PpoController, replica: int, *, during_step: bool) -> None:
    """SIGKILL to every rank of one replica at once."""
    world, pool = controller.world, controller.pool
    numbers = [world.holders[rank] for rank in world.mesh.replica(replica)]
    if not during_step:
        with controller.timed("kill a replica", f"dp {replica}, processes {', '.join(map(str, numbers))}"):
            pool.kill(numbers)
        return
    with controller.timed("kill a replica in a step", f"dp {replica}, until every survivor had noticed"):
        try:
            controller.step(meanwhile=lambda: pool.kill(numbers))
        except RanksLost:
            return


def _outcome(controller: PpoController) -> tuple[list[StepResult], dict[tuple[int, int], str]]:
    return [controller.history[step] for step in sorted(controller.history)], controller.fingerprints()


def _differences(
    found: tuple[list[StepResult], dict[tuple[int, int], str]],
    wanted: tuple[list[StepResult], dict[tuple[int, int], str]],
    *,
    exact: bool,
) -> list[str]:
    faults = []
    for mine, theirs in zip(found[0], wanted[0], strict=True):
        if exact and mine != theirs:
            faults.append(f"step {mine.step}: {mine} is not {theirs}")
        if mine.responses != theirs.responses:
            faults.append(f"step {mine.step}: other responses were sampled")
        for name in COMPARED:
            distance = abs(getattr(mine, name) - getattr(theirs, name))
            if not distance <= TOLERANCE:
                faults.append(f"step {mine.step}: {name} differs by {distance:g}")
    if exact:
        faults += [f"state at tp, pp {where} differs" for where in wanted[1] if found[1].get(where) != wanted[1][where]]
    return faults
