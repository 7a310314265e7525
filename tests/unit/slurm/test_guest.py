"""What a guest does about a server and agents that do not answer; a real Slurm: tests/slurm."""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from controlplane.demo.installation import Installation
from controlplane.protocol import rest
from controlplane.sdk.errors import ForbiddenError
from controlplane.slurm import guest, places
from controlplane.slurm.continuing import Left
from controlplane.slurm.guest import Guest, GuestError
from controlplane.slurm.guest import Server as Target
from tests.house.tree import ROOT
from tests.unit.slurm.conftest import JOB, NODE, Server


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Orders to `scancel` are kept here, and carried out for nobody."""
    (tmp_path / "bin").mkdir()
    program, orders = tmp_path / "bin" / "scancel", tmp_path / "orders"
    program.write_text(f'#!/bin/sh\necho "$@" >> "{orders}"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.defpath}")
    for name, value in (("SLURM_JOB_ID", "9"), ("SLURMD_NODENAME", "n1"), ("SLURM_NODEID", "0")):
        monkeypatch.setenv(name, value)
    return orders


@pytest.fixture
def run(slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guest]:
    """Of job 9."""
    options = argparse.Namespace(
        nodes=2, spares=0, devices=4, probe="simulated", grace_s=0.2, server="", join_token_file=None, continues="",
        chained=False, directory=tmp_path / "9", owners="",
    )  # fmt: skip
    (tmp_path / "9").mkdir()
    (tmp_path / "9" / "job.yaml").write_text("a spec")
    monkeypatch.setattr(guest, "POLL_S", 0.01)
    made = Guest(options)
    yield made
    if made._agents is not None and made._agents.poll() is None:
        made._agents.kill()
        made._agents.wait()


@pytest.mark.parametrize(
    ("agents", "end"),
    [(("sleep", "60"), signal.SIGTERM), (("sh", "-c", "trap '' TERM; exec sleep 60"), signal.SIGKILL)],
)
def test_agents_that_do_not_end_are_killed_by_srun_and_the_guest_outlives_them(
    run: Guest, slurm: Path, monkeypatch: pytest.MonkeyPatch, agents: tuple[str, ...], end: signal.Signals
) -> None:
    monkeypatch.setattr(guest, "LEAVE_S", 0.3)
    run._agents = subprocess.Popen(agents)
    run._leave()
    assert run._agents.returncode == -end
    assert slurm.read_text().splitlines() == ["--signal=TERM 9"], "SIGKILL of scancel reaches the batch script too"


@pytest.mark.parametrize(("owners", "told"), [("", "admin"), ("ada,grace", "ada,grace")])
def test_agents_are_told_whose_jobs_may_run_there(
    run: Guest, server: Server, slurm: Path, tmp_path: Path, owners: str, told: str
) -> None:
    """In a control plane of the allocation's own there is one account."""
    (tmp_path / "bin" / "srun").write_text(f'#!/bin/sh\necho "$@" > "{tmp_path}/srun"\n')
    (tmp_path / "bin" / "srun").chmod(0o755)
    run._options.owners = owners
    run._start_agents(target(server))
    assert run._agents is not None and run._agents.wait(10) == 0
    assert f" --owners {told}\n" in (tmp_path / "srun").read_text()


def target(server: Server, suffix: str = "") -> Target:
    return Target(server.client, "wss://n1:9", token=Path("/t"), ca=None, suffix=suffix)


