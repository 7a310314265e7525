"""Starting the hooks: from the agent's environment to a `Run`, once a process."""

import os
import signal
import sys
import threading

from controlplane.protocol.rank import Evicted
from controlplane.protocol.states import Phase, Section
from trainer.config import HookSettings, has_agent, hook_settings
from trainer.control.faults import Faults
from trainer.control.link import ControlLink
from trainer.control.preemption import Preemption, shield_children
from trainer.control.progress import Progress
from trainer.errors import ConfigInvalid
from trainer.exits import ExitCode
from trainer.hooks.agreement import Agree, any_rank
from trainer.hooks.debug_server import open_debug_server
from trainer.hooks.orders import AnsweringMailbox
from trainer.hooks.run import Control, Run
from trainer.hooks.saves import Saves

_started: Run | None = None
_lock = threading.Lock()


def start(*, agree: Agree = any_rank, signals: bool = True) -> Run:
    """Connect to the agent that started this process; without one, a `Run` that does nothing.

    `agree` lets the ranks agree on orders (default: one small all-reduce over the default
    group of torch.distributed). `signals`: remember SIGTERM for `Run.wanted` and dump all
    stacks on SIGUSR2; False where the program has handlers of its own. Never raises, never
    waits; a second call returns the first one's `Run`.
    """
    global _started
    with _lock:
        if _started is None:
            _started = Run(None)
            try:
                settings = hook_settings()
                if settings is not None:
                    _started = _connect(settings, agree, signals=signals)
            except (ConfigInvalid, OSError, RuntimeError) as error:
                print(f"holdfast hooks: off, {error}", file=sys.stderr, flush=True)
        return _started


def shield_worker(_worker: int = 0) -> None:
    """`worker_init_fn` for data-loader workers that neither fork nor `multiprocessing` starts,
    which are shielded by `start`: a preemption's SIGTERM reaches the whole process group, and
    the save needs them alive. They end with their loader, or with the program."""
    if has_agent():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _connect(settings: HookSettings, agree: Agree, *, signals: bool) -> Run:
    ref = settings.ref
    first = settings.config.resume.step if settings.config.resume else 0
    progress = Progress(step=first)
    progress.enter(Section.SETUP, Phase.BUILDING, step=first, epoch=0)
    preemption = Preemption()
    if signals and threading.current_thread() is threading.main_thread():
        preemption.listen()
    else:
        shield_children()
    mailbox = AnsweringMailbox(
        ref, started_at=first, send=lambda said: link.send(said), on_installed=lambda epoch: run.installed(epoch)
    )
    link = ControlLink(
        ref,
        os.getpid(),
        path=settings.agent_socket,
        mailbox=mailbox,
        progress=progress,
        faults=Faults(allowed=False),
        on_evicted=_leave_evicted,
    )
    saves = Saves(ref, settings.config, link.send)
    saves.enter(0)
    run = Run(
        Control(
            settings=settings,
            link=link,
            mailbox=mailbox,
            progress=progress,
            preemption=preemption,
            saves=saves,
            agree=agree,
        )
    )
    link.start()
    try:
        open_debug_server(settings.agent_socket)
    except OSError as error:
        print(f"holdfast hooks: no debug server: {error}", file=sys.stderr, flush=True)
    return run


def _leave_evicted(order: Evicted) -> None:
    """Somebody else may have this place already: end here and now, whatever the loop is stuck in."""
    print(f"holdfast hooks: evicted in epoch {order.epoch}: {order.reason}", file=sys.stderr, flush=True)
    os._exit(ExitCode.EVICTED)
