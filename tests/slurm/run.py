"""One submission of `holdfast slurm submit` by a user without rights, as its user sees it."""

import copy
import json
import pwd
import re
import ssl
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from controlplane.slurm import places
from tests.house.tree import ROOT
from tests.slurm.cluster import NODES, USER, Cluster

START_S, END_S = 120.0, 200.0
PYTHON = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "HOLDFAST_TRAINER_NICE": "3"}


class Run:
    """One submission: what its user sees of it. `settings`: of the user's environment."""

    def __init__(
        self, cluster: Cluster, spec: dict[str, Any], *options: str, settings: dict[str, str] | None = None
    ) -> None:
        self.cluster = cluster
        path = cluster.folder / f"{spec['metadata']['name']}.yaml"
        path.write_text(yaml.safe_dump(spec))
        path.chmod(0o644)
        done = cluster.as_user(
            sys.executable, "-m", "controlplane.cli", "slurm", "submit", str(path), "--nodes", "3", "--spares", "1",
            "--probe", "simulated", "--directory", str(cluster.folder / "runs"), *options,
            environment=PYTHON | (settings or {}),
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        self.ids = done.stdout.split()
        assert self.ids and all(re.fullmatch(r"\d+", name) for name in self.ids), done.stdout
        self._is(self.ids[0])

    def _is(self, name: str) -> None:
        self.id = name
        self.directory = self.cluster.folder / "runs" / name

    def next(self) -> "Run":
        """The allocation of the same submission that comes after this one."""
        other = copy.copy(self)
        other._is(self.ids[self.ids.index(self.id) + 1])
        return other

    @property
    def output(self) -> str:
        """Of the batch script so far."""
        path = self.directory.parent / f"slurm-{self.id}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def ask(self, path: str) -> Any:
        """The allocation's own server, over TLS, with the credentials that the user has."""
        text = (self.directory / "holdfast.toml").read_text()
        url, token = re.findall(r'^(?:url|token) = "(.*)"$', text, re.MULTILINE)
        trusted = ssl.create_default_context(cafile=self.directory / "server.crt")
        request = urllib.request.Request(f"{url}/api/v1{path}", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=20, context=trusted) as answer:
            return json.load(answer)

    def wait(self, what: str, ask: Callable[[], Any], *, timeout_s: float = START_S) -> Any:
        """Until it is so; a server that does not answer is asked again, a batch job that has ended is not."""

        def found() -> Any:
            assert self.state() in ("PENDING", "RUNNING"), f"{what}: {self.state()}\n{self.evidence()}"
            try:
                return ask()
            except (OSError, ValueError):
                return None

        try:
            return self.cluster.wait(what, found, timeout_s=timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.evidence()}") from error

    def agent(self, node: str) -> int:
        """The pid of the node's agent; 0: there is none."""
        wanted = f" -m agents --server wss://127.0.0.1:{self.port()} ", f" --name {node} "
        found = (pid for pid, line in processes() if all(part in line for part in wanted))
        return next(found, 0)

    def port(self) -> str:
        """Of the allocation's own server."""
        return (self.directory / "page").read_text().split("\n")[0].rpartition(":")[2]

    def job(self) -> dict[str, Any]:
        jobs = self.ask("/jobs")["items"]
        return self.ask(f"/jobs/{jobs[0]['id']}") if jobs else {}

    def trains(self, step: int) -> dict[str, Any]:
        """The job once it has committed that many steps."""
        reached = lambda: job if (job := self.job()).get("committed_step", 0) >= step else None  # noqa: E731
        return self.wait(f"step {step}", reached)  # type: ignore[no-any-return]

    def said(self) -> dict[str, str]:
        """`scontrol show job`."""
        return dict(re.findall(r"(\w+)=(\S*)", self.cluster.run("scontrol", "--oneliner", "show", "job", self.id)))

    def state(self) -> str:
        return self.said()["JobState"]

    def ended(self, *, timeout_s: float = END_S) -> int:
        """The exit code of the batch script, once no node has anything of it."""
        over = lambda: self.state() not in ("PENDING", "RUNNING", "COMPLETING")  # noqa: E731
        try:
            self.cluster.wait("the batch job has ended", over, timeout_s=timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.evidence()}") from error
        return int(self.said()["ExitCode"].partition(":")[0])

    def evidence(self) -> str:
        """What is to be known of a run that went wrong."""
        logs = {path.name: path.read_text(errors="replace")[-1500:] for path in self.directory.rglob("*.log")}
        return f"{self.output[-3000:]}\n" + "\n".join(f"--- {name}\n{text}" for name, text in sorted(logs.items()))


def processes() -> list[tuple[int, str]]:
    """(pid, command line) of the user who submits; all of them are of his jobs."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and entry.stat().st_uid == pwd.getpwnam(USER).pw_uid:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found.append((int(entry.name), line))
        except OSError:
            continue
    return [(pid, line) for pid, line in found if line]


def assert_nothing_is_left(cluster: Cluster) -> None:
    cluster.wait("all nodes are idle again", lambda: cluster.idle() == len(NODES), timeout_s=30)
    assert processes() == []
    assert not places.ROOT.joinpath(f"hf-{pwd.getpwnam(USER).pw_uid}").exists()