@pytest.mark.parametrize("fault", ["settings that cannot be read", "a command that hangs"])
def test_what_keeps_a_run_from_beginning_is_no_end_of_its_job(slurm: Path, tmp_path: Path, fault: str) -> None:
    """1 would be a job that failed."""
    (tmp_path / "9").mkdir()
    (tmp_path / "settings").write_text("[[")
    hangs = "from controlplane.demo import installation as i; i.COMMAND_TIMEOUT_S = 0.01" if "hangs" in fault else ""
    server = () if hangs else ("--server", "https://h", "--join-token-file", "/t")
    words = ("--nodes", "2", "--spares", "0", "--devices", "4", "--grace-s", "20", "--directory", str(tmp_path / "9"))
    program = f"import sys; {hangs}\nfrom controlplane.slurm.guest import main\nsys.exit(main({[*words, *server]!r}))"
    environment = dict(os.environ) | {
        "HOLDFAST_CLI_CONFIG": str(tmp_path / "settings"),
        "SLURM_JOB_ID": str(os.getpid()),
    }
    done = subprocess.run(
        (sys.executable, "-c", program), env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (7, ""), done.stderr
    assert "It could not run: " in done.stdout


GOES = NODE | {
    "known_end": {"id": "e", "source": "spot", "leaves_at": "", "back_at": None, "reason": "", "who": ""},
}  # fmt: skip
PREEMPT = "POST /jobs/job_1:preempt"
ACCEPTED = {"detail": "It is asked."}


def followed(run: Guest, server: Server) -> str:
    """The state of the job in which it is left; its agents have ended already."""
    run._agents = subprocess.Popen(("true",))
    run._agents.wait()
    found: str = run._follow(target(server), msgspec.convert(JOB, rest.JobDetail)).state
    return found


def test_a_job_is_asked_to_yield_until_the_server_has_taken_it(run: Guest, server: Server) -> None:
    server.answers = {
        "GET /jobs/job_1": [JOB, JOB, JOB, JOB, JOB | {"state": "preempted"}], "GET /nodes/n1": GOES,
        "GET /nodes": {"items": [GOES]}, PREEMPT: [500, 500, ACCEPTED],
    }  # fmt: skip
    assert followed(run, server) == "preempted"
    assert server.asked.count(PREEMPT) == 3


def test_a_job_that_has_nothing_to_yield_is_asked_once(run: Guest, server: Server) -> None:
    server.answers = {"GET /jobs/job_1": [JOB, JOB, JOB, JOB | {"state": "pending"}], "GET /nodes": {"items": [GOES]}}
    server.answers |= {"GET /nodes/n1": 404, PREEMPT: 409}
    assert followed(run, server) == "pending"
    assert server.asked.count(PREEMPT) == 1


def test_while_this_node_stays_no_other_is_asked(run: Guest, server: Server) -> None:
    server.answers = {"GET /jobs/job_1": [JOB, JOB, JOB | {"state": "succeeded"}], "GET /nodes/n1": NODE}
    assert followed(run, server) == "succeeded"
    assert "GET /nodes/n1" in server.asked and not any(asked.startswith("GET /nodes?") for asked in server.asked)
    assert "GET /nodes" not in server.asked and PREEMPT not in server.asked


def test_a_server_that_does_not_answer_any_more_leaves_the_job_as_it_was_seen_last(
    run: Guest, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guest, "SETTLES_S", 0.1)
    assert followed(run, server) == "running"


def test_of_a_standing_server_its_own_nodes_alone_are_asked_for(run: Guest, server: Server) -> None:
    run._options.server = "https://holdfast.example.org"
    names = ["n1.9", "n2.9", "n1.90"]
    here = lambda *connected: {  # noqa: E731
        "rows": 3, "total": 3, "next": None, "as_of_seq": 1, "columns": {"name": names, "connected": list(connected)}
    }  # fmt: skip
    server.answers["GET /nodes:columns"] = [500, here(True, False, True), here(True, True, False)]
    run._await_nodes(target(server, ".9"))
    assert set(server.asked) == {"GET /nodes:columns?fields=name%2Cconnected&q=.9"} and len(server.asked) == 3
    server.asked.clear()
    server.answers["GET /jobs/job_1"] = [JOB, JOB | {"state": "succeeded"}]
    assert followed(run, server) == "succeeded"
    assert set(server.asked) == {"GET /jobs/job_1"}


def test_nodes_that_do_not_come_end_the_run(run: Guest, server: Server) -> None:
    server.answers["GET /nodes:columns"] = {"rows": 0, "total": 0, "next": None, "as_of_seq": 1, "columns": {}}
    run._agents = subprocess.Popen(("true",))
    run._agents.wait()
    with pytest.raises(GuestError, match="the agents ended before 2 nodes were here"):
        run._await_nodes(target(server))


def test_a_job_is_submitted_once_though_the_server_is_away_for_a_while(run: Guest, server: Server) -> None:
    server.answers = {"POST /jobs": [500, 500, JOB], "GET /jobs/job_1": [500, JOB]}
    assert run._submit(target(server)).id == "job_1"
    assert len(server.keys) == 3 and len({*server.keys}) == 1, "a second one would be another job"
    server.answers["POST /jobs"] = 403
    with pytest.raises(ForbiddenError):
        run._submit(target(server))


def test_a_job_is_continued_though_the_server_is_away_for_a_while(run: Guest, server: Server) -> None:
    columns = {"id": ["node_1", "node_2", "node_3"], "name": ["n1", "n2.8", "n1.9"]}
    server.answers = {
        "GET /nodes:columns": {"rows": 3, "total": 3, "next": None, "as_of_seq": 1, "columns": columns},
        "GET /jobs/job_1": [500, JOB], "POST /nodes/node_1:remove": [500, ACCEPTED], "POST /nodes/node_2:remove": 409,
        "POST /jobs/job_1:resume": [500, ACCEPTED],
    }  # fmt: skip
    left = Left(job="job_1", name="first", committed_step=42, step=40, path="/c/40", checkpoints="/c")
    assert run._continue(target(server, ".9"), left).id == "job_1"
    assert [asked for asked in server.asked if ":re" in asked] == [
        "POST /nodes/node_1:remove", "POST /nodes/node_1:remove", "POST /nodes/node_2:remove",
        "POST /jobs/job_1:resume", "POST /jobs/job_1:resume",
    ]  # fmt: skip


@pytest.mark.parametrize("of", ["the runs", "this run"])
def test_a_folder_to_which_others_may_write_ends_a_run_before_it_believes_what_lies_there(
    run: Guest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], of: str
) -> None:
    monkeypatch.setattr(guest, "ENDS", ())
    monkeypatch.setattr(os, "umask", lambda mask: mask)
    folder = run._directory.parent if of == "the runs" else run._directory
    folder.chmod(0o777)
    assert run.run() == 7
    assert f"It could not run: others may write to {folder} (mode 777)" in capsys.readouterr().out
    assert sorted(path.name for path in run._directory.iterdir()) == ["job.yaml"]


def test_what_opens_something_is_gone_before_logs_are_copied(
    run: Guest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm may kill meanwhile."""
    monkeypatch.setattr(places, "ROOT", tmp_path)
    folder = places.local("9", "c")
    logs = folder / "c" / "logs"
    logs.mkdir(parents=True)
    secrets = [folder / "server.key", folder / "c" / "holdfast.sqlite3", run._directory / "join-token"]
    for path in (*secrets, logs / "web-1.log"):
        path.write_text(path.name)
    seen: list[bool] = []
    keep_logs = places.keep_logs

    def watched(logs: Path, kept: Path) -> None:
        seen.extend(path.exists() for path in secrets)
        keep_logs(logs, kept)

    monkeypatch.setattr(places, "keep_logs", watched)
    stopped: list[str] = []
    config = SimpleNamespace(logs=logs)
    installation = SimpleNamespace(supervisor=SimpleNamespace(stop_all=lambda: stopped.append("")), config=config)
    run._close(cast(Installation, installation))
    assert stopped and seen == [False] * 3
    assert (run._directory / "logs" / "server" / "web-1.log").read_text() == "web-1.log"
