"""Committed steps computed again, by one replica, once the job has trained and saved.

The control plane asks after a recovery (`RecomputeSteps`): load the checkpoint from before it,
and compute the steps up to a sampled one as they were trained then, each replica's micro-batches
in the order in which that replica computed them, the replicas' vectors added up in the order of
their seats. Each rank tells loss, gradient norm and, at the end, the hash of all its state; who
asked compares. Called by the loop, behind the last save: nothing of the training is changed, and
whatever goes wrong here is told and ends no job. Sums of two replicas come out bit for bit, as
a + b = b + a; those of more depend on the order in which an exchange adds them.
"""

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import torch
import xxhash

from controlplane.protocol.bounds import fitted
from controlplane.protocol.launch import Resume
from controlplane.protocol.rank import RecomputeReport
from controlplane.protocol.recompute import Recompute, RecomputedStep, Share
from trainer.checkpoint import manifest
from trainer.checkpoint.resume import resume
from trainer.config import RankSettings
from trainer.engine import Applied, Engine
from trainer.parallel import Votes

if TYPE_CHECKING:
    from trainer.assemble import Controls

MAX_ERROR_CHARS = 300
ORDER_BITS = 31
IDLE_S = 0.01


class Aborted(Exception):
    """What is computed again is given up; the text says why."""


class Recomputer:
    """One rank's side of it. All ranks of the replica call `run` together."""

    def __init__(self, settings: RankSettings, engine: Engine, *, votes: Votes, controls: "Controls") -> None:
        self._settings, self._engine, self._votes = settings, engine, votes
        self._mailbox, self._preemption = controls.mailbox, controls.preemption
        self._progress, self._send = controls.progress, controls.link.send
        self._keeper, self._broken = controls.keeper, ""

    def run(self) -> None:
        """Carry out what was ordered, one after the other, and tell what came of each. Never raises Exception."""
        orders = self._mailbox.recompute()
        for order in orders[:-1]:
            self._send(self._compute(order))
        last = self._compute(orders[-1]) if orders else None
        # Before it tells the last: the job may end then, and this rank with it.
        self._keeper.let_go()
        if last is not None:
            self._send(last)

    def _compute(self, order: Recompute) -> RecomputeReport:
        began_s, done, digest, fault = time.monotonic(), list[RecomputedStep](), "", ""
        try:
            self._agree(order)
            self._load(order)
            for step in range(order.from_step, order.until_step):
                self._go_on(order, time.monotonic() - began_s)
                done.append(_told(step, self._step(step, shares_of(order, step))))
                self._progress.renew()
            digest = self._engine.state_hash()
        except Exception as error:  # Of storage, Megatron or a lost peer: the job has trained whatever comes.
            fault = f"{type(error).__name__}: {error}"
            # Only what the ranks decide together leaves them together.
            self._broken = self._broken or ("" if isinstance(error, Aborted) else fault)
        return RecomputeReport(
            order_id=order.order_id,
            steps=tuple(done),
            state_hash=digest,
            on=self._engine.device.type,
            took_s=time.monotonic() - began_s,
            error=fitted(fault, MAX_ERROR_CHARS),
        )

    def _agree(self, order: Recompute) -> None:
        """Raises Aborted where the ranks hold different orders, or have come apart over the one before."""
        if self._broken:
            raise Aborted(f"one before it failed: {self._broken}")
        number = xxhash.xxh3_64_intdigest(msgspec.json.encode(order)) >> (64 - ORDER_BITS)
        if not self._votes.same(number, idle=lambda: time.sleep(IDLE_S)):
            raise Aborted("the ranks of the replica were given different orders")

    def _load(self, order: Recompute) -> None:
        """Of the job's own checkpoints alone. Raises Aborted, ResumeFailed, StorageAway."""
        config = self._settings.config
        root, _, name = order.path.rpartition("/")
        if root != config.checkpoint_dir.rstrip("/") or manifest.parse_name(name) is None:
            raise Aborted(f"{order.path} is no checkpoint of this job")
        from_there = msgspec.structs.replace(config, resume=Resume(order.path, order.from_step))
        step = resume(self._engine, msgspec.structs.replace(self._settings, config=from_there), self._votes, None)
        if step != order.from_step:
            raise Aborted(f"{order.path} is of step {step}, not {order.from_step}")
        self._engine.rerun.rest()

    def _go_on(self, order: Recompute, took_s: float) -> None:
        """The ranks decide together. Raises Aborted."""
        asked = self._preemption.asked or self._mailbox.stop() is not None
        leaving, late = self._votes.counts([asked, took_s > order.limit_s])
        if leaving:
            raise Aborted("the job was asked to leave")
        if late:
            raise Aborted(f"not through within {order.limit_s:.0f} s")

    def _step(self, step: int, shares: Sequence[Share]) -> Applied:
        engine = self._engine
        total: torch.Tensor | None = None
        for share in shares:
            engine.clear()
            for part in share.parts:
                engine.compute(step, part)
            vector = engine.stage(sorted(number for part in share.parts for number in part), leaving=[False])
            total = vector if total is None else total.add_(vector)
        assert total is not None, "a span has shares"
        return engine.apply(total)


def shares_of(order: Recompute, step: int) -> tuple[Share, ...]:
    """Of that step: those of the newest span that has begun. Raises Aborted where none has."""
    begun = [span for span in order.spans if span.first_step <= step]
    if not begun:
        raise Aborted(f"nothing says who computed what in step {step}")
    return begun[-1].shares


def _told(step: int, applied: Applied) -> RecomputedStep:
    numbers = (applied.loss, applied.grad_norm)
    loss, norm = (value if value is not None and math.isfinite(value) else None for value in numbers)
    return RecomputedStep(step=step, loss=loss, grad_norm=norm, finite=(loss, norm) == numbers)
