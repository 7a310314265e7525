"""Pilots: what is asked of Slurm, that bash hands every value on, and when a pilot gives its node back."""

import argparse
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controlplane.cli.context import STATE, State
from controlplane.cli.exits import Exit
from controlplane.cli.main import main
from controlplane.slurm import pilot, places
from controlplane.slurm.environment import Allocation
from controlplane.slurm.node import agent_argv
from controlplane.slurm.pilot import Drains, Pilot, identity_of, parse
from controlplane.slurm.pilots import Pilots, options, script
from controlplane.slurm.plan import PlanError
from tests.unit.slurm.conftest import Server

PLAN = Pilots(
    nodes=3, cold=2, gpus_per_node=8, server="https://hf.example.org", join_token_file="/home/ada/token",
    owners="ada,grace", python="/opt/hf/bin/python", directory="/home/ada/pilots", checkout="/opt/hf",
)  # fmt: skip
HERE = Allocation(job="42", node="n2", index="0", segment="rack1")


def test_it_asks_for_an_array_of_one_node_jobs_of_which_so_many_run_at_a_time() -> None:
    asked = options(replace(PLAN, time="4:00:00", partition="gpu", grace_s=120))
    assert {
        "--array=1-5%3", "--nodes=1", "--exclusive", "--requeue", "--signal=B:TERM@120", "--gres=gpu:8",
        "--time=4:00:00", "--partition=gpu", "--output=/home/ada/pilots/pilot-%A_%a.out",
    } <= {*asked}  # fmt: skip
    assert tuple(re.findall(r"^#SBATCH (.*)$", script(PLAN), re.MULTILINE)) == options(PLAN)
    assert not any("gres" in option for option in options(replace(PLAN, gpus_per_node=0)))


def test_bash_hands_every_value_on(tmp_path: Path) -> None:
    plan = replace(PLAN, python="/bin/echo", directory=str(tmp_path), checkout="", grace_s=60, kill_wait_s=30)
    done = subprocess.run(["bash"], input=script(plan), capture_output=True, text=True, check=False, timeout=20)
    assert done.returncode == 0, done.stderr
    options = parse(done.stdout.split()[2:])
    assert (options.server, options.join_token_file) == ("wss://hf.example.org", "/home/ada/token")
    assert (options.directory, options.devices, options.grace_s) == (tmp_path, 8, 20.0)
    assert options.owners == "ada,grace"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"nodes": 0}, "--nodes '0' is not possible"),
        ({"cold": -1}, "--cold '-1' is not possible"),
        ({"nodes": 900, "cold": 101}, "900 pilots and 101 cold ones are more than the 1000 elements"),
        ({"server": ""}, "pilots lend their nodes to a control plane that stands"),
        ({"server": "http://hf.example.org"}, "--server 'http://hf.example.org' is not possible"),
        ({"partition": "gpu; rm"}, "--partition 'gpu; rm' is not possible"),
        ({"owners": "ada;rm"}, "--owners 'ada;rm' is not possible"),
        ({"owners": "ada,*"}, "--owners 'ada,*' is not possible"),
        ({"directory": "pilots"}, "--directory 'pilots' is not possible"),
    ],
)
def test_what_cannot_be_is_refused_in_words(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError) as caught:
        replace(PLAN, **changes)
    assert said in str(caught.value) and caught.value.fix


def test_a_node_is_known_by_its_own_name_and_what_it_is_known_by_outlives_the_allocation(tmp_path: Path) -> None:
    options = parse(
        ["--server", "wss://hf.example.org:8420", "--join-token-file", "/t", "--directory", str(tmp_path),
         "--grace-s", "20", "--devices", "2", "--probe", "simulated", "--owners", "ada"],
    )  # fmt: skip
    here = replace(HERE, node="GPU_n2")
    more = ("--identity-dir", str(identity_of(options.directory, here)))
    argv = agent_argv(options, here, folder=Path("/tmp/hf-1/42.0"), grace_s=12.5, more=more)
    said = dict(zip(argv[3::2], argv[4::2], strict=True))
    assert said["--name"] == "gpu-n2", "the next allocation of the node is the same node to Holdfast"
    assert said["--identity-dir"] == str(tmp_path / "nodes" / "gpu-n2")
    assert said["--state-dir"] == "/tmp/hf-1/42.0/a", "its journal has values of jobs' environments, and ends here"
    assert (said["--server"], said["--grace-s"], said["--segment"]) == ("wss://hf.example.org:8420", "12.5", "rack1")
    assert (said["--tenancy"], said["--owners"]) == ("allocation", "ada")


