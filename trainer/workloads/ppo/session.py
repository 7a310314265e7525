"""A controller with what it needs around it: the imports, the rank processes.

For a process of its own without threads: everything here forks.
"""

import functools
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer.control.debug_common import FOLDER
from trainer.workloads.pool import RankPool
from trainer.workloads.ppo.controller import PpoController, StepResult
from trainer.workloads.ppo.messages import Calls, Replies
from trainer.workloads.ppo.settings import PpoSettings, check


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
    """A controller whose processes end with the block; logs, checkpoints and the processes'
    debug servers are in `folder`. Raises ConfigInvalid before anything is started."""
    check(settings)
    from trainer.workloads.ppo.worker import live

    body = functools.partial(live, debug_servers=folder / FOLDER)
    pool = RankPool(body, calls=Calls, replies=Replies, log_dir=folder / "logs")
    controller = PpoController(settings, pool, checkpoint_dir=folder / "checkpoints", on_step=on_step)
    try:
        yield controller
    finally:
        controller.close()
