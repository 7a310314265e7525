"""What outlives a test: the rendezvous store and one rank host."""

import socket
import subprocess
import sys
import time
from pathlib import Path

from controlplane.protocol.store_keys import store_token

STORE_KEY = b"the store's key in these tests, 32 bytes or more"


class Node:
    """What outlives a test: the rendezvous store and a rank host with everything imported."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "store_key").write_bytes(STORE_KEY)
        self.store = subprocess.Popen(
            [sys.executable, "-m", "trainer.store", "--port", "0", "--key-file", str(folder / "store_key")],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.store.stdout is not None
        self.store_address = self.store.stdout.readline().split()[-1]
        self.host = subprocess.Popen(
            [sys.executable, "-m", "trainer.host", "--socket", str(folder / "host.sock"), "--job-id", "job_test"],
            stderr=(folder / "host.log").open("wb"),
        )

    def token(self, job_id: str) -> str:
        """The job's secret at the store."""
        return store_token(STORE_KEY, job_id)

    def connect(self) -> socket.socket:
        """A connection to the host; the newest replaces the one before."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        deadline = time.monotonic() + 60
        while True:
            try:
                connection.connect(str(self.folder / "host.sock"))
                return connection
            except OSError:
                assert time.monotonic() < deadline and self.host.poll() is None, "the rank host does not come up"
                time.sleep(0.02)

    def close(self) -> None:
        self.host.kill()
        self.store.kill()
        self.host.wait()
        self.store.wait()
