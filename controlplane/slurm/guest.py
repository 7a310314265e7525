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
import math
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from controlplane.api.shapes import rows_of
from controlplane.cli.config import load
from controlplane.cli.exits import CliError, Exit
from controlplane.demo.installation import Installation, InstallationError
from controlplane.demo.ports import MissingProgram
from controlplane.engines.slurm import tools
from controlplane.policy.facts import TERMINAL_JOB
from controlplane.protocol.plain import shown
from controlplane.sdk import Client
from controlplane.sdk.errors import (
    ConflictError,
    NotFoundError,
    SdkError,
    ServerError,
    ThrottledError,
    UnavailableError,
)
from controlplane.slurm import continuing, keeping, own, places
from controlplane.slurm.environment import NoAllocation, read
from controlplane.slurm.node import enter
from controlplane.slurm.plan import PlanError
from controlplane.slurm.script import srun
from controlplane.slurm.verdict import verdict

NODES_TIMEOUT_S = 180.0
SPARES_TIMEOUT_S = 30.0
CERTIFICATES_TIMEOUT_S = 300.0
SETTLES_S = 10.0
WAITS = frozenset({"pending", "preempted"})
LEAVE_S = 20.0
POLL_S = 1.0
PATIENCE_S = 60.0
"""What a control plane may take that is started again."""
ENDS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
Answer = TypeVar("Answer")


class GuestError(RuntimeError):
    """The run cannot begin; the text says why, and what to do."""


FAULTS = (
    GuestError, InstallationError, MissingProgram, places.PlaceError, SdkError, CliError, OSError,
    subprocess.SubprocessError,
)  # fmt: skip
"""What keeps a run from beginning or going on. Anything else is a fault of ours, and its traceback is in the output."""


class Server:
    """The control plane: `agents_url` for agents, `client` for us."""

    def __init__(self, client: Client, agents_url: str, *, token: Path, ca: Path | None, suffix: str) -> None:
        self.client, self.agents_url = client, agents_url
        self.token_file, self.ca_file, self.suffix = token, ca, suffix


