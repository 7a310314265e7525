"""The rendezvous store as its own small process: `python -m trainer.store --host H --port N`.

Neither the control plane nor a rank holds it: its loss blocks view changes only, and the
groups that exist go on. Prints one line, `store ready HOST:PORT`, then sleeps until SIGTERM.

torch asks for the name of each peer that connects, in the thread that serves them all, and
uses it for its log only: one lost answer of a name server held up every rank for 5 s. Given
an address, the store asks no name server.
"""

import os

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "error")  # Else it tells of each name it did not get.

import argparse
import ipaddress
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
    os.environ.setdefault("RES_OPTIONS", "attempts:0" if _is_address(options.host) else "timeout:1 attempts:3")
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


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


if __name__ == "__main__":
    main()
