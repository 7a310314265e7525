"""What `systemctl` does on the machines of the install page: units are parsed and run as they stand.

Of a unit are honoured what it starts, where, with which environment, umask and state directory.
Its users and what systemd alone can do (isolation, restarts) are not. `redis-server` and `nginx`
are the packages' own units: the program with the configuration of `/etc`.
"""

import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from tests.integration.backend.servers import _die_with_parent

STOP_S = 20.0
_VARIABLE = re.compile(r"\$\{(\w+)\}")


def settings(path: Path) -> dict[str, str]:
    """Of a unit: key to value; of an environment file likewise."""
    lines = [line for line in path.read_text(encoding="ascii").splitlines() if not line.startswith(("#", "["))]
    return dict(line.split("=", 1) for line in lines if "=" in line)


class Units:
    """The services of the machines below `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.running: dict[tuple[str, str], subprocess.Popen[bytes]] = {}
        self.started: set[str] = set()

    def control(self, role: str, words: list[str]) -> None:
        """`enable --now UNIT...`, `start`, `restart`, `reload`, `stop`, `daemon-reload`."""
        verb, names = words[0], [word for word in words[1:] if word != "--now"]
        for name in names:
            if verb == "reload" and (role, name) in self.running:
                self.running[role, name].send_signal(signal.SIGHUP)
                continue
            if verb in ("stop", "restart"):
                self.stop(role, name)
            if verb in ("enable", "start", "restart", "reload"):
                self.start(role, name)

    def start(self, role: str, name: str) -> None:
        """As the unit says."""
        here = self.directory / role
        base = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(here / "home"), "LANG": "C.UTF-8"}
        packaged = {
            "redis-server": ["redis-server", f"{here}/etc/redis/redis.conf"],
            "nginx": ["nginx", "-c", f"{here}/etc/nginx/nginx.conf"],
        }
        if name in packaged:
            argv, cwd, umask = packaged[name], here, 0o022
            argv[0] = shutil.which(argv[0]) or f"/usr/sbin/{argv[0]}"
        else:
            template, _, instance = name.partition("@")
            file = f"{template}@.service" if instance else f"{name}.service"
            unit = settings(here / "etc/systemd/system" / file)
            self.started.add(file)
            own = settings(Path(unit["EnvironmentFile"])) if "EnvironmentFile" in unit else {}
            base |= own
            words = shlex.split(unit["ExecStart"].replace("%i", instance).replace("%H", socket.gethostname()))
            argv = [_VARIABLE.sub(lambda match: own[match[1]], word) for word in words]
            cwd, umask = Path(unit["WorkingDirectory"]), int(unit.get("UMask", "0022"), 8)
            if "StateDirectory" in unit:
                (here / "var/lib" / unit["StateDirectory"]).mkdir(mode=0o700, exist_ok=True)
        with (here / f"{name}.log").open("ab") as log:
            self.running[role, name] = subprocess.Popen(
                argv, cwd=cwd, env=base, umask=umask, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, preexec_fn=_die_with_parent,
            )  # fmt: skip
        self._until_ready(here, name)

    def _until_ready(self, here: Path, name: str) -> None:
        """The packages' own units count as started once they accept (`Type=notify`, `forking`)."""
        written = {"redis-server": (here / "redis-server.log", "Ready to accept"), "nginx": (here / "nginx.pid", "")}
        path, word = written.get(name, (None, ""))
        process, give_up_s = self.running[here.name, name], time.monotonic() + STOP_S
        while path and process.poll() is None and time.monotonic() < give_up_s:
            if path.exists() and word in path.read_text(errors="replace").rpartition("starting")[2]:
                return
            time.sleep(0.05)

    def stop(self, role: str, name: str) -> None:
        """SIGTERM to its main process; after a while SIGKILL to all of it."""
        process = self.running.pop((role, name), None)
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def close(self) -> None:
        """Stop all: what asks before what is asked."""
        for role, name in reversed(list(self.running)):
            self.stop(role, name)

    def ended(self) -> list[str]:
        """Services that should run and do not."""
        return [name for (_, name), process in self.running.items() if process.poll() is not None]

    def tails(self, lines: int = 15) -> str:
        """The ends of all logs, for failure messages."""
        logs = sorted(self.directory.glob("*/*.log"))
        parts = [f"--- {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) for log in logs]
        return "\n".join(parts)
