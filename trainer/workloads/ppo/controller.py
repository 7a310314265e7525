"""Drives a PPO run on a pool of rank processes, and brings it back after a loss.

A step: roll out (mesh) -> score -> advantages -> one update (mesh) for each mini-batch.
Recovery: who is dead -> survivors leave the old world -> spares take the places of the
dead -> a new world under a new generation -> models are built anew -> healthy ranks restore
from their copies in host memory, fresh ones load the newest checkpoint -> replicas are
compared -> training goes on from that step. Each part is timed. With nothing lost it does
nothing. Reads no clock but the monotonic one; holds no tensors, but the store of each world.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from torch.distributed import TCPStore

from trainer.checkpoint import manifest, retention
from trainer.data import load_corpus
from trainer.errors import MembershipViolated, ResumeFailed
from trainer.workloads.dispatch import DISPATCH_TYPES, Call
from trainer.workloads.errors import RanksLost
from trainer.workloads.pool import RankPool
from trainer.workloads.ppo import arithmetic
from trainer.workloads.ppo import messages as m
from trainer.workloads.ppo.settings import JOB_ID, PpoSettings
from trainer.workloads.replacement import Replacement, World, replace

PING_TIMEOUT_S = 30.0
STORE_HOST = "127.0.0.1"
MAX_RECOVERIES = 8
"""Attempts of one recovery, each after another loss in the midst of it."""


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """Of one step. `reward`: mean share of target bytes; losses are means over response
    bytes; `responses`: digest of all of them; `sharding[dp]`: samples rolled out there;
    `trained[i]`: samples of the i-th update by replica."""

    step: int
    reward: float
    actor_loss: float
    value_loss: float
    clipped_ratio: float
    actor_norm: float
    critic_norm: float
    responses: str
    sharding: list[list[int]]
    trained: list[list[list[int]]]


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was done and how long it took."""

    name: str
    seconds: float
    note: str = ""


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """What a recovery did. `sources`: how many ranks got their state from where."""

    reason: str
    step: int
    fresh: list[int]
    dissolved: list[int]
    sources: dict[str, int]
    places: list[int]


