"""A PostgreSQL server of our own, for a test run or a load test: a temporary cluster on a free loopback
port, without touching the system's. As root it runs as the unprivileged `nobody`."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from controlplane.demo.ports import free_port

# Tests kill processes, never the machine: what the server has not yet written it still holds.
WITHOUT_SYNC = ("-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off")
PROGRAMS = ("initdb", "postgres", "createdb", "pg_isready")


class MissingPostgres(RuntimeError):
    """No PostgreSQL server binaries on this machine."""


def find_binaries() -> Path:
    """The newest bin directory that has all the programs used here."""
    on_path = shutil.which("initdb")
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for place in places + ([Path(on_path).parent] if on_path else []):
        if all((place / program).exists() for program in PROGRAMS):
            return place
    raise MissingPostgres("no initdb found (apt-get install postgresql)")


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running server. `directory` holds its unix socket; `binaries` its client programs; `pid` of its first
    process."""

    binaries: Path
    directory: Path
    port: int
    pid: int = 0

    def url(self, database: str) -> str:
        """Of an empty database of that name, made for it."""
        create = [str(self.binaries / "createdb"), "-h", "127.0.0.1", "-p", str(self.port), "-U", "holdfast"]
        subprocess.run([*create, database], check=True, capture_output=True, cwd=self.directory)
        return f"postgresql://holdfast@127.0.0.1:{self.port}/{database}"


@contextlib.contextmanager
def private_postgres() -> Iterator[str]:
    """Yields the URL of an empty database `holdfast`; the cluster is removed afterwards."""
    with private_cluster("holdfast", passwords=False) as cluster:
        yield cluster.url("holdfast")


@contextlib.contextmanager
def private_cluster(superuser: str, *, passwords: bool, settings: tuple[str, ...] = WITHOUT_SYNC) -> Iterator[Cluster]:
    """A server with no database of ours yet. `passwords`: over TCP a role needs its own; on the unix
    socket nobody does. `settings`: more options of the server."""
    binaries = find_binaries()
    directory = Path(tempfile.mkdtemp(prefix="holdfast-postgres-"))
    as_user: list[str] = []
    if os.geteuid() == 0:
        as_user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        os.chown(directory, 65534, 65534)
        directory.chmod(0o711)
    port = free_port("127.0.0.1")
    data = directory / "data"
    initdb = [str(binaries / "initdb"), "-D", str(data), "-U", superuser, "-E", "UTF8", "--no-sync"]
    initdb += ["--auth-local=trust", f"--auth-host={'scram-sha-256' if passwords else 'trust'}"]
    subprocess.run([*as_user, *initdb], check=True, capture_output=True, cwd=directory)
    options = ["-c", "listen_addresses=127.0.0.1", "-c", f"port={port}", "-c", f"unix_socket_directories={directory}"]
    with (directory / "log").open("wb") as output:
        server = subprocess.Popen(
            [*as_user, str(binaries / "postgres"), "-D", str(data), *options, *settings],
            stdout=output,
            stderr=output,
            cwd=directory,
            # Ctrl-C at a terminal is for who started it, who then ends what uses this server before it.
            start_new_session=True,
        )
        try:
            _wait_ready(binaries, port)
            yield Cluster(binaries, directory, port, server.pid)
        finally:
            server.terminate()
            try:
                server.wait(timeout=10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
            shutil.rmtree(directory, ignore_errors=True)


def _wait_ready(binaries: Path, port: int) -> None:
    ready = [str(binaries / "pg_isready"), "-h", "127.0.0.1", "-p", str(port), "-t", "15"]
    for _ in range(60):
        if subprocess.run(ready, capture_output=True, check=False).returncode == 0:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(["sleep", "0.25"], timeout=2, check=False)
    raise MissingPostgres("the private PostgreSQL did not become ready in 15 s")
