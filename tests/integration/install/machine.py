"""Two machines in one directory, on which the install page is followed: `server` and `node`.

`/opt`, `/etc` and `/var` of each are below its folder; one substitution maps the page's blocks and
the files of `deploy/` that they install alike: paths, ports, names, the probe, and users, as all
runs as the user of the test. `apt-get` and `adduser` do nothing; `python3 -m venv` and `pip` are
`packages`; `systemctl` is `units`. Everything else in a block is done by bash as it stands.
"""

import grp
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from controlplane.demo.ports import free_port
from controlplane.demo.private_postgres import Cluster
from tests.integration.install.units import Units

ROOT = Path(__file__).resolve().parents[3]
BLOCK_TIMEOUT_S = 180.0
PAGE = ROOT / "docs" / "install.md"
_BLOCK = re.compile(r"^```sh (server|node)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SYSTEM = r"(?<![\w.}-])/(opt|etc/(?:holdfast|redis|nginx|systemd)|var/(?:lib/holdfast|backups)|usr/local/s?bin)\b"
_COPIED = ("controlplane", "agents", "trainer", "deploy", "docs", "examples", "requirements")
_FILES = ("manage.py", "pyproject.toml", "README.md", "LICENSE")
_IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc", "secrets")


class Failed(AssertionError):
    """A block of the page did not do what it should."""


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: on which machine, from which line of the page, what."""

    role: str
    line: int
    text: str


def blocks() -> list[Block]:
    """Those of the page, in order. Raises AssertionError where one has no machine."""
    page = PAGE.read_text(encoding="ascii")
    found = [Block(m[1], page[: m.start()].count("\n") + 1, m[2]) for m in _BLOCK.finditer(page)]
    assert 2 * len(found) == len(re.findall(r"^```", page, re.MULTILINE)), "a block says neither server nor node"
    return found


class Site:
    """The two machines, their PostgreSQL, and what was printed on them."""

    def __init__(self, directory: Path, cluster: Cluster) -> None:
        self.directory, self.cluster = directory, cluster
        self.ports = {name: free_port("127.0.0.1") for name in ("web-1", "web-2", "tls", "redis", "store")}
        self.units = Units(directory)
        self.said: list[tuple[Block, str]] = []
        for role in ("server", "node"):
            for place in ("etc/systemd/system", "etc/redis", "etc/nginx/conf.d", "usr/local/sbin", "usr/local/bin"):
                (directory / role / place).mkdir(parents=True)
            (directory / role / "home").mkdir()
            (directory / role / "var/lib").mkdir(parents=True)
            self._check_out(role)
        self._packaged_configuration()
        self._write_stand_ins()

    @property
    def url(self) -> str:
        """Of the proxy."""
        return f"https://localhost:{self.ports['tls']}"

    def mapped(self, text: str, role: str) -> str:
        """Text of the page, or of a file that it installs, as it reads on this machine."""
        here, group = self.directory / role, grp.getgrgid(os.getgid()).gr_name
        tls, store = self.ports["tls"], self.ports["store"]
        policy = here / "etc/holdfast/agent-policy.toml"
        for pattern, value in (
            (r"scp holdfast\.example\.org:(/\S+)", rf"cp {self.directory}/server\1"),
            (r"(https|wss)://holdfast\.example\.org", rf"\1://localhost:{tls}"),
            (r"holdfast\.example\.org", "localhost"),
            (r"listen 443 ssl", f"listen 127.0.0.1:{tls} ssl"),
            (r"\b8001\b", str(self.ports["web-1"])),
            (r"\b8002\b", str(self.ports["web-2"])),
            (r"127\.0\.0\.1:5432", f"127.0.0.1:{self.cluster.port}"),
            (r"127\.0\.0\.1:6379", f"127.0.0.1:{self.ports['redis']}"),
            (r"192\.0\.2\.10:29400", f"127.0.0.1:{store}"),
            (r"--host 0\.0\.0\.0 --port 29400", f"--host 127.0.0.1 --port {store}"),
            (r"HOLDFAST_METRICS_BIND=\S+", "HOLDFAST_METRICS_BIND=127.0.0.1:0"),
            (r"--probe nvml", f"--probe simulated --devices 2 --metrics-bind 127.0.0.1:0 --policy-file {policy}"),
            (r"10\.0\.0\.0/8", "127.0.0.0/8"),
            (r" --owner=\w+ --group=\w+", ""),
            (r"setpriv --reuid=holdfast --regid=holdfast --init-groups -- ", ""),
            (r'checkpoint_group = "holdfast"', f'checkpoint_group = "{group}"'),
            (r'map = \{ ada = "ada" \}\ndefault = "refuse"', 'default = "agent"'),
            (r"nginx -t", f"nginx -t -c {here}/etc/nginx/nginx.conf"),
            (r"--directory / ", f"--directory {here} "),
            (r"(?<![\w.}-])/var/lib/holdfast-checkpoints", f"{self.directory}/checkpoints"),
            (_SYSTEM, rf"{here}/\1"),
        ):
            text = re.sub(pattern, value, text)
        return text

    def follow(self, block: Block) -> None:
        """Do it. Raises Failed with what it printed."""
        pending: list[str] = []
        for line in [*self.mapped(block.text, block.role).splitlines(), "systemctl daemon-reload"]:
            if not line.startswith("systemctl "):
                pending.append(line)
                continue
            self._shell(block, "\n".join(pending))
            pending = []
            self.units.control(block.role, line.split()[1:])

    def _shell(self, block: Block, text: str) -> None:
        if not text.strip():
            return
        here = self.directory / block.role
        path = [self.directory / "bin", here / "usr/local/sbin", here / "usr/local/bin", self.cluster.binaries]
        command = ["timeout", str(BLOCK_TIMEOUT_S), "bash", "-euo", "pipefail", "-c", text]
        done = subprocess.run(
            command,
            cwd=here / "checkout",
            env={"PATH": ":".join([*map(str, path), "/usr/sbin:/usr/bin:/sbin:/bin"]), "HOME": str(here / "home")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        self.said.append((block, done.stdout))
        if done.returncode:
            where = f"docs/install.md, the block at line {block.line}, on the {block.role}"
            last = " / ".join(done.stdout.splitlines()[-2:])
            raise Failed(
                f"{where}: exit status {done.returncode}: {last}\n{text}\n---\n{done.stdout}\n{self.units.tails()}"
            )

    def printed(self, part: str) -> str:
        """What the blocks with `part` in them printed."""
        return "\n".join(said for block, said in self.said if part in block.text)

    def close(self) -> None:
        """End the services, then what their agent left running: all that names this directory."""
        self.units.close()
        mark = os.fsencode(self.directory)
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                ours = mark in (entry / "cmdline").read_bytes() or mark in (entry / "environ").read_bytes()
                if ours and int(entry.name) != os.getpid():
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                continue

    def _check_out(self, role: str) -> None:
        """The checkout, with the files of `deploy/` as they read on this machine."""
        target = self.directory / role / "checkout"
        for name in _COPIED:
            shutil.copytree(ROOT / name, target / name, ignore=_IGNORED)
        for name in _FILES:
            shutil.copy2(ROOT / name, target / name)
        for path in [*(target / "deploy" / "systemd").iterdir(), target / "deploy" / "nginx.conf"]:
            path.write_text(self.mapped(path.read_text(encoding="ascii"), role), encoding="ascii")

    def _packaged_configuration(self) -> None:
        """What Debian's packages bring, as far as it matters here."""
        here, etc = self.directory / "server", self.directory / "server" / "etc"
        lines = ["bind 127.0.0.1", f"port {self.ports['redis']}", f"dir {here}", 'save ""']
        (etc / "redis" / "redis.conf").write_text("\n".join([*lines, ""]))
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        places = " ".join(f"{kind}_temp_path {here}/{kind};" for kind in kinds)
        (etc / "nginx" / "nginx.conf").write_text(
            f"daemon off; pid {here}/nginx.pid; error_log {here}/nginx.log; worker_processes 1;\n"
            f"events {{}}\nhttp {{ access_log off; {places} include {etc}/nginx/conf.d/*.conf; }}\n"
        )

    def _write_stand_ins(self) -> None:
        folder = self.directory / "bin"
        folder.mkdir()
        as_postgres = f"PGHOST={self.cluster.directory} PGPORT={self.cluster.port} PGUSER=postgres"
        for name, text in {
            "apt-get": "exit 0",
            "adduser": "exit 0",
            "runuser": f'shift 3; exec env {as_postgres} "$@"',
            "python3": f"[ \"$1 $2\" = '-m venv' ] && PYTHONPATH='{ROOT}' exec '{sys.executable}' "
            '-m tests.integration.install.packages venv "$3"',
        }.items():
            (folder / name).write_text(f"#!/bin/sh\n{text}\n")
            (folder / name).chmod(0o755)