class PpoController:
    """One run. `on_step` hears of every step, done again or not: the seam to whoever reports.

    Forks in `start` and never again; whoever starts threads in this process does it later."""

    def __init__(
        self,
        settings: PpoSettings,
        pool: RankPool,
        *,
        checkpoint_dir: Path,
        on_step: Callable[[StepResult], None] = lambda _result: None,
    ) -> None:
        self.settings, self.pool, self._root = settings, pool, checkpoint_dir
        self._store: TCPStore | None = None
        self._on_step = on_step
        self._corpus = load_corpus(None, sequence_length=settings.prompt_length, seed=settings.seed)
        self.world = World(mesh=settings.mesh, holders=(), spares=())
        self.generation = 0
        self.step_count = 0
        self.history: dict[int, StepResult] = {}
        self.phases: list[Phase] = []

    @contextmanager
    def timed(self, name: str, note: str = "") -> Iterator[None]:
        """Adds a phase, if the block ends well."""
        began_s = time.monotonic()
        yield
        self.phases.append(Phase(name=name, seconds=time.monotonic() - began_s, note=note))

    def close(self) -> None:
        """End every process."""
        self.pool.close()
        self._store = None

    def start(self) -> None:
        """Start ranks and spares, enter the first world, stand at the newest checkpoint if
        there is one. Raises ResumeFailed when it is corrupt."""
        size = self.settings.mesh.size
        with self.timed("start processes", f"{size} ranks + {self.settings.spares} spares"):
            numbers = [self.pool.start() for _ in range(size + self.settings.spares)]
            self.world = World(mesh=self.settings.mesh, holders=tuple(numbers[:size]), spares=tuple(numbers[size:]))
            self._ask_each(dict.fromkeys(numbers, m.Ping()), timeout_s=PING_TIMEOUT_S, in_world=False)
        self._enter(fresh=range(size))

    def step(self, *, meanwhile: Callable[[], None] | None = None) -> StepResult:
        """One step; `meanwhile` runs while its first update is under way. Raises RanksLost:
        then the step is lost, and `recover` comes next."""
        step, settings = self.step_count, self.settings
        with self.timed(f"step {step}"):
            prompts = self._prompts(step)
            answer: m.Responses = self._ask(m.RollOut(step=step, batch=prompts)).batch
            if answer.sample != prompts.sample:
                raise MembershipViolated(f"step {step}: rolled out {answer.sample}, not {prompts.sample}")
            reward, experience = self._score(prompts, answer)
            rows: list[m.UpdateRows] = []
            for positions in self._mini_batches(step):
                batch = _pick(experience, positions)
                rows.append(self._ask(m.Update(step=step, batch=batch), meanwhile=meanwhile).batch)
                meanwhile = None
                if [sample for part in rows[-1].samples for sample in part] != batch.sample:
                    raise MembershipViolated(f"step {step}: trained {rows[-1].samples}, not {batch.sample}")
        result = _summary(step, reward, answer, rows, response_bytes=settings.mini_batch * settings.response_length)
        self.step_count += 1
        self.history[step] = result
        self._on_step(result)
        return result

    def save(self) -> Path:
        """Checkpoint after the steps done so far, committed by its marker once every rank has
        written; then each rank keeps a copy in memory. Raises RanksLost, OSError."""
        step, mesh = self.step_count, self.world.mesh
        path = self._root / manifest.directory_name(step, self.generation)
        with self.timed(f"save step {step}", path.name):
            path.mkdir(parents=True, exist_ok=True)
            self._ask(m.Save(path=str(path), step=step))
            manifest.write_marker(
                path,
                manifest.Manifest(
                    job_id=JOB_ID,
                    attempt=1,
                    epoch=self.generation,
                    step=step,
                    kind="interval",
                    layout=manifest.Layout(mesh.tp, mesh.pp, mesh.dp),
                    consumed_samples=step * self.settings.global_batch,
                    files=manifest.describe_files(path),
                ),
            )
            retention.prune(self._root, keep=self.settings.keep, epoch=self.generation)
        with self.timed("copy to host memory", "every rank"):
            self._ask(m.KeepCopy(step=step, generation=self.generation))
        return path

    def recover(self) -> Recovery | None:
        """None when every rank is alive and in the world. Raises NoRanksLeft, ResumeFailed."""
        for _ in range(MAX_RECOVERIES):
            try:
                return self._recover_once()
            except RanksLost:
                continue  # Another loss in the midst of it: begin again with those who are left.
        raise ResumeFailed(f"{MAX_RECOVERIES} recoveries in a row met another loss; look at the ranks' logs")

    def run(self, steps: int, *, save_every: int = 0) -> None:
        """Until `steps` steps are done, through any number of losses."""
        while self.step_count < steps:
            try:
                self.step()
                if save_every and self.step_count % save_every == 0:
                    self.save()
            except RanksLost:
                self.recover()

    def fingerprints(self) -> dict[tuple[int, int], str]:
        """(tp, pp) -> digest of the whole state there. Raises MembershipViolated when replicas differ."""
        found: dict[tuple[int, int], str] = {}
        for reply in self._ask(m.Fingerprint()):
            where = (reply.place.tp, reply.place.pp)
            if found.setdefault(where, reply.digest) != reply.digest:
                raise MembershipViolated(f"replica {reply.place.dp} differs from replica 0 at tp, pp {where}")
        return found

    def _recover_once(self) -> Recovery | None:
        with self.timed("detect the dead"):
            self.pool.dead()
            here = self.living()
            dead = {*self.world.holders, *self.world.spares} - self.pool.alive
            survivors = [number for number in self.world.holders if number in here]
            if not dead & set(self.world.holders) and all(here[number].place for number in survivors):
                self.world = World(
                    mesh=self.world.mesh,
                    holders=self.world.holders,
                    spares=tuple(number for number in self.world.spares if number not in dead),
                )
                return None
        with self.timed("leave the old world", f"{len(survivors)} survivors"):
            self._ask_each(dict.fromkeys(survivors, m.LeaveWorld()), in_world=False)
        change = replace(self.world, dead, fits=self.settings.fits)
        self.world = change.world
        step, sources = self._enter(
            fresh=change.fresh, copies={number: at.copy_step for number, at in here.items() if at.copy_step is not None}
        )
        with self.timed("compare replicas"):
            self.fingerprints()
        return _told(change, step, sources)

    def living(self) -> Mapping[int, m.Here]:
        """By process number: where the living ranks and spares are. One that does not answer
        is ended and asked no more."""
        while True:
            numbers = [number for number in (*self.world.holders, *self.world.spares) if number in self.pool.alive]
            try:
                return self._ask_each(dict.fromkeys(numbers, m.Ping()), timeout_s=PING_TIMEOUT_S, in_world=False)
            except RanksLost:
                continue

    def _enter(self, *, fresh: Iterable[int], copies: Mapping[int, int] | None = None) -> tuple[int, dict[str, int]]:
        """A new world of `self.world`, its models, its state. Returns (step, ranks by source)."""
        self.generation += 1
        mesh = self.world.mesh
        with self.timed("enter a world", f"generation {self.generation}, dp {mesh.dp} tp {mesh.tp} pp {mesh.pp}"):
            # Forks are behind us: the store may have its threads. Each world has its own port.
            self._store = TCPStore(STORE_HOST, 0, is_master=True, wait_for_workers=False)
            store = f"{STORE_HOST}:{self._store.port}"
            entries = {
                number: m.EnterWorld(
                    settings=self.settings, mesh=mesh, rank=rank, generation=self.generation, store=store
                )
                for rank, number in enumerate(self.world.holders)
            }
            self._ask_each(entries)
        with self.timed("build models", "actor and critic"):
            self._ask(m.BuildModels())
        newest = self._newest()
        strangers, held = set(fresh), copies or {}
        orders: dict[int, Call] = {}
        for rank, number in enumerate(self.world.holders):
            if newest is None:
                orders[number] = m.Restore(source="initial", step=0)
            elif rank not in strangers and held.get(number) == newest[1].step:
                orders[number] = m.Restore(source="memory", step=newest[1].step)
            else:
                orders[number] = m.Restore(source="storage", step=newest[1].step, path=str(newest[0]))
        began_s = time.monotonic()
        replies = self._ask_each(orders)
        sources: dict[str, int] = {}
        for reply in replies.values():
            sources[reply.source] = sources.get(reply.source, 0) + 1
        note = ", ".join(f"{count} from {source}" for source, count in sorted(sources.items()))
        self.phases.append(Phase(name="restore", seconds=time.monotonic() - began_s, note=note))
        self.step_count = newest[1].step if newest else 0
        return self.step_count, sources

    def _newest(self) -> tuple[Path, manifest.Manifest] | None:
        newest = manifest.newest_complete(self._root)
        if newest is not None and (faults := manifest.verify(newest[0]).faults):
            raise ResumeFailed(f"{newest[0]}: {'; '.join(faults)}; remove it to go on from the one before")
        return newest

    def _prompts(self, step: int) -> m.Prompts:
        first = step * self.settings.global_batch
        numbers = list(range(first, first + self.settings.global_batch))
        length = self.settings.prompt_length
        return m.Prompts(sample=numbers, tokens=[self._corpus.sample(number)[:length].tolist() for number in numbers])

    def _score(self, prompts: m.Prompts, answer: m.Responses) -> tuple[float, m.Experience]:
        """Mean reward of a sample, and what the updates train on."""
        settings = self.settings
        paid = arithmetic.rewards(np.array(answer.tokens), settings.target_bytes)
        advantages, returns = arithmetic.advantages(
            paid, np.array(answer.values), discount=settings.discount, gae_lambda=settings.gae_lambda
        )
        experience = m.Experience(
            sample=answer.sample,
            tokens=[[*prompt, *response] for prompt, response in zip(prompts.tokens, answer.tokens, strict=True)],
            log_probs=answer.log_probs,
            values=answer.values,
            advantages=arithmetic.whiten(advantages).tolist(),
            returns=returns.tolist(),
        )
        return float(paid.sum(axis=1).mean()), experience

    def _mini_batches(self, step: int) -> Iterator[list[int]]:
        for epoch in range(self.settings.epochs):
            yield from arithmetic.mini_batches(
                step=step,
                epoch=epoch,
                seed=self.settings.seed,
                global_batch=self.settings.global_batch,
                size=self.settings.mini_batch,
            )

    def _ask(self, call: Call, *, meanwhile: Callable[[], None] | None = None) -> Any:
        """Dispatch `call` over the mesh by its own kind and collect the answers."""
        mesh, holders = self.world.mesh, self.world.holders
        parts = DISPATCH_TYPES.dispatch(mesh, call)
        replies = self._ask_each(dict(zip(holders, parts, strict=True)), meanwhile=meanwhile)
        return DISPATCH_TYPES.collect(mesh, call, [replies[number] for number in holders])

    def _ask_each(
        self,
        calls: Mapping[int, Call],
        *,
        timeout_s: float | None = None,
        in_world: bool = True,
        meanwhile: Callable[[], None] | None = None,
    ) -> dict[int, Any]:
        return self.pool.ask(
            calls,
            timeout_s=self.settings.call_timeout_s if timeout_s is None else timeout_s,
            patience_s=self.settings.patience_s,
            in_world=in_world,
            meanwhile=meanwhile,
        )


