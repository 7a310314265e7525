"""Devices that turn slow, and the scoring that finds them.

A rank on a slow device takes longer for each micro-batch, and all others of its group wait for it. Twice an
interval the windows of all ranks that train are scored as the server scores what they tell (`policy.stragglers`),
and what is found is told to the policy. It draws from chances of its own, so that a world without is the world
it was.
"""

import random
from statistics import median

import msgspec

from controlplane.policy.signals.ranks import SlowRank
from controlplane.policy.snapshot import SignalFact
from controlplane.policy.stragglers import MIN_SAMPLES, RankWork, Run, Score, confirmed, fresh_s, scores
from controlplane.protocol.spec import Stragglers
from controlplane.protocol.states import ReplicaState
from controlplane.simulator.kernel import Kernel
from controlplane.simulator.process import Process
from controlplane.simulator.server import Server
from controlplane.simulator.trainer import Trainer

LATE_S = (0.3, 0.5)
SLOW = "device_slow"
"""Its name among the faults that happened."""
Device = tuple[str, int]
Name = tuple[int, int, int]


class Slowness:
    """`late`: seconds more a micro-batch takes on a device; `found`: how many times one was told."""

    def __init__(self, kernel: Kernel, server: Server, trainer: Trainer, wanted: Stragglers, seed: int) -> None:
        self._kernel, self._server, self._trainer, self._wanted = kernel, server, trainer, wanted
        self._random = random.Random(f"slow {seed}")
        self._runs: dict[Name, Run] = {}
        self.late: dict[Device, float] = {}
        self.found = 0

    def schedule(self, since_s: float, until_s: float, count: int) -> None:
        """So many devices under replicas that train turn slow, for good."""
        if not count:
            return
        self._trainer.late_s = self.late_s
        self._kernel.after(self._wanted.interval_s / 2.0, self._score)
        for _ in range(count):
            self._kernel.after(self._random.uniform(since_s, until_s), self.begin, self._random.uniform(*LATE_S))

    def begin(self, late_s: float) -> None:
        """One of those that are in use."""
        devices = sorted({(rank.node, rank.device) for process in self._training() for rank in process.ranks.values()})
        if devices:
            node, device = self._random.choice(devices)
            self.late[node, device] = late_s
            self._kernel.log("fault", f"device {device} of {node} turns slow, {late_s:.2f} s a micro-batch")

    def late_s(self, process: Process) -> float:
        """What its slowest rank adds to a micro-batch."""
        return max((self.late.get((rank.node, rank.device), 0.0) for rank in process.ranks.values()), default=0.0)

    def _training(self) -> list[Process]:
        rows = self._server.rows
        attempt = rows.attempt.number if rows.attempt else 0
        names = ((attempt, row.index, row.incarnation) for row in rows.replicas.values() if _trains(row.state))
        found = (self._trainer.processes.get(name) for name in names)
        return [process for process in found if process is not None and process.epoch and process.complete]

    def _score(self) -> None:
        self._kernel.after(self._wanted.interval_s / 2.0, self._score)
        calm = self._server.rows.calm
        if self._server.paused or not calm:
            return
        present: set[str] = set()
        for score in scores(self._windows(median(calm)), self._wanted):
            work = score.work
            name, epoch = (work.replica, work.incarnation, work.rank), self._epoch_of(work)
            self._runs[name], is_straggler = confirmed(score, self._runs.get(name, Run()), epoch)
            if is_straggler:
                present.add(self._report(score, epoch))
            elif score.straggler:
                # What is open stays so until it is as fast as the others again.
                present.add(self._renew(_id_of(work), {}))
        gone = {key for key in self._server.rows.signals if key.startswith(SlowRank.KIND)} - present
        for key in gone:
            del self._server.rows.signals[key]
        if gone:
            self._server.ring()

    def _windows(self, step_s: float) -> list[RankWork]:
        """What each rank tells of itself: its own micro-batches, without the wait for others."""
        own_s = sum(self._trainer.timing.micro_batch_s) / 2.0
        stages = {rank: rank for rank in range(2)} if self._server.rows.spec.parallelism.pp > 1 else {}
        return [
            RankWork(
                replica=process.index,
                incarnation=process.incarnation,
                rank=number,
                stage=stages.get(number, 0),
                samples=MIN_SAMPLES,
                compute_s=own_s + self.late.get((rank.node, rank.device), 0.0),
                data_s=0.0,
                step_s=step_s,
                micro_batches=float(max(1, len(process.done))),
            )
            for process in self._training()
            for number, rank in process.ranks.items()
        ]

    def _epoch_of(self, work: RankWork) -> int:
        """Of the view in which its window ended."""
        return next(p.epoch for p in self._training() if (p.index, p.incarnation) == (work.replica, work.incarnation))

    def _renew(self, signal_id: str, evidence: dict[str, str | int | float | bool | None]) -> str:
        """What is open was found so again just now."""
        if (known := self._server.rows.signals.get(signal_id)) is not None:
            told = {**known.evidence, **evidence}
            again = msgspec.structs.replace(known, renewed_s=self._kernel.now_s, evidence=told)
            self._server.rows.signals[signal_id] = again
        return signal_id

    def _report(self, score: Score, epoch: int) -> str:
        """The finding's id; it is one as long as it lasts."""
        rows, work = self._server.rows, score.work
        signal_id = _id_of(work)
        place = next(p for p in rows.replicas[work.replica].placements if p.rank == work.rank)
        if signal_id not in rows.signals:
            self.found += 1
            rows.signals[signal_id] = SignalFact(
                id=signal_id,
                kind=SlowRank.KIND,
                seen_s=self._kernel.now_s,
                replica=work.replica,
                incarnation=work.incarnation,
                rank=work.rank,
                node_id=place.node_id,
                device_index=place.device_index,
                value=score.relative or 1.0,
                threshold=self._wanted.relative_threshold,
                evidence={"score": score.straggler, "cause": score.cause, "late_s": score.late_s, "epoch": epoch},
            )
            self._server.ring()
            return signal_id
        known = rows.signals[signal_id]
        news = known.evidence["epoch"] != epoch
        self._renew(signal_id, {"late_s": score.late_s, "epoch": epoch})
        if news or self._kernel.now_s - (known.renewed_s or known.seen_s) > fresh_s(self._wanted, None):
            self._server.ring()
        return signal_id


def _id_of(work: RankWork) -> str:
    return f"{SlowRank.KIND}:r{work.replica}.{work.incarnation}:{work.rank}"


def _trains(state: ReplicaState) -> bool:
    return state is ReplicaState.ACTIVE
