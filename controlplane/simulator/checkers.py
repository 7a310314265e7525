"""Invariants (R40), watched at every commit, install, start and decision.

I1 at most one epoch can commit; I2 a command takes effect once; I5 no device under two
processes; I6 every act belongs to a decision with a reason; no step lost, every
micro-batch exactly once in a committed step, members of a view never diverge, ranks of a replica enter one
epoch, no healthy replica evicted, none counted that the view leaves out. I10 (liveness) is checked when the
faults have stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from controlplane.changes.due.certificates import RED
from controlplane.changes.due.kinds import Certify
from controlplane.changes.turn import OVER
from controlplane.policy.config import PolicyConfig
from controlplane.policy.ends import TOO_FEW
from controlplane.policy.plan import Decision
from controlplane.policy.rules import common_stall, restart
from controlplane.protocol.membership import Install
from controlplane.protocol.states import CheckpointState
from controlplane.simulator.kernel import Kernel

if TYPE_CHECKING:
    from controlplane.simulator.process import Process
    from controlplane.simulator.rows import Rows

Sick = Callable[[int, int, int], str | None]
Batches = dict[int, tuple[int, ...]]


class Checkers:
    """Collects violations; a world with one is a failing seed. `of`: behind each the job, where there are several."""

    def __init__(self, kernel: Kernel, micro_batches: int) -> None:
        self._kernel, self.of = kernel, ""
        self._all_batches = frozenset(range(micro_batches))
        self.violations: list[str] = []
        self.commits = 0
        self.evictions = 0
        self.left_out = self.judged = 0
        self._install_steps: dict[tuple[int, int], int] = {}
        self._members: dict[tuple[int, int], set[tuple[int, int]]] = {}
        self._newest: dict[int, int] = {}
        self._lineages: dict[tuple[int, int], tuple[int, ...]] = {}
        self._effects: dict[str, int] = {}
        self._keys: set[str] = set()
        self._zombie_steps: dict[tuple[int, int, int, int], int] = {}
        self._held: tuple[float, str] | None = None
        self.holders: Callable[[], tuple[int, int]] = lambda: (0, 1)
        self.is_rotten: Callable[[str], bool] = lambda path: True
        self.slow: Sick = lambda attempt, index, incarnation: ""

    def expect(self, true: bool, text: str) -> None:
        """Note a violation when `true` is not."""
        if not true:
            self.violations.append(f"{self._kernel.now_s:.3f} {text}{self.of}")
            self._kernel.log("VIOLATION", f"{text}{self.of}")

    def installed(self, process: Process, order: Install) -> None:
        """Contributors that enter an epoch stand at one step with one history."""
        epochs = {rank.core.standing.epoch for rank in process.ranks.values()}
        self.expect(
            len(epochs) == 1, f"I-together: ranks of r{process.index}.{process.incarnation} enter {sorted(epochs)}"
        )
        key = (process.attempt, order.epoch)
        self._newest[process.attempt] = max(order.epoch, self._newest.get(process.attempt, 0))
        self._members.setdefault(key, set()).add((process.index, process.incarnation))
        step = self._install_steps.setdefault(key, order.step)
        self.expect(step == order.step == process.committed, f"I-step: epoch {order.epoch} installs two steps")
        if process.index in order.contributors:
            lineage = self._lineages.setdefault(key, tuple(process.lineage))
            self.expect(
                lineage == tuple(process.lineage) and len(lineage) == order.step,
                f"I-diverge: r{process.index}.{process.incarnation} entered epoch {order.epoch} with another history",
            )

    def committed(self, process: Process, step: int, batches: Batches) -> None:
        """One replica commits one step."""
        self.commits += 1
        counted = sorted(batch for own in batches.values() for batch in own)
        self.expect(counted == sorted(self._all_batches), f"I-batch: step {step} trains micro-batches {counted}")
        newest = self._newest.get(process.attempt, 0)
        if process.epoch >= newest:
            return
        member = (process.index, process.incarnation)
        self.expect(
            member not in self._members.get((process.attempt, newest), set()),
            f"I1: r{process.index}.{process.incarnation} commits in epoch {process.epoch} while {newest} is installed",
        )
        # One that was left out and came back may do so once each time: in each epoch that was over for it.
        key = (process.attempt, *member, process.epoch)
        self._zombie_steps[key] = self._zombie_steps.get(key, 0) + 1
        self.expect(self._zombie_steps[key] <= 1, f"I1: zombie r{process.index}.{process.incarnation} goes on training")

    def set_back(self) -> None:
        """What was decided since is decided again, and is not known any more."""
        self._keys.clear()

    def effect(self, command_id: str) -> None:
        """An agent carries a command out."""
        self._effects[command_id] = self._effects.get(command_id, 0) + 1
        self.expect(self._effects[command_id] == 1, f"I2: command {command_id} took effect twice")

    def device_taken(self, node: str, device: int, holder: str | None) -> None:
        """A process starts on a device that `holder` still uses (None: free)."""
        self.expect(holder is None, f"I5: device {device} of {node} is still used by {holder}")

    def decided(self, decision: Decision) -> None:
        """A decision is committed."""
        reasoned = bool(decision.rule and decision.choice and decision.reason_code and decision.sentence)
        self.expect(reasoned, f"I6: decision {decision.key} has no reason")
        self.expect(decision.key not in self._keys, f"I6: key {decision.key} applied twice")
        self._keys.add(decision.key)
        if decision.rule == restart.RULE and decision.reason_code in TOO_FEW:
            sound, needed = self.holders()
            why = f"attempt ended with {sound} sound holders of the newest state, {needed} are needed"
            self.expect(sound < needed, f"I-restart: {why} ({decision.reason_code}: {decision.sentence})")
        if decision.rule == common_stall.RULE:
            self._held = (self._kernel.now_s, decision.reason_code)

    def held_until_s(self, config: PolicyConfig) -> float:
        """Kernel's time at which the limit of the last common stall is over at the latest; 0.0: there was none."""
        if self._held is None:
            return 0.0
        limit_s = config.storage_limit_s if self._held[1] == "storage_stall" else config.common_limit_s
        return self._held[0] + limit_s

    def evicted(self, name: str, sick: str | None, decision: Decision) -> None:
        """A replica is ended; `sick` is what is truly wrong with it, of what is stated (None: nothing)."""
        self.evictions += 1
        self.expect(sick is not None, f"I-evict: healthy {name} evicted ({decision.reason_code}: {decision.sentence})")

    def read_back(self, path: str, to: str) -> None:
        """A checkpoint was judged by who has read it."""
        sound = not self.is_rotten(path)
        self.expect(to != CheckpointState.CORRUPT or not sound, f"I-rot: {path} is called corrupt, and is sound")

    def leaves_out(self, attempt: int, index: int, incarnation: int, decision: Decision | None) -> None:
        """The others go on without one; `slow`: what truly keeps it (None: nothing)."""
        why = "" if decision is None else f" ({decision.reason_code}: {decision.sentence})"
        held_up = self.slow(attempt, index, incarnation) is not None
        self.expect(held_up, f"I-out: r{index}.{incarnation}, which nothing keeps, is left out{why}")

    def certified(self, incident: str, found: Certify) -> None:
        """A recovery is judged. Here nobody trains anything but what it is given."""
        wrong = "; ".join(f"{check.name}: {check.detail}" for check in found.checks if check.ok is False)
        self.expect(found.state != RED, f"I-cert: the certificate of {incident} is red: {wrong}")
        self.judged += found.again_s is None

    def counted(self, rows: Rows) -> None:
        """Whom the newest view leaves out is not counted among those that compute."""
        members = {(member.replica, member.incarnation) for member in rows.view.members} if rows.view else None
        for row in rows.replicas.values() if members is not None else ():
            out = row.contributing and row.state not in OVER and (row.index, row.incarnation) not in (members or ())
            self.expect(not out, f"I-counts: r{row.index}.{row.incarnation} counts, and the view is without it")
