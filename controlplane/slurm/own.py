"""The control plane of an allocation's own: what it is made of, and the files by which others get in.

Called by `guest` alone, on the first node.
"""

import contextlib
import ipaddress
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from controlplane.cli.config import write_file
from controlplane.config.guards import private_file
from controlplane.demo.config import DemoConfig, Outside
from controlplane.demo.installation import ADMIN, Installation
from controlplane.demo.ports import free_port
from controlplane.demo.supervisor import Supervisor
from controlplane.engines.slurm import tools
from controlplane.slurm import certificate

ROWS = Path("c") / "holdfast.sqlite3"
"""Of `config`'s folder."""
OWNER = ADMIN
"""Whose the job is: the only account there."""
TOKEN_S = 24 * 3600.0
ANYWHERE = "0.0.0.0/0,::/0"
EACH_INTERFACE = "0.0.0.0"  # noqa: S104 - where no address of the node's is known; TLS and tokens guard it


def config(folder: Path, *, node: str, shared: Path, checkpoints: Path) -> DemoConfig:
    """Rows, Redis and keys in `folder`, on the first node's own disk; `checkpoints`, which outlive it, and the
    certificate in folders that all nodes see. `node`: this one's name in Slurm."""
    host = tools.address_of(node)
    bind = bound_to(host)
    key = folder / "server.key"
    certificate.make(host, certificate=shared / "server.crt", key=key)
    outside = Outside(host=host, bind=bind, port=free_port(bind), certificate=shared / "server.crt", key=key)
    checkpoints.mkdir(exist_ok=True)
    return DemoConfig(
        directory=(folder / ROWS).parent,
        port=0,
        nodes=0,
        spare_nodes=0,
        server_env={"HOLDFAST_CHECKPOINT_ROOT": str(checkpoints)},
        outside=outside,
        demo=False,
    )


def bound_to(host: str) -> str:
    """The one address on which others find `host`, this machine: `host` itself, or what it resolves to here. Each
    interface (IPv4), where that is nothing, an address of loopback, or none of this machine's."""
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(host))
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        found = []
    addresses = [str(place[0]) for *_, place in found]
    return next(
        (each for each in addresses if not ipaddress.ip_address(each).is_loopback and _here(each)), EACH_INTERFACE
    )


def _here(address: str) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


@contextlib.contextmanager
def supervised(supervisor: Supervisor, say: Callable[[str], None]) -> Iterator[None]:
    """Whatever ends of it is started again, also while the caller waits for an answer of it. Nobody else may tick."""
    over = threading.Event()
    thread = threading.Thread(target=supervisor.run, args=(over.is_set, say), name="supervisor")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def adopt(installation: Installation, job_id: str, spec: Path) -> None:
    """The rows' job can start here: values of `env`, which were sealed with a key that is gone, come from the spec, and
    no attempt gets a number that one of an allocation that died had. Raises InstallationError."""
    installation.manage("adopt_job", job_id, str(spec))


def credentials(installation: Installation, shared: Path, *, uses: int) -> tuple[str, tuple[str, ...]]:
    """Write the files by which `uses` agents enrol, and by which the user's own `holdfast` and browser get in: the
    token of the latter, and what the user is to know. Raises InstallationError."""
    outside = installation.config.outside
    assert outside is not None, "made so"
    made = installation.manage(
        "create_join_token", "--cidr", ANYWHERE, "--uses", str(uses), "--ttl-s", f"{TOKEN_S:.0f}"
    ).split()
    private_file(shared / "join-token", made[-1])
    password = installation.one_time_password()
    token = installation.api_token("admin")
    url, ca = f"https://{outside.host}:{outside.port}", shared / "server.crt"
    private_file(shared / "page", f"{url}\nuser admin\nonce {password}\n")
    write_file(shared / "holdfast.toml", url=url, token=token)
    trusted, settings = f"SSL_CERT_FILE={ca}", f"HOLDFAST_CLI_CONFIG={shared}/holdfast.toml"
    return token, (
        f"Page {url}; its password, which works once, is in {shared}/page.",
        f"From a shell: {trusted} {settings} holdfast job ls",
    )
