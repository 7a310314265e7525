"""The life of one PPO rank process: it answers calls until its controller goes away.

A spare lives the same life without ever being asked into a world. What a rank holds over
worlds is its copy of the state in host memory, nothing else.
"""

import faulthandler
import gc
import os
import signal
import traceback
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist
from megatron.core import parallel_state
from torch.distributed import distributed_c10d

from trainer import device
from trainer.config import RankSettings
from trainer.control.debug_server import open_debug_server, write_groups
from trainer.errors import CatchUpFailed, CheckpointFault, InnerPeerLost, NumericsSuspect, SetupFailed
from trainer.exits import ExitCode
from trainer.parallel import connect_store, enter_inner_world
from trainer.train import is_peer_loss
from trainer.workloads.dispatch import Reply
from trainer.workloads.mesh import MeshRank
from trainer.workloads.pool import Failed, Wire
from trainer.workloads.ppo import messages as m
from trainer.workloads.ppo import state
from trainer.workloads.ppo.engine import PpoEngine
from trainer.workloads.ppo.settings import rank_settings
from trainer.workloads.rendezvous import hang_up, hang_up_when_woken, isolate_device, rendezvous, renew_rendezvous

MAX_ERROR_CHARS = 1000
ANSWERED = (CatchUpFailed, CheckpointFault, NumericsSuspect, SetupFailed)
"""Errors that leave a rank fit for the next call."""


def live(
    wire: Wire, number: int, environment: MutableMapping[str, str] = os.environ, *, debug_servers: Path
) -> ExitCode:
    """Answer every call on `wire`. `number` chooses the device; the debug server is in `debug_servers`,
    under the process's id."""
    isolate_device(environment, number)
    state.prepare_writers()
    hang_up_when_woken()
    faulthandler.register(signal.SIGUSR2, all_threads=True, chain=False)
    debug_socket = debug_servers / f"{os.getpid()}.sock"
    open_debug_server(debug_socket)  # Its threads must find WAKE blocked.
    rank = _Rank(environment, debug_socket)
    while True:
        try:
            call = wire.receive()
        except EOFError:
            return ExitCode.LEFT
        wire.send(rank.answer(call))


@dataclass(frozen=True, slots=True)
class _World:
    """The world that was told of last, entered or not."""

    call: m.EnterWorld
    settings: RankSettings


class _Rank:
    """State of one process between calls."""

    def __init__(self, environment: MutableMapping[str, str], debug_socket: Path) -> None:
        self._environment, self._debug_socket = environment, debug_socket
        self._place: MeshRank | None = None
        self._world: _World | None = None
        self._engine: PpoEngine | None = None
        self._copy: state.HostCopy | None = None
        self._device = device.activate(0)

    def answer(self, call: m.Calls) -> Reply:
        """Never raises for what the trainer knows of; anything else ends the process."""
        try:
            return self._do(call)
        except RuntimeError as error:
            traceback.print_exc()
            lost = isinstance(error, InnerPeerLost) or is_peer_loss(error)
            if not lost and not isinstance(error, ANSWERED):
                raise
            failed = Failed(error=f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS], peer_lost=lost)
        # Out here nothing holds the frames of the failed call and with them the models.
        if failed.peer_lost:
            hang_up()
            self._leave()
        return failed

    def _do(self, call: m.Calls) -> Reply:
        match call:
            case m.Ping():
                return self._here
            case m.EnterWorld():
                self._enter(call)
                return self._here
            case m.LeaveWorld():
                self._leave()
                return m.Done()
            case m.BuildModels():
                self._build()
                return m.Done()
            case m.Restore():
                return self._restore(call)
            case m.KeepCopy():
                self._copy = state.HostCopy(self._ready, step=call.step)
                return m.Done()
            case m.Save():
                state.save(self._ready, Path(call.path), step=call.step)
                return m.Done()
            case m.Fingerprint():
                return m.Fingerprinted(place=self._ready.place, digest=state.fingerprint(self._ready))
            case m.RollOut():
                return m.RolledOut(batch=self._ready.roll_out(call.batch))
            case m.Update():
                return m.Updated(batch=self._ready.update(call.batch))

    @property
    def _here(self) -> m.Here:
        copied = self._copy.step if self._copy else None
        return m.Here(place=self._place, copy_step=copied, rendezvous=rendezvous(self._environment))

    @property
    def _ready(self) -> PpoEngine:
        assert self._engine is not None, "the controller builds models before it uses them"
        return self._engine

    def _enter(self, call: m.EnterWorld) -> None:
        settings = rank_settings(
            call.settings, mesh=call.mesh, rank=call.rank, generation=call.generation, store=call.store
        )
        renew_rendezvous(self._environment, rank=call.rank, world_size=call.mesh.size, store=call.store)
        self._world = _World(call, settings)
        enter_inner_world(settings, connect_store(settings))
        write_groups(self._debug_socket)
        self._place = call.mesh.at(call.rank)

    def _build(self) -> None:
        assert self._world is not None, "the controller enters a world first"
        assert self._place is not None, "the controller enters a world first"
        self._engine = PpoEngine(self._world.call.settings, self._world.settings.config, self._place, self._device)

    def _restore(self, call: m.Restore) -> Reply:
        engine = self._ready
        match call.source:
            case "initial":
                state.stand_at(engine, 0)
                return m.Restored(source="initial", step=0)
            case "memory":
                if self._copy is None or self._copy.step != call.step:
                    held = "no copy" if self._copy is None else f"a copy of step {self._copy.step}"
                    raise CatchUpFailed(f"asked for step {call.step} from memory, which holds {held}")
                self._copy.restore(engine)
                return m.Restored(source="memory", step=self._copy.step)
            case "storage":
                return m.Restored(source="storage", step=state.load(engine, Path(call.path)))

    def _leave(self) -> None:
        """Groups of a world with dead ranks do not end in good order; nothing depends on it."""
        if self._world is None:
            return
        self._engine = self._world = self._place = None
        gc.collect()  # Models and their groups refer to each other.
        for ending in (parallel_state.destroy_model_parallel, dist.destroy_process_group):
            try:
                ending()
            except (RuntimeError, AssertionError):
                traceback.print_exc()
        # Groups are named by a count which torch resets with the default group. A world that
        # was never entered has none, and its ranks would look for each other under other names.
        distributed_c10d._world.group_count = 0
