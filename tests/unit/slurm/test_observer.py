"""The hooks of Slurm with a real HTTP server and programs that stand for Slurm's: two seconds, and nothing that goes
wrong with either changes a node or stops a job. A real Slurm: tests/slurm."""

import http.server
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.slurm.observer import REFUSES
from tests.house.tree import ROOT

HOOKS = ("healthcheck", "prolog", "epilog")
WHOLE_S = 2.0
MARGIN_S = 3.0
"""An interpreter that starts beside the rest of the suite."""
GOOD = {"name": "n2", "state": "ready", "connected": True, "devices": [{"index": 0, "present": True, "healthy": True}]}
BAD = GOOD | {"state": "quarantined", "state_reason": 'XID 79 `rm -rf /` "two"\n times'}
IDLE = "NodeName=n2 Arch=x86_64 State=IDLE ThreadsPerCore=1 "
OURS = "NodeName=n2 State=IDLE+DRAIN Weight=1  Reason=holdfast: quarantined [root@2026-11-28T22:41:00]"
THEIRS = "NodeName=n2 State=IDLE+DRAIN Weight=1  Reason=fan [root@2026-11-28T22:41:00]"


class Node:
    """A node with a server and a Slurm: `answer` is what the server says (bytes or JSON), `slurm` what Slurm prints."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.answer, self.status, self.wait_s = folder, GOOD, 200, 0.0
        self.asked: list[tuple[str, str]] = []
        (folder / "bin").mkdir()
        self.slurm(IDLE)
        node = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                node.asked.append((self.path, self.headers.get("Authorization", "")))
                time.sleep(node.wait_s)
                body: Any = node.answer
                self.send_response(node.status)
                self.send_header("Location", "/elsewhere")
                self.end_headers()
                self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.configure()

    def configure(self, text: str | None = None, *, mode: int = 0o600) -> None:
        path = self.folder / "slurm.toml"
        url = f"http://127.0.0.1:{self.server.server_address[1]}"
        path.write_text(f'url = "{url}"\ntoken = "holdfast_read_x"\n' if text is None else text)
        path.chmod(mode)

    def slurm(self, line: str, script: str = "") -> None:
        """`scontrol` prints the line, and keeps what it is asked for."""
        path = self.folder / "bin" / "scontrol"
        path.write_text(
            f'#!/bin/sh\nPATH={os.defpath}\n(printf "%s|" "$@"; echo) >> "{self.folder}/orders"\n'
            f"{script}\n[ \"$1\" = update ] || cat <<'END'\n{line}\nEND\n"
        )
        path.chmod(0o755)

    @property
    def orders(self) -> list[str]:
        """Updates that Slurm was asked for."""
        path = self.folder / "orders"
        return [line for line in (path.read_text().splitlines() if path.exists() else ()) if line.startswith("update")]

    def run(self, *argv: str) -> tuple[int, str]:
        """(exit code, what it said) of a hook, or of a module. It lasts no longer than it may."""
        argv = argv if len(argv) > 1 else ("controlplane.slurm.observer", *argv)
        began_s = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", *argv], capture_output=True, text=True, timeout=30,
            check=False, cwd=ROOT, env={
                "PATH": str(self.folder / "bin"), "SLURMD_NODENAME": "n2", "PYTHONPATH": str(ROOT),
                "HOLDFAST_SLURM_CONFIG": str(self.folder / "slurm.toml"), "PYTHONDONTWRITEBYTECODE": "1",
            },
        )  # fmt: skip
        assert time.monotonic() - began_s < WHOLE_S + MARGIN_S
        assert done.stdout == "" and done.stderr.count("\n") <= 1, done.stderr
        return done.returncode, done.stderr


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.mark.parametrize("hook", HOOKS)
def test_of_a_node_that_is_well_nothing_is_said_and_nothing_changed(node: Node, hook: str) -> None:
    assert node.run(hook) == (0, "") and node.orders == []
    assert node.asked == [("/api/v1/nodes/n2", "Bearer holdfast_read_x")]


@pytest.mark.parametrize(("hook", "code"), [("healthcheck", 0), ("prolog", REFUSES), ("epilog", 0)])
def test_a_node_that_holdfast_took_out_is_drained_and_only_the_prolog_refuses(node: Node, hook: str, code: int) -> None:
    node.answer = BAD
    found, words = node.run(hook)
    assert found == code and "holdfast: quarantined. XID 79 rm -rf / two times" in words
    assert node.orders == ["update|nodename=n2|state=drain|reason=holdfast: quarantined. XID 79 rm -rf / two times|"]


@pytest.mark.parametrize(("hook", "code"), [("healthcheck", 0), ("prolog", REFUSES), ("epilog", 0)])
def test_the_command_does_as_the_module_does(node: Node, hook: str, code: int) -> None:
    node.answer = BAD
    argv = ("controlplane.cli", "slurm", hook, "--config", str(node.folder / "slurm.toml"))
    assert node.run(*argv)[0] == code and len(node.orders) == 1


def test_a_node_whose_name_in_slurm_has_capitals_is_asked_for_by_the_name_that_holdfast_knows(node: Node) -> None:
    url = f"http://127.0.0.1:{node.server.server_address[1]}"
    node.configure(f'url = "{url}"\ntoken = "holdfast_read_x"\nnode = "GPU_01"')
    node.answer = BAD | {"name": "gpu-01"}
    node.slurm(IDLE.replace("n2", "GPU_01"))
    node.run("healthcheck")
    assert [path for path, _ in node.asked] == ["/api/v1/nodes/gpu-01"]
    assert [order.split("|")[1] for order in node.orders] == ["nodename=GPU_01"]


def test_where_agents_run_in_pilots_a_node_that_is_away_is_given_back(node: Node) -> None:
    node.answer = GOOD | {"connected": False}
    node.slurm(OURS)
    assert node.run("healthcheck") == (0, "") and node.orders == [], "nobody says how it is"
    path = node.folder / "slurm.toml"
    node.configure(path.read_text() + 'agents = "pilots"\n')
    assert node.run("healthcheck")[0] == 0 and node.orders == ["update|nodename=n2|state=undrain|"]
    node.configure(path.read_text().replace('"pilots"', '"some"'))
    assert "agents is 'resident' (they run for good) or 'pilots' (in pilots alone)" in node.run("healthcheck")[1]


def test_words_of_the_server_do_not_steer_the_terminal(node: Node) -> None:
    node.answer = GOOD | {"state": "cordoned", "state_reason": "\x1b[2J\x9b\u202egone\r"}
    _, words = node.run("prolog")
    assert words.rstrip("\n").isprintable() and words.isascii() and "gone" in words


@pytest.mark.parametrize(("hook", "code"), [("healthcheck", 0), ("prolog", REFUSES), ("epilog", 0)])
def test_a_drain_that_stands_already_is_left_as_it_is(node: Node, hook: str, code: int) -> None:
    node.answer = BAD
    for line in (OURS, THEIRS):
        node.slurm(line)
        assert node.run(hook)[0] == code and node.orders == []


def test_our_drain_alone_is_undone_and_by_the_health_check_alone(node: Node) -> None:
    node.slurm(THEIRS)
    assert node.run("healthcheck") == (0, "") and node.orders == []
    node.slurm(OURS)
    assert [node.run(hook) for hook in ("prolog", "epilog")] == [(0, "")] * 2 and node.orders == []
    assert node.run("healthcheck")[0] == 0 and node.orders == ["update|nodename=n2|state=undrain|"]


def broken(node: Node, how: str) -> None:
    """The server, as it may be."""
    match how:
        case "down":
            node.server.server_close()
        case "slow":
            node.wait_s = 10.0
        case "garbage":
            node.answer = b"<html>502</html>"  # type: ignore[assignment]
        case "endless":
            node.answer = b"[" * (5 << 20)  # type: ignore[assignment]
        case "other":
            node.answer = BAD | {"name": "n3"}
        case _:
            node.status = int(how)


@pytest.mark.parametrize(
    ("how", "hook"),
    [(how, hook) for how in ("down", "slow", "garbage") for hook in HOOKS]
    + [(how, "prolog") for how in ("endless", "other", "302", "401", "404", "429", "503")],
)
def test_a_server_that_gives_no_answer_drains_nothing_and_stops_no_job(node: Node, how: str, hook: str) -> None:
    node.answer = BAD
    node.slurm(OURS)
    broken(node, how)
    code, words = node.run(hook)
    assert code == 0 and words.startswith(f"holdfast slurm {hook}: ") and node.orders == []
    assert len(node.asked) <= 1, "no redirect is followed, nothing is tried again"


@pytest.mark.parametrize(
    ("hook", "script"), [*((hook, "exec sleep 10") for hook in HOOKS), ("prolog", "exit 1"), ("prolog", 'kill -9 "$$"')]
)
def test_a_slurm_that_gives_no_answer_stops_no_job(node: Node, hook: str, script: str) -> None:
    node.answer = BAD
    node.slurm("", script)
    code, words = node.run(hook)
    assert code == 0 and "does not work or takes too long" in words and node.orders == []


@pytest.mark.parametrize(
    "line", ["", "slurm_load_node error: Unable to contact slurm controller", "NodeName=n3 State=IDLE"]
)
def test_an_answer_of_slurms_that_is_none_stops_no_job(node: Node, line: str) -> None:
    node.answer = BAD
    node.slurm(line)
    code, words = node.run("prolog")
    assert code == 0 and "Slurm does not say" in words and node.orders == []


def test_where_the_drain_cannot_be_made_the_prolog_lets_the_job_run(node: Node) -> None:
    """A refusal without it has Slurm drain the node in its own words, which nobody undoes."""
    node.answer = BAD
    node.slurm(IDLE, '[ "$1" != update ] || exit 1')
    assert node.run("prolog")[0] == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "url must be https"),
        ('url = "http://holdfast.example.org"\ntoken = "x"', "url must be https"),
        ('url = "https://h"', "token"),
        ('url = "https://h"\ntoken = "a\\nb"', "one line of text"),
        ('url = "https://h"\ntoken = 7', "one line of text"),
        ('url = "https://h"\ntoken = "x"\nport = "1"', "unknown key 'port'"),
        ("url = ", "cannot be read"),
        ("url = " + "[" * 20_000, "RecursionError"),
    ],
)
def test_settings_that_are_wrong_are_said_and_stop_no_job(node: Node, text: str, words: str) -> None:
    node.configure(text)
    code, said = node.run("prolog")
    assert code == 0 and words in said and node.asked == []


def test_a_token_that_others_can_read_is_not_used(node: Node) -> None:
    node.configure(mode=0o640)
    code, said = node.run("prolog")
    assert code == 0 and "chmod 600" in said and node.asked == []
    (node.folder / "slurm.toml").unlink()
    code, said = node.run("healthcheck")
    assert code == 0 and "cannot be read" in said


@pytest.mark.parametrize("name", HOOKS)
def test_the_scripts_hand_on_a_refusal_and_nothing_else(tmp_path: Path, name: str) -> None:
    """Run as they stand, with a program in the place of Python."""
    script = (ROOT / "deploy/slurm" / name).read_text().replace("/opt/holdfast", str(tmp_path))
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    for code in (0, 1, 2, 9, REFUSES, 126, 137):
        python.write_text(f"#!/bin/sh\nexit {code}\n")
        python.chmod(0o755)
        done = subprocess.run(["sh", "-c", script], check=False, timeout=20)
        assert done.returncode == (1 if name == "prolog" and code == REFUSES else 0), code
    python.unlink()
    assert subprocess.run(["sh", "-c", script], check=False, timeout=20, stderr=subprocess.DEVNULL).returncode == 0
