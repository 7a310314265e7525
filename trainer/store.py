"""The rendezvous store as its own small process: `python -m trainer.store --host H --port N`.

Neither the control plane nor a rank holds it: its loss blocks view changes only, and the
groups that exist go on. Prints one line, `store ready HOST:PORT`, then sleeps until SIGTERM.
"""

import argparse
import signal
from datetime import timedelta

from torch.distributed import TCPStore

TIMEOUT_S = 60.0


def main() -> None:
    """Serve until a signal comes. Port 0 takes a free one."""
    parser = argparse.ArgumentParser(description="Rendezvous store of a job's process groups.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    store = TCPStore(
        options.host,
        options.port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    print(f"store ready {options.host}:{store.port}", flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    main()