class Guest:
    """One run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._here, self._directory = read(), options.directory
        self._agents: subprocess.Popen[bytes] | None = None
        self._asked = False
        self._before: continuing.Left | None = None

    def run(self) -> int:
        """The exit code of the batch script."""
        for number in ENDS:
            signal.signal(number, self._on_signal)
        os.umask(0o077)
        try:
            for folder in (self._directory.parent, self._directory):
                places.trusted(folder)
            places.own(self._directory / "logs")
            if over := self._check_earlier():
                say(f"Run {self._options.continues} has ended its job already: nothing is started.")
                try:
                    continuing.pass_on(self._directory.parent, self._options.continues, by=self._here.job)
                except OSError as error:
                    say(f"An allocation behind this one cannot know of that: {error}")
                return self._judge(over.state, over.committed_step, None, over.state_reason)
            with self._server() as server:
                try:
                    return self._train(server)
                finally:
                    self._leave()
        except PlanError as error:
            say(f"It could not continue: {error}. Fix: {error.fix}")
            return Exit.UNAVAILABLE
        except FAULTS as error:
            say(f"It could not run: {error}")
            return Exit.UNAVAILABLE

    def _check_earlier(self) -> continuing.Over | None:
        """Find the run that this one continues, if it does. Raises PlanError."""
        options = self._options
        if not options.continues:
            return None
        spec, runs = (self._directory / "job.yaml").read_bytes(), self._directory.parent
        found = continuing.find(runs, options.continues, spec, chained=options.chained, by=self._here.job)
        if isinstance(found, continuing.Over):
            return found
        self._before = found
        return None

    def _train(self, server: Server) -> int:
        self._start_agents(server)
        self._await_nodes(server)
        job = self._follow(
            server, self._submit(server) if self._before is None else self._continue(server, self._before)
        )
        database = None if self._options.server else self._database
        run = keeping.Run(
            id=self._here.job, directory=self._directory, checkpoints=self._checkpoints, database=database
        )
        keeping.keep_job(job, run, say)
        self._await_certificates(server, job.id)
        keeping.keep(server.client, job, run, say)
        return self._judge(job.state, job.committed_step, job.last_checkpoint_step, job.state_reason)

    def _judge(self, state: str, committed_step: int, checkpoint_step: int | None, reason: str) -> Exit:
        code, sentence = verdict(state, committed_step=committed_step, checkpoint_step=checkpoint_step, reason=reason)
        say(sentence)
        return code

    def _submit(self, server: Server) -> Any:
        spec, key = (self._directory / "job.yaml").read_bytes(), str(uuid.uuid4())
        made = self._insist(lambda: server.client.jobs.submit(spec, key=key))
        say(f"Submitted {made.name} ({made.id}).")
        # It is there, and may train, for as long as the server is away.
        return self._insist(lambda: server.client.jobs.get(made.id), patience_s=math.inf)

    def _continue(self, server: Server, left: continuing.Left) -> Any:
        """The job of the run before gets its turn back; its nodes, which are gone, leave the list."""
        for row in self._nodes(server, "id,name"):
            if not row["name"].endswith(server.suffix):
                # Ranks were placed there when its rows were copied.
                with contextlib.suppress(ConflictError, NotFoundError):
                    self._insist(partial(server.client.nodes.remove, row["id"], "its allocation has ended"))
        job = self._insist(lambda: server.client.jobs.get(left.job))
        at = "begins at step 0" if left.step is None else f"resumes at step {left.step}, where it was saved"
        say(f"Continues run {self._options.continues}: {job.name} ({job.id}) {at}.")
        with contextlib.suppress(ConflictError):  # It is in the queue: it continues by itself.
            self._insist(lambda: server.client.jobs.resume(job.id, f"it continues in allocation {self._here.job}"))
        return job

    def _nodes(self, server: Server, fields: str, q: str = "") -> list[dict[str, Any]]:
        """Those with `q` in their names, in one answer however many there are."""
        return list(rows_of(self._insist(lambda: server.client.nodes.columns(fields=fields, q=q)).columns))

    def _insist(self, call: Callable[[], Answer], *, patience_s: float = PATIENCE_S) -> Answer:
        """Its answer, though the server may be away for a while. Raises SdkError: it refuses, or stays away, or the
        allocation ends meanwhile."""
        until_s = time.monotonic() + patience_s
        while True:
            try:
                return call()
            except (UnavailableError, ServerError, ThrottledError):
                if time.monotonic() > until_s or self._ended() or self._asked:
                    raise
            time.sleep(POLL_S)

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
                "--owners", options.owners or own.OWNER,
            ),
        )  # fmt: skip
        self._agents = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)

    def _await_nodes(self, server: Server) -> None:
        """All of them, or after a while those that the job needs. Raises GuestError."""
        options, began_s, count = self._options, time.monotonic(), -1
        wanted, total = options.nodes, options.nodes + options.spares
        while True:
            rows = self._nodes(server, "name,connected", server.suffix)
            here = sum(row["connected"] and row["name"].endswith(server.suffix) for row in rows)
            if here != count:
                count = here
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
            time.sleep(POLL_S)

    def _follow(self, server: Server, job: Any) -> Any:
        """The job once it has ended, or no agent is left and what they said has been written."""
        last, left_s, yields = "", None, False
        while True:
            with contextlib.suppress(SdkError):
                job = server.client.jobs.get(job.id)
                if job.state != last:
                    last = job.state
                    say(f"{job.name}: {job.state} at step {job.committed_step}. {shown(job.state_reason)}".rstrip())
                yields = yields or self._has_yielded(server, job.id)
            if job.state in TERMINAL_JOB:
                return job
            if left_s is not None and (time.monotonic() - left_s > SETTLES_S or job.state in WAITS):
                return job
            if left_s is None and self._ended():
                left_s = time.monotonic()
            time.sleep(POLL_S)

    def _has_yielded(self, server: Server, job_id: str) -> bool:
        """Where all nodes are taken back none is left to move to: the whole job saves at once, not as late as is safe.
        Of a standing server it is not asked, as the job would wait there for a person to resume it. Raises SdkError:
        it was not asked, and is to be."""
        if self._options.server or not (self._asked or self._are_taken_back(server)):
            return False
        with contextlib.suppress(ConflictError):  # It has no ranks yet, or no longer.
            server.client.jobs.preempt(job_id, "Slurm takes the allocation back")
            say("All nodes are taken back: the job is asked to save and to yield them.")
        return True

    def _are_taken_back(self, server: Server) -> bool:
        """All nodes; this one is asked first, as it mostly says that they are not."""
        with contextlib.suppress(NotFoundError):
            mine = server.client.nodes.get(self._here.name + server.suffix)
            if mine.connected and mine.known_end is None:
                return False
        nodes = [node for node in server.client.nodes.list() if node.connected]
        return bool(nodes) and all(node.known_end for node in nodes)

    def _await_certificates(self, server: Server, job_id: str) -> None:
        """Of a job that recovered or was resumed: its proof may still be computed. Not where the allocation ends."""
        until_s, jobs = time.monotonic() + CERTIFICATES_TIMEOUT_S, server.client.jobs
        while time.monotonic() < until_s and not self._ended() and not self._asked:
            with contextlib.suppress(SdkError):
                found = [server.client.incidents.get(each.id) for each in jobs.incidents(job_id)]
                certificates = [each.certificate for each in (*found, *jobs.get(job_id).attempts)]
                if not any(each is not None and each.state == "pending" for each in certificates):
                    return
            time.sleep(POLL_S)

    @property
    def _database(self) -> Path:
        return places.local(self._here.job, "c") / own.ROWS

    @property
    def _checkpoints(self) -> Path:
        """Of the first of the runs that continue each other: rows name it."""
        return Path(self._before.checkpoints) if self._before is not None else self._directory / "checkpoints"

    def _leave(self) -> None:
        """The agents end by the signal that ends an allocation, then the step, by force if it must be: on SIGTERM
        `srun` kills all tasks. What survives that ends with the batch job. `scancel --signal=KILL` would end this
        process first, as it reaches the batch script too."""
        if self._agents is None or self._ended():
            return
        tools.ask("scancel", "--signal=TERM", self._here.job)
        if not self._gone_in(self._options.grace_s + LEAVE_S):
            say("The agents do not end; their step is killed.")
            self._agents.terminate()
            if not self._gone_in(LEAVE_S):
                self._agents.kill()
                self._agents.wait()

    @contextlib.contextmanager
    def _server(self) -> Iterator[Server]:
        options = self._options
        if options.server:
            url = "ws" + options.server.removeprefix("http")
            with Client(options.server, token=load(options.server).token) as client:
                yield Server(client, url, token=options.join_token_file, ca=None, suffix=f".{self._here.job}")
            return
        folder, held = enter(self._here, "c")
        with contextlib.ExitStack() as ends:
            ends.callback(os.close, held)
            ends.callback(places.forget, folder)
            if self._before is not None:
                continuing.take(self._directory.parent, options.continues, by=self._here.job, database=self._database)
            config = own.config(folder, node=self._here.node, shared=self._directory, checkpoints=self._checkpoints)
            installation = Installation(config, stopped=lambda: self._asked)
            ends.callback(self._close, installation)
            say("Starting the control plane of this allocation ...")
            installation.start()
            ends.enter_context(own.supervised(installation.supervisor, say))
            admin, words = own.credentials(installation, self._directory, uses=options.nodes + options.spares)
            for line in words:
                say(line)
            with Client(installation.addresses.web, token=admin) as client:
                outside = config.outside
                assert outside is not None, "made so"
                url = f"wss://{outside.host}:{outside.port}"
                token, ca = self._directory / "join-token", self._directory / "server.crt"
                if self._before is not None:
                    own.adopt(installation, self._before.job, self._directory / "job.yaml")
                # The rows have nodes of these names already, which had other keys.
                suffix = f".{self._here.job}" if self._before is not None else ""
                yield Server(client, url, token=token, ca=ca, suffix=suffix)

    def _close(self, installation: Installation) -> None:
        """What opens something goes before logs are copied, as that may take until Slurm kills."""
        installation.supervisor.stop_all()
        (self._directory / "join-token").unlink(missing_ok=True)
        logs = installation.config.logs
        places.strip(places.local(self._here.job, "c"), [logs])
        places.keep_logs(logs, self._directory / "logs" / "server")

    def _gone_in(self, limit_s: float) -> bool:
        assert self._agents is not None, "they were started"
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._agents.wait(limit_s)
        return self._ended()

    def _ended(self) -> bool:
        return self._agents is not None and self._agents.poll() is not None

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
    parser.add_argument("--owners", default="", help="accounts of --server whose jobs may run as this user")
    parser.add_argument("--continues", default="", help="the id of the run whose job is continued")
    parser.add_argument("--chained", action="store_true", help="that run may have saved nothing")
    parser.add_argument("--directory", type=Path, required=True, help="of the allocation, which all nodes see")
    options = parser.parse_args(argv)
    try:
        return Guest(options).run()
    except NoAllocation as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
