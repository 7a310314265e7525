"""Slurm as an engine: two questions for all that it believes, and one command for each intent.

Runs on the server's host, where `squeue` and `scontrol` work. Made by `engines.poll` alone.
"""

from controlplane.engines.engine import SLURM, Change, EngineError, IntentKind, Observation
from controlplane.engines.slurm import answers, health, tools

ASK_NODES = ("scontrol", "--oneliner", "show", "node")
ASK_PILOTS = ("squeue", "--array", f"--name={answers.PILOTS}", "--format", answers.PILOTS_FORMAT)


class Slurm:
    """`timeout_s`: of each question. `server`: pilots that were submitted for another one are left out; "": all count,
    whatever server they were submitted for."""

    name = SLURM

    def __init__(self, *, timeout_s: float, server: str = "") -> None:
        self._timeout_s, self._server = timeout_s, server.rstrip("/")

    def observe(self) -> Observation:
        """An answer that does not come, is empty, or is something else, is no news and an error in words."""
        errors: list[str] = []
        nodes = pilots = None
        try:
            nodes = answers.all_believed(self._ask(*ASK_NODES)) or None
            if nodes is None:
                errors.append("`scontrol show node` names no node")
        except EngineError as error:
            errors.append(str(error))
        try:
            found = answers.pilots(self._ask(*ASK_PILOTS))
            pilots = None if found is None else tuple(each for each in found if self._is_ours(each))
            if pilots is None:
                errors.append("`squeue` gives no whole answer")
        except EngineError as error:
            errors.append(str(error))
        return Observation(nodes=nodes, pilots=pilots, errors=tuple(errors))

    def _is_ours(self, pilot: answers.Pilot) -> bool:
        return not self._server or pilot.server.rstrip("/") == self._server

    def carry_out(self, change: Change) -> str:
        """A node is looked at once more before, so that a drain of somebody else's that came meanwhile stays."""
        if change.kind is IntentKind.RESIZE:
            return self._resize(change)
        believed = answers.believed(self._ask(*ASK_NODES, change.node), change.node)
        if believed is None:
            raise EngineError(f"Slurm does not say what it believes of {change.node}")
        if change.kind is IntentKind.MARK_BAD:
            if believed.drained:
                return "it was drained already"
            self._ask(*health.update(change.node, health.Act.DRAIN, change.reason, tag=change.id))
            return "Slurm took the drain"
        if not believed.ours:
            return "no drain of Holdfast's is there"
        self._ask(*health.update(change.node, health.Act.UNDRAIN, ""))
        return "Slurm took the end of the drain"

    def _resize(self, change: Change) -> str:
        """How many of the array's elements run at a time; read back, as Slurm's facts of a pool do not have it."""
        self._ask("scontrol", "update", f"jobid={change.pool}", f"arraytaskthrottle={change.size}")
        if answers.throttle(self._ask("scontrol", "--oneliner", "show", "job", change.pool)) != change.size:
            raise EngineError(f"Slurm does not say that {change.size} pilots of {change.pool} may run at a time")
        if change.spare:
            self._ask("scancel", *(f"{change.pool}_{index}" for index in change.spare))
        back = f", {len(change.spare)} spare ones are given back" if change.spare else ""
        return f"{change.size} pilots of {change.pool} may run at a time{back}"

    def _ask(self, *argv: str) -> str:
        try:
            return tools.answered(*argv, timeout_s=self._timeout_s)
        except tools.SlurmError as error:
            raise EngineError(str(error)) from error