def shown(states: str, reason: str = "") -> str:
    said = f" Reason={reason} [root@2026-11-30T02:00:00]" if reason else ""
    return f"NodeName=n2 Arch=x86_64 State={states} ThreadsPerCore=1{said}\n"


class Answers:
    """What Slurm says, one after the other, the last one for ever."""

    def __init__(self, *said: str | None) -> None:
        self._said, self.asked = list(said), 0

    def __call__(self) -> str | None:
        self.asked += 1
        return self._said.pop(0) if len(self._said) > 1 else self._said[0]


def watched(answers: Answers, *, until: int) -> int:
    """How often the pilot was told to leave by the time that Slurm was asked so often."""
    left: list[int] = []
    with Drains("n2", lambda: left.append(1), ask=answers, every_s=0.01):
        until_s = time.monotonic() + 10.0
        while answers.asked < until and not left and time.monotonic() < until_s:
            time.sleep(0.005)
    return len(left)


def test_a_node_that_is_drained_in_slurm_is_given_back(capsys: pytest.CaptureFixture[str]) -> None:
    draining = shown("MIXED+DRAIN", "holdfast: quarantined. XID 79")
    assert watched(Answers(shown("MIXED"), draining), until=50) == 1
    assert "the node is drained in Slurm (holdfast: quarantined. XID 79): it is given back" in capsys.readouterr().err


@pytest.mark.parametrize(
    "said",
    [
        (shown("ALLOCATED"),),
        (None,),
        ("",),
        ("garbage\n",),
        (shown("MIXED+DRAIN").replace("n2", "n22"),),
        # Undone at once, as a health check's own drain may be.
        (shown("MIXED+DRAIN"), shown("MIXED")),
        (shown("MIXED+DRAIN"), None, shown("MIXED+DRAIN"), shown("MIXED")),
    ],
)
def test_no_news_and_what_is_undone_at_once_give_nothing_back(said: tuple[str | None, ...]) -> None:
    assert watched(Answers(*said), until=8) == 0


def test_no_refusal_ends_a_pilot_as_the_next_element_would_meet_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    refused = "import sys; open(sys.argv[1], 'a').write('x'); sys.exit(0 if len(open(sys.argv[1]).read()) > 2 else 4)"
    monkeypatch.setattr("controlplane.slurm.node.FIRST_DELAY_S", 0.01)
    argv = (sys.executable, "-c", refused, str(log))
    assert Pilot(lambda _: argv, grace_s=5.0, identity=tmp_path).keep() == 0
    assert log.read_text() == "xxx"


def test_a_node_that_the_server_never_admitted_is_given_back_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    refused = "import sys; open(sys.argv[1], 'a').write('x'); sys.exit(0 if len(open(sys.argv[1]).read()) > 5 else 4)"
    monkeypatch.setattr("controlplane.slurm.node.FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(pilot, "PATIENCE_S", 0.0)
    argv = (sys.executable, "-c", refused, str(log))
    assert Pilot(lambda _: argv, grace_s=5.0, identity=tmp_path).keep() == 4
    assert log.read_text() == "x"
    (tmp_path / "credential").touch()
    assert Pilot(lambda _: argv, grace_s=5.0, identity=tmp_path).keep() == 0, "one that it knows waits"


def test_a_folder_that_cannot_be_made_does_not_run_the_whole_array_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next element would start on this node at once, and meet the same."""
    monkeypatch.setattr(places, "ROOT", tmp_path / "tmp")
    monkeypatch.setattr("controlplane.slurm.node.FIRST_DELAY_S", 0.01)
    asked = argparse.Namespace(directory=tmp_path)
    made = threading.Timer(0.3, (tmp_path / "tmp").mkdir)
    made.start()
    folder, held, identity = pilot.placed(asked, HERE)
    made.join()
    os.close(held)
    assert folder.is_dir() and identity == tmp_path / "nodes" / "n2"
    assert "cannot be made: No such file or directory. Free it, or make room. It is tried" in capsys.readouterr().err
    monkeypatch.setattr(places, "ROOT", tmp_path / "none")
    monkeypatch.setattr(pilot, "PATIENCE_S", 0.05)
    with pytest.raises(places.PlaceError):
        pilot.placed(asked, HERE)
    tmp_path.chmod(0o777)
    with pytest.raises(places.PlaceError, match="others may write to"):
        pilot.placed(asked, HERE)


def test_leaving_is_what_the_signal_of_the_end_is(tmp_path: Path) -> None:
    # As `listen` has it: an agent begins with the signals blocked, and opens them when it can leave.
    agent = """
import pathlib, signal, sys, time
up = pathlib.Path(sys.argv[1])
def ends(number, _):
    up.write_text(f"asked by {number}")
    sys.exit(0)
signal.signal(signal.SIGTERM, ends)
signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGUSR1))
up.write_text("up")
time.sleep(30)
"""
    up = tmp_path / "up"
    keeper = Pilot(lambda _: (sys.executable, "-c", agent, str(up)), grace_s=20.0, identity=tmp_path)

    def leave() -> None:
        while not up.exists():
            time.sleep(0.01)
        keeper.leave()

    threading.Thread(target=leave, daemon=True).start()
    assert keeper.keep() == 0
    assert up.read_text() == "asked by 15"


@pytest.fixture
def holdfast(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """holdfast("--nodes", "2") -> (code, out, err); programs are those of `tmp_path/bin` alone."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    def run(*argv: str) -> tuple[int, str, str]:
        given = ["--server", "https://hf.example.org", "--join-token-file", str(tmp_path / "token")]
        given += [] if "--server" in argv else ["--owners", "ada"]
        code = main(["slurm", "pilots", *given, "--directory", str(tmp_path / "pilots"), *argv])
        return code, *capsys.readouterr()

    yield run
    for name in State.__dataclass_fields__:
        setattr(STATE, name, getattr(State(), name))


