"""The inner world: one replica's ranks as a torch.distributed world of their own.

Megatron sees the replica's own data-parallel ranks only and is never rebuilt by another
replica's failure. `Votes` are the replica's small agreements; all of its ranks pass each of them
in the same order, and one that fails means a rank of the replica is gone.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel

from controlplane.protocol.store_keys import store_prefix
from trainer import device
from trainer.config import RankSettings, store_address
from trainer.errors import InnerPeerLost, SetupFailed

STORE_TIMEOUT_S = 60.0


def connect_store(settings: RankSettings) -> dist.Store:
    """The job's part of the rendezvous store: every key begins with its secret, so that what is
    asked for is its own (`protocol.store_keys`). Raises SetupFailed."""
    host, port = store_address(settings.config)
    prefix = store_prefix(settings.ref.job_id, settings.config.store_token)
    try:
        client = dist.TCPStore(
            host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=STORE_TIMEOUT_S)
        )
    except dist.DistError as error:
        raise SetupFailed(f"rendezvous store {settings.config.store}: {error}") from error
    return dist.PrefixStore(prefix, client)


def port_of(store: dist.Store) -> int:
    """Where the store listens, whatever prefixes are around its client."""
    client: dist.Store = getattr(store, "_underlying_non_prefix_store", store)
    assert isinstance(client, dist.TCPStore), "the rendezvous store is reached over TCP"
    return client.port


def enter_inner_world(settings: RankSettings, store: dist.Store) -> None:
    """Build the world and Megatron's groups. Raises SetupFailed."""
    ref, layout = settings.ref, settings.config.parallelism
    prefix = f"inner/{ref.job_id}/{ref.attempt}/{ref.replica}/{ref.incarnation}"
    timeout = timedelta(seconds=settings.config.inner_timeout_s)
    try:
        dist.init_process_group(
            device.backend(),
            store=dist.PrefixStore(prefix, store),
            rank=ref.rank,
            world_size=settings.world_size,
            timeout=timeout,
        )
        parallel_state.initialize_model_parallel(
            layout.tp,
            layout.pp,
            virtual_pipeline_model_parallel_size=layout.vp if layout.vp > 1 else None,
            context_parallel_size=layout.cp,
            expert_model_parallel_size=layout.ep,
            create_gloo_process_groups=False,
            distributed_timeout_minutes=settings.config.inner_timeout_s / 60.0,
        )
    except RuntimeError as error:
        raise SetupFailed(f"inner world of replica {ref.replica}.{ref.incarnation}: {error}") from error
    tensor_parallel.model_parallel_cuda_manual_seed(
        settings.config.training.seed, inference_rng_tracker=True, force_reset_rng=True
    )


class Votes:
    """Agreements among the ranks of my replica, on CPU tensors over gloo."""

    def __init__(self) -> None:
        self.size = dist.get_world_size()
        self._group = dist.group.WORLD if device.backend() == "gloo" else dist.new_group(backend="gloo")

    def all(self, mine: bool) -> bool:
        """True when every rank says so."""
        return self.counts([mine])[0] == self.size

    def any(self, mine: bool) -> bool:
        """True when some rank says so."""
        return self.counts([mine])[0] > 0

    def counts(self, mine: Sequence[bool]) -> list[int]:
        """For each flag, how many ranks raise it. Raises InnerPeerLost."""
        tally = torch.tensor([int(flag) for flag in mine])
        self._run(lambda: dist.all_reduce(tally, group=self._group))
        return [int(count) for count in tally]

    def same(self, number: int, *, idle: Callable[[], None]) -> bool:
        """True when every rank brings the same number; `idle` runs while waiting, so that
        a rank here still answers views that its peers are held up by."""
        bounds = torch.tensor([number, -number])
        work = self._run(lambda: dist.all_reduce(bounds, op=dist.ReduceOp.MAX, group=self._group, async_op=True))
        while not work.is_completed():
            idle()
        self._run(work.wait)
        return bool(bounds[0] == -bounds[1])

    @staticmethod
    def _run(operation: Callable[[], Any]) -> Any:
        try:
            return operation()
        except RuntimeError as error:
            raise InnerPeerLost(f"a rank of my replica is gone: {error}") from error
