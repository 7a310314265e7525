"""What a batch script of `holdfast slurm submit` becomes on the first node: the whole run of one job in one allocation.

1. A control plane of the allocation's own (the starter of `make demo`, without its agents), where none is named.
2. The agents: one step of one task a node (`script.srun`, `node`), which enrol by a join token over TLS.
3. The job is submitted once enough nodes are here, and followed.
4. The end: when the job has ended, or the agents have left because Slurm takes the nodes back. What was found is kept
   in the allocation's folder, everything that was started is ended, and the exit code says how it came out.

SIGTERM and SIGUSR1 end nothing here: this process outlives the agents, to which Slurm gives the same signal.
"""

import argparse
import contextlib
import ipaddress
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from controlplane.cli.config import load, write_file
from controlplane.cli.exits import Exit
from controlplane.config.guards import private_file
from controlplane.demo.config import DemoConfig, Outside
from controlplane.demo.installation import Installation, InstallationError
from controlplane.demo.ports import MissingProgram, free_port
from controlplane.policy.facts import TERMINAL_JOB
from controlplane.protocol.plain import shown
from controlplane.sdk import Client
from controlplane.sdk.errors import ApiError, SdkError
from controlplane.slurm import certificate, places, tools
from controlplane.slurm.environment import NoAllocation, read
from controlplane.slurm.script import srun
from controlplane.slurm.verdict import verdict

NODES_TIMEOUT_S = 180.0
SPARES_TIMEOUT_S = 30.0
CERTIFICATES_TIMEOUT_S = 300.0
SETTLES_S = 10.0
WAITS = frozenset({"pending", "preempted"})
LEAVE_S = 20.0
TOKEN_S = 24 * 3600.0
POLL_S, TICK_S = 1.0, 0.1
ANYWHERE = "0.0.0.0/0,::/0"
ENDS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class GuestError(RuntimeError):
    """The run cannot begin; the text says why, and what to do."""


class Server:
    """The control plane: `agents_url` for agents, `client` for us, and what keeps it running."""

    def __init__(self, client: Client, agents_url: str, *, token: Path, ca: Path | None, suffix: str) -> None:
        self.client, self.agents_url = client, agents_url
        self.token_file, self.ca_file, self.suffix = token, ca, suffix
        self.tick: Callable[[], None] = lambda: None