def _pick(experience: m.Experience, positions: Iterable[int]) -> m.Experience:
    chosen = list(positions)
    return m.Experience(
        **{name: [getattr(experience, name)[at] for at in chosen] for name in experience.__struct_fields__}
    )


def _summary(
    step: int, reward: float, answer: m.Responses, rows: list[m.UpdateRows], *, response_bytes: int
) -> StepResult:
    updates = len(rows)
    by_replica: dict[int, list[int]] = {}
    for sample, dp in zip(answer.sample, answer.dp, strict=True):
        by_replica.setdefault(dp, []).append(sample)
    return StepResult(
        step=step,
        reward=reward,
        actor_loss=sum(sum(row.actor_loss) for row in rows) / (updates * response_bytes),
        value_loss=sum(sum(row.value_loss) for row in rows) / (updates * response_bytes),
        clipped_ratio=sum(sum(row.clipped) for row in rows) / (updates * response_bytes),
        actor_norm=rows[-1].actor_norm[0],
        critic_norm=rows[-1].critic_norm[0],
        responses=hashlib.blake2b(msgspec.msgpack.encode(answer.tokens), digest_size=8).hexdigest(),
        sharding=[by_replica[dp] for dp in sorted(by_replica)],
        trained=[row.samples for row in rows],
    )


def _told(change: Replacement, step: int, sources: dict[str, int]) -> Recovery:
    return Recovery(
        reason=change.reason,
        step=step,
        fresh=list(change.fresh),
        dissolved=list(change.dissolved),
        sources=sources,
        places=list(change.world.holders),
    )
