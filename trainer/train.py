"""A rank's life: build, say hello, train, leave with an exit code that says why.

Called in the forked child of a rank host, or as `python -m trainer.train` where the host
could not fork. It owns the order in which the parts come up: the control link only when
Megatron is built and the rank can take a view.
"""

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable

from controlplane.protocol import first_use
from trainer import device
from trainer.config import RankSettings, fork_from_environment, from_fork
from trainer.errors import TrainerError
from trainer.exits import ExitCode
from trainer.priority import lower_session

DRAIN_S = 5.0
TRANSPORTS = ("third_party/gloo", "NCCL error", "ProcessGroupNCCL")


def run(settings: RankSettings) -> ExitCode:
    """Build everything and train. Raises TrainerError and whatever the job's code raises."""
    # Megatron is imported here: in the host it is in memory already, in a spawned rank
    # `main` has to prepare the device first.
    from trainer.assemble import assemble, control
    from trainer.control.debug_common import debug_socket_path
    from trainer.control.debug_server import open_debug_server, write_groups
    from trainer.control.preemption import Preemption

    first_use.prepare()
    preemption = Preemption()
    preemption.listen()
    debug_socket = debug_socket_path(settings.agent_socket, os.getpid())
    open_debug_server(debug_socket)
    controls = control(
        settings,
        preemption,
        on_evicted=lambda order: leave(ExitCode.EVICTED, f"evicted in epoch {order.epoch}: {order.reason}"),
    )
    loop = assemble(settings, controls)
    write_groups(debug_socket)
    lower_session()
    controls.link.start()
    code = loop.run()
    controls.link.drain(DRAIN_S)
    return code


def leave(code: ExitCode, reason: str) -> None:
    """End the process now, its writers first. Callable from any thread; never returns.

    No interpreter shutdown: destructors of stuck process groups would block it.
    """
    print(f"leaving with {int(code)} ({code.name.lower()}): {reason}", file=sys.stderr, flush=True)
    if threading.current_thread() is threading.main_thread():
        # torch's data loader raises from its SIGCHLD handler when a worker is killed.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for child in multiprocessing.active_children():
        if child.pid is not None:
            _kill(child.pid)
    sys.stdout.flush()
    os._exit(int(code))


def guarded(body: Callable[[], ExitCode]) -> None:
    """Run `body` and leave with the code it returns or its error names. Never returns."""
    try:
        code = body()
        reason = "finished"
    except TrainerError as error:
        traceback.print_exc()
        code, reason = error.exit_code, str(error)
    except BaseException as error:  # The process ends here; the agent reports the code and the log's tail.
        traceback.print_exc()
        code, reason = ExitCode.INNER_PEER_LOST if is_peer_loss(error) else ExitCode.INTERNAL, repr(error)
    leave(code, reason)


def is_peer_loss(error: BaseException) -> bool:
    """Inside Megatron's schedule a lost peer is a bare RuntimeError that names its transport."""
    return isinstance(error, RuntimeError) and any(name in str(error) for name in TRANSPORTS)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def main() -> None:
    """Entry of a spawned rank."""
    device.prepare_import()
    guarded(lambda: run(from_fork(fork_from_environment())))


if __name__ == "__main__":
    main()