class Guest:
    """One run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._here, self._directory = read(), options.directory
        self._agents: subprocess.Popen[bytes] | None = None
        self._asked = False

    def run(self) -> int:
        """The exit code of the batch script."""
        for number in ENDS:
            signal.signal(number, self._on_signal)
        os.umask(0o077)
        (self._directory / "logs").mkdir(parents=True, exist_ok=True)
        try:
            with self._server() as server:
                try:
                    return self._train(server)
                finally:
                    self._leave(server)
        except (GuestError, InstallationError, MissingProgram, places.PlaceError, SdkError, OSError) as error:
            say(f"It could not run: {error}")
            return Exit.UNAVAILABLE

    def _train(self, server: Server) -> int:
        self._start_agents(server)
        self._await_nodes(server)
        job = server.client.jobs.submit((self._directory / "job.yaml").read_bytes())
        say(f"Submitted {job.name} ({job.id}).")
        job = self._follow(server, job.id)
        try:
            self._await_certificates(server, job.id)
            self._keep(server, job.id)
        except (SdkError, OSError) as error:
            say(f"What is known of the run could not be kept in {self._directory}: {error}")
        code, sentence = verdict(
            job.state,
            committed_step=job.committed_step,
            checkpoint_step=job.last_checkpoint_step,
            reason=job.state_reason,
        )
        say(sentence)
        return code

    def _start_agents(self, server: Server) -> None:
        options = self._options
        pinned = ("--tls-ca-file", str(server.ca_file)) if server.ca_file else ()
        suffix = ("--suffix", server.suffix) if server.suffix else ()
        argv = srun(
            nodes=options.nodes + options.spares,
            python=sys.executable,
            directory=str(self._directory),
            arguments=(
                "--server", server.agents_url, "--join-token-file", str(server.token_file), *pinned, *suffix,
                "--directory", str(self._directory), "--probe", options.probe,
                "--devices", str(options.devices), "--grace-s", str(options.grace_s),
            ),
        )  # fmt: skip
        self._agents = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)

    def _await_nodes(self, server: Server) -> None:
        """All of them, or after a while those that the job needs. Raises GuestError."""
        options, began_s, count = self._options, time.monotonic(), -1
        wanted, total = options.nodes, options.nodes + options.spares
        while True:
            found = [
                node for node in server.client.nodes.list() if node.connected and node.name.endswith(server.suffix)
            ]
            if len(found) != count:
                count = len(found)
                say(f"{count} of {total} nodes are here.")
            waited_s = time.monotonic() - began_s
            if count >= total or (count >= wanted and waited_s > SPARES_TIMEOUT_S):
                return
            if self._ended() or self._asked:
                raise GuestError(f"the agents ended before {wanted} nodes were here; see {self._directory}/logs")
            if waited_s > NODES_TIMEOUT_S:
                raise GuestError(
                    f"{count} nodes are here after {waited_s:.0f} s and the job needs {wanted}; see the others'"
                    f" logs in {self._directory}/logs"
                )
            self._pause(server)

    def _follow(self, server: Server, job_id: str) -> Any:
        """Until the job has ended, or no agent is left and what they said has been written."""
        job, last, left_s, yields = None, "", None, False
        while True:
            with contextlib.suppress(SdkError):
                job = server.client.jobs.get(job_id)
                yields = yields or self._has_yielded(server, job_id)
                if job.state != last:
                    last = job.state
                    say(f"{job.name}: {job.state} at step {job.committed_step}. {shown(job.state_reason)}".rstrip())
            if job is not None and job.state in TERMINAL_JOB:
                return job
            if left_s is not None and (time.monotonic() - left_s > SETTLES_S or (job and job.state in WAITS)):
                if job is None:
                    raise GuestError("the server did not answer since the job was submitted")
                return job
            if left_s is None and self._ended():
                left_s = time.monotonic()
            self._pause(server)

    def _has_yielded(self, server: Server, job_id: str) -> bool:
        """Where all nodes are taken back none is left to move to: the whole job saves at once, not as late as is safe.
        Of a standing server it is not asked, as the job would wait there for a person to resume it."""
        nodes = [node for node in server.client.nodes.list() if node.connected]
        if self._options.server or not (self._asked or (nodes and all(node.known_end for node in nodes))):
            return False
        say("All nodes are taken back: the job is asked to save and to yield them.")
        with contextlib.suppress(ApiError):  # It has no ranks yet, or no longer.
            server.client.jobs.preempt(job_id, "Slurm takes the allocation back")
        return True

    def _await_certificates(self, server: Server, job_id: str) -> None:
        """Of a job that recovered: its proof may still be computed. Not where the allocation ends."""
        until_s = time.monotonic() + CERTIFICATES_TIMEOUT_S
        while time.monotonic() < until_s and not self._ended() and not self._asked:
            found = [server.client.incidents.get(each.id) for each in server.client.jobs.incidents(job_id)]
            pending = [each for each in found if each.certificate is not None and each.certificate.state == "pending"]
            if not pending:
                return
            self._pause(server)

    def _keep(self, server: Server, job_id: str) -> None:
        """What is to be known of the run once its control plane is gone."""
        job = server.client.jobs.get(job_id)
        found = [server.client.incidents.get(each.id) for each in server.client.jobs.incidents(job_id)]
        for name, value in (("job", job), ("incidents", found)):
            text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
            private_file(self._directory / f"{name}.json", text)
        for incident in found:
            state = incident.certificate.state if incident.certificate is not None else "none"
            say(f"Incident: {shown(incident.title)}; {incident.state}, certificate {state}.")

    def _leave(self, server: Server) -> None:
        """The agents end by the signal that ends an allocation, then the step, by force if it must be."""
        if self._agents is None:
            return
        until_s = time.monotonic() + self._options.grace_s + LEAVE_S
        if not self._ended():
            tools.ask("scancel", "--signal=TERM", self._here.job)
        while not self._ended() and time.monotonic() < until_s:
            server.tick()
            time.sleep(TICK_S)
        if not self._ended():
            say("The agents do not end; their step is killed.")
            tools.ask("scancel", "--signal=KILL", self._here.job)
            self._agents.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._agents.wait(LEAVE_S)

    @contextlib.contextmanager
    def _server(self) -> Iterator[Server]:
        options = self._options
        if options.server:
            url = "ws" + options.server.removeprefix("http")
            with Client(options.server, token=load(options.server).token) as client:
                yield Server(client, url, token=options.join_token_file, ca=None, suffix=f".{self._here.job}")
            return
        folder = places.local(self._here.job, "c")
        installation = Installation(self._config(folder), stopped=lambda: self._asked)
        try:
            say("Starting the control plane of this allocation ...")
            installation.start()
            with Client(installation.addresses.web, token=self._credentials(installation)) as client:
                outside = installation.config.outside
                assert outside is not None, "made so"
                url = f"wss://{outside.host}:{outside.port}"
                token, ca = self._directory / "join-token", self._directory / "server.crt"
                server = Server(client, url, token=token, ca=ca, suffix="")
                server.tick = installation.supervisor.tick
                yield server
        finally:
            installation.supervisor.stop_all()
            with contextlib.suppress(OSError):
                shutil.copytree(installation.config.logs, self._directory / "logs" / "server", dirs_exist_ok=True)
            places.forget(folder)
            (self._directory / "join-token").unlink(missing_ok=True)

    def _config(self, folder: Path) -> DemoConfig:
        """Rows, Redis and keys on the first node's own disk; checkpoints, which outlive it, in the shared folder."""
        host = tools.address_of(self._here.node)
        try:
            bind = str(ipaddress.ip_address(host))
        except ValueError:
            bind = "0.0.0.0"  # noqa: S104 - the name may be one of loopback on its own node; TLS and tokens guard it
        key = folder / "server.key"
        certificate.make(host, certificate=self._directory / "server.crt", key=key)
        outside = Outside(
            host=host, bind=bind, port=free_port(bind), certificate=self._directory / "server.crt", key=key
        )
        checkpoints = self._directory / "checkpoints"
        checkpoints.mkdir(exist_ok=True)
        return DemoConfig(
            directory=folder / "c",
            port=0,
            nodes=0,
            spare_nodes=0,
            server_env={"HOLDFAST_CHECKPOINT_ROOT": str(checkpoints)},
            outside=outside,
            demo=False,
        )

    def _credentials(self, installation: Installation) -> str:
        """The files by which agents enrol, and by which the user's own `holdfast` and browser get in."""
        options, outside = self._options, installation.config.outside
        assert outside is not None, "made so"
        uses = str(options.nodes + options.spares)
        made = installation.manage(
            "create_join_token", "--cidr", ANYWHERE, "--uses", uses, "--ttl-s", f"{TOKEN_S:.0f}"
        ).split()
        private_file(self._directory / "join-token", made[-1])
        password = installation.one_time_password()
        token = installation.api_token("admin")
        url, ca = f"https://{outside.host}:{outside.port}", self._directory / "server.crt"
        private_file(self._directory / "page", f"{url}\nuser admin\nonce {password}\n")
        write_file(self._directory / "holdfast.toml", url=url, token=token)
        say(f"Page {url}; its password, which works once, is in {self._directory}/page.")
        trusted, settings = f"SSL_CERT_FILE={ca}", f"HOLDFAST_CLI_CONFIG={self._directory}/holdfast.toml"
        say(f"From a shell: {trusted} {settings} holdfast job ls")
        return token

    def _ended(self) -> bool:
        return self._agents is not None and self._agents.poll() is not None

    def _pause(self, server: Server) -> None:
        until_s = time.monotonic() + POLL_S
        while time.monotonic() < until_s:
            server.tick()
            time.sleep(TICK_S)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if not self._asked:
            self._asked = True
            print(f"{signal.Signals(number).name}: the allocation ends.", flush=True)


def say(text: str) -> None:
    """A line of the batch job's output."""
    print(time.strftime("%H:%M:%S"), text, flush=True)


def main(argv: Sequence[str]) -> int:
    """The exit code of the batch script."""
    parser = argparse.ArgumentParser(prog="python -m controlplane.slurm.guest", description="A run in an allocation.")
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--spares", type=int, required=True)
    parser.add_argument("--devices", type=int, required=True, help="of a node, where they are simulated")
    parser.add_argument("--probe", default="nvml")
    parser.add_argument("--grace-s", type=int, required=True)
    parser.add_argument("--server", default="")
    parser.add_argument("--join-token-file", type=Path)
    parser.add_argument("--directory", type=Path, required=True, help="of the allocation, which all nodes see")
    options = parser.parse_args(argv)
    try:
        return Guest(options).run()
    except NoAllocation as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