def test_the_command_prints_submits_and_refuses_in_words(holdfast: Any, tmp_path: Path) -> None:
    code, out, _ = holdfast("--nodes", "2", "--print")
    assert code == Exit.OK and "#SBATCH --array=1-3%2\n" in out and not (tmp_path / "pilots").exists()
    code, out, err = holdfast("--nodes", "2")
    assert (code, out) == (Exit.USAGE, "") and "token cannot be read: No such file" in err
    (tmp_path / "token").write_text("holdfast_join_x")
    code, out, err = holdfast("--nodes", "2")
    assert (code, out) == (Exit.NOT_FOUND, "") and "there is no sbatch here" in err
    assert "is not possible" in holdfast("--nodes", "2", "--partition", "a b")[2]
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.write_text("#!/bin/sh\necho 77\n")
    sbatch.chmod(0o755)
    (tmp_path / "pilots").chmod(0o770)
    code, out, err = holdfast("--nodes", "2")
    assert (code, out) == (Exit.USAGE, "") and f"fix: chmod go-w {tmp_path}/pilots" in err
    (tmp_path / "pilots").chmod(0o700)
    code, out, err = holdfast("--nodes", "2", "--cold", "3")
    assert (code, out) == (Exit.OK, "77\n") and "2 pilots at a time, 3 cold ones behind them" in err
    assert (tmp_path / "pilots").stat().st_mode & 0o777 == 0o700
    assert "Jobs of ada may run there, as you and with all that you can read." in err


def test_the_nodes_are_for_jobs_of_the_account_whose_token_is_used_unless_others_are_named(
    holdfast: Any, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN", "holdfast_read_x")
    url = str(server.client._http.base_url).removesuffix("/api/v1/").rstrip("/")
    me = {"username": "ada", "roles": [], "projects": {}, "demo": False, "csrf": ""}
    server.answers["GET /me"] = me
    code, out, _ = holdfast("--nodes", "2", "--print", "--server", url)
    assert code == Exit.OK and "--owners ada" in out and server.asked == ["GET /me"]
    code, out, _ = holdfast("--nodes", "2", "--print", "--server", url, "--owners", "*")
    assert code == Exit.OK and "--owners '*'" in out and server.asked == ["GET /me"]
    server.answers["GET /me"] = 401
    code, out, err = holdfast("--nodes", "2", "--print", "--server", url)
    assert (code, out) == (Exit.USAGE, "") and "does not say which account is yours" in err
    assert "fix: `holdfast login`, or name the accounts whose jobs may run there as you: --owners" in err
    for several in ("ada,root", "*"):
        server.answers["GET /me"] = me | {"username": several}
        code, out, err = holdfast("--nodes", "2", "--print", "--server", url)
        assert (code, out) == (Exit.USAGE, "") and "is not one name in a list of several" in err
