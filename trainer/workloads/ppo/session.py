"""A controller with what it needs around it: the imports, the store, the rank processes.

For a process of its own without threads: everything here forks.
"""

import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer.workloads.pool import RankPool
from trainer.workloads.ppo.controller import PpoController, StepResult
from trainer.workloads.ppo.messages import Calls, Replies
from trainer.workloads.ppo.settings import PpoSettings, check

HOST = "127.0.0.1"


def import_everything() -> float:
    """What every rank needs, once, before any fork. Returns seconds."""
    began_s = time.monotonic()
    import torch

    torch.set_num_threads(1)
    from trainer import device

    device.prepare_import()
    # The first model built in a process would import these, in every rank anew.
    import torch._dynamo

    import trainer.workloads.ppo.worker  # noqa: F401

    # What is imported stays: no collection in a rank looks at it or copies its pages.
    gc.collect()
    gc.freeze()
    return time.monotonic() - began_s


@contextmanager
def session(
    settings: PpoSettings, folder: Path, *, on_step: Callable[[StepResult], None] = lambda _result: None
) -> Iterator[PpoController]:
    """A controller whose ranks and store end with the block; logs and checkpoints stay in
    `folder`. Raises ConfigInvalid before anything is started."""
    check(settings)
    from trainer.workloads.ppo.worker import live

    with _store() as store:
        pool = RankPool(live, calls=Calls, replies=Replies, log_dir=folder / "logs")
        try:
            yield PpoController(settings, pool, store=store, checkpoint_dir=folder / "checkpoints", on_step=on_step)
        finally:
            pool.close()


@contextmanager
def _store() -> Iterator[str]:
    """host:port of a rendezvous store in a process of its own."""
    from trainer.store import serve

    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            serve(HOST, 0, lambda port: os.close(into) if os.write(into, str(port).encode()) else None)
        finally:
            os._exit(0)
    os.close(into)
    try:
        with os.fdopen(out) as ready:
            yield f"{HOST}:{int(ready.read())}"
    finally:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
