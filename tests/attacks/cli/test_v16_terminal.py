"""Text that came from a node, a job or a person steers nobody's terminal, whatever prints it."""

import io
import json
import re
import subprocess
import sys
import threading
import unicodedata
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click
import pytest
import typer
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.api.openapi import TARGET
from controlplane.cli.context import STATE, State
from controlplane.cli.main import app, main
from controlplane.cli.output import Column, Format, Screen, emit_object, emit_rows, text
from controlplane.protocol.plain import shown

MARK = "evil"
HOSTILE = (
    f"{MARK}\x1b[2J\x1b]0;title\x07\x1b[31m\x9b31m\x90q\x9c\x08\x08\r\x7f\u202etxt.exe\u2066\u2069\u200b\u200f\ufeff"
    "\u2028\U000e0041[red]markup[/red]\ud800\x00"
)
# In JSON a reader gets it as it came; a lone surrogate cannot be sent by a server that writes UTF-8.
SENT = HOSTILE.replace("\ud800", "")
TERMINAL = ("\n", "\t")
SCHEMA = json.loads(TARGET.read_text())
AT = "2026-01-01T00:00:00.000000Z"
LINES = "application/x-ndjson"
FORMS = ("table", "wide", "json", "yaml", "name", "jsonl")
# `up` starts a demo, `login` writes a file, `password` none; none prints what a server said beyond a name.
OF_A_FILE = "import straggler-trace"
SKIPPED = frozenset({"up", "login", "password", "job validate", OF_A_FILE})


def harmful(printed: str) -> set[str]:
    """Characters that may not reach a terminal."""
    hidden = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
    return {c for c in printed if c not in TERMINAL and unicodedata.category(c) in hidden}


def instance(schema: dict[str, Any], name: str = "") -> Any:
    """An answer of that shape whose every free text is hostile."""
    if "$ref" in schema:
        return instance(SCHEMA["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]], name)
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return instance(next(part for part in schema[union] if part.get("type") != "null"), name)
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next(part for part in kind if part != "null")
    if "enum" in schema:  # a command, which somebody waits for, has ended
        return "succeeded" if "acknowledged" in schema["enum"] else schema["enum"][0]
    if kind == "object" or "properties" in schema:
        made = {key: instance(part, key) for key, part in schema.get("properties", {}).items()}
        extra = schema.get("additionalProperties")
        return (
            made | {SENT: instance(extra if isinstance(extra, dict) else {"type": "string"})}
            if extra or not made
            else made
        )
    if kind == "array":
        return [instance(schema.get("items", {"type": "string"}), name)]
    if kind in ("integer", "number"):
        return 1
    if kind == "boolean":
        return True
    if name == "etag":  # sent back as a header, and refused by the client where it is none
        return '"1-2.3"'
    return AT if name == "at" or name.endswith("_at") else SENT


def answer_to(method: str, path: str) -> Any:
    """What the hostile server says, by the route's own type."""
    for route, operations in SCHEMA["paths"].items():
        pattern = re.sub(r"\\\{\w+\\\}", "[^/:]+", re.escape(route))
        if method.lower() in operations and re.fullmatch(pattern, path):
            responses = operations[method.lower()]["responses"]
            status = next(code for code in ("201", "202", "200", "204") if code in responses)
            content = responses[status].get("content", {})
            kind = next((kind for kind in ("application/json", LINES) if kind in content), None)
            found = instance(content[kind]["schema"]) if kind else {}
            return int(status), found | {"next": None} if isinstance(found, dict) and "items" in found else found
    return 404, instance(SCHEMA["components"]["schemas"]["Problem"])


class Hostile(BaseHTTPRequestHandler):
    """Answers every route of the API with hostile texts."""

    refuse = False

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if path.endswith("/events/watch"):
            event = instance(SCHEMA["components"]["schemas"]["Event"])
            event |= {"seq": 9, "entity": "job", "patch": {"state": "succeeded"}, "kind": "job.state"}
            self._send(200, f"id: 9\ndata: {json.dumps(event)}\n\n".encode(), "text/event-stream")
            return
        status, found = (409, instance(SCHEMA["components"]["schemas"]["Problem"]))
        if not self.refuse:
            status, found = answer_to(self.command, path)
        self._send(
            status, json.dumps(found).encode(), "application/problem+json" if status >= 400 else "application/json"
        )

    do_GET = do_POST = _answer

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Hostile]]:
    handler = type("Handler", (Hostile,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=lambda: server.serve_forever(0.01), daemon=True)
    thread.start()
    monkeypatch.setenv("HOLDFAST_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HOLDFAST_TOKEN", "holdfast_read_x")
    monkeypatch.setenv("HOLDFAST_CLI_CONFIG", str(tmp_path / "config.toml"))
    yield handler
    server.shutdown()
    server.server_close()
    for name in State.__dataclass_fields__:
        setattr(STATE, name, getattr(State(), name))


def commands() -> list[tuple[str, click.Command]]:
    """Every leaf of the program, by its words."""

    def leaves(command: click.Command, words: str) -> Iterator[tuple[str, click.Command]]:
        if isinstance(command, click.Group) or hasattr(command, "commands"):
            for name, child in command.commands.items():  # type: ignore[attr-defined]
                yield from leaves(child, f"{words} {name}".strip())
        else:
            yield words, command

    return [(words, leaf) for words, leaf in leaves(typer.main.get_command(app), "") if words not in SKIPPED]


def test_a_trace_of_somebody_elses_steers_no_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Neither a file's name nor what is in it."""
    trace = tmp_path / "tr\x1b[2Jace.csv"
    for written in (
        "a\x1b]0;t\x07\u202e,b\n1,2\n",
        "dp_rank,stage,rank,step,optype,duration\n0,0,\x1b[2J,1,forward-compute,1\n",
    ):
        trace.write_text(written)
        assert main([*OF_A_FILE.split(), str(trace)]) != 0
        out, err = capfd.readouterr()
        assert err and harmful(out + err) == set()


def arguments(command: click.Command, tmp_path: Path) -> list[str]:
    """Something for each argument that must be given."""
    given = []
    for parameter in command.params:
        if parameter.param_type_name == "option" and parameter.required:
            given += [parameter.opts[0], "why"]
        if parameter.param_type_name != "argument" or not parameter.required:
            continue
        if parameter.name == "file":
            spec = tmp_path / "spec.yaml"
            spec.write_text("metadata: {name: a}\nspec: {resources: {nodes: 1, gpus_per_node: 1}}\n")
            given.append(str(spec))
        else:
            numbers = {"replica": "0", "rank": "0", "device": "1", "before": "0", "to": "0", "size": "1"}
            given.append(numbers.get(str(parameter.name), "node_x"))
    # One setting of a project at least is to change.
    weight = any(parameter.name == "weight" for parameter in command.params) and command.name == "set"
    return [*given, *(["--weight", "2"] if weight else [])]


# What sbatch says is another program's: `tests/unit/slurm/test_submit.py`. Slurm's hooks say one line of plain
# characters, on stderr: `tests/unit/slurm/test_observer.py`. A load test prints numbers of the processes
# that it starts: `tests/integration/bench/test_fleet.py`.
ALONE = ("slurm submit", "slurm pilots", "slurm healthcheck", "slurm prolog", "slurm epilog", "bench fleet")
COMMANDS = [(words, command) for words, command in commands() if words not in ALONE]
# Nothing that they print came from a server.
OWN_WORDS = ("config", "version", "job schema", "job features")
# Of the answer they print numbers alone.
NUMBERS = ("policy shadow start", "policy shadow promote", "policy shadow stop")


@pytest.mark.parametrize("words", [words for words, _ in COMMANDS])
def test_no_command_prints_what_steers_a_terminal(
    words: str, hostile: type[Hostile], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = dict(COMMANDS)[words]
    formats = FORMS if any(p.name == "output" for p in command.params) else (None,)
    for form in formats:
        argv = [*words.split(), *arguments(command, tmp_path), *(["-o", form] if form else [])]
        capfd.readouterr()
        code = main(argv)
        out, err = capfd.readouterr()
        assert code in (0, 1), (argv, code, err)
        assert "this is a bug" not in err, (argv, err)
        assert harmful(out + err) == set(), argv
        assert MARK in out + err or form == "name" or words in (*OWN_WORDS, *NUMBERS), (argv, out, err)
        if form == "json" and words not in OWN_WORDS:
            assert SENT in values(json.loads(out)), "a program gets the text as it came"
        if form == "yaml" and words not in OWN_WORDS:
            assert SENT in values(yaml.safe_load(out))


@pytest.mark.parametrize("words", [words for words, _ in COMMANDS if words not in OWN_WORDS])
def test_no_refusal_prints_what_steers_a_terminal(
    words: str, hostile: type[Hostile], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    hostile.refuse = True
    for debug in ([], ["--debug"]):
        code = main([*debug, *words.split(), *arguments(dict(COMMANDS)[words], tmp_path)])
        out, err = capfd.readouterr()
        assert code != 0
        assert MARK in out + err
        assert harmful(out + err) == set(), (words, debug)


def values(document: Any) -> set[Any]:
    """Every text in it."""
    if isinstance(document, dict):
        return {text for pair in document.items() for part in pair for text in values(part)}
    if isinstance(document, list):
        return {text for part in document for text in values(part)}
    return {document} if isinstance(document, str) else set()


@settings(max_examples=300, deadline=None)
@given(value=st.text(st.characters(exclude_categories=[])))
def test_nothing_harmful_passes_the_door_in_any_form(value: str) -> None:
    columns = (Column(title="NAME", show=text("name")), Column(title="STATE", show=text("state"), state=True))
    row = {"name": value, "state": "running", "more": [{value: value}]}
    for form in Format:
        for colour in (False, True):
            out = io.StringIO()
            emit_rows([row], columns, form, Screen(out, colour, None), name="name")
            emit_object(row, columns, form, Screen(out, colour, 60), name="name")
            assert harmful(out.getvalue().replace("\x1b[32m", "").replace("\x1b[0m", "")) == set()


def test_a_text_cannot_borrow_our_colours() -> None:
    out = io.StringIO()
    columns = (Column(title="NAME", show=text("name")), Column(title="STATE", show=text("state"), state=True))
    emit_rows(
        [{"name": "\x1b[32mready\x1b[0m", "state": "failed"}],
        columns,
        Format.TABLE,
        Screen(out, True, None),
        name="name",
    )
    assert out.getvalue().splitlines()[1] == "\\x1b[32mready\\x1b[0m  \x1b[31mfailed\x1b[0m"


def test_plain_text_of_any_language_is_shown_as_it_is() -> None:
    for plain in ("d\u00e9j\u00e0 vu", "\u65e5\u672c\u8a9e", "\u0627\u0644\u0639", "[red]", "C:\\x1b", "a\tb\nc"):
        assert shown(plain) == plain


def test_the_agents_log_stays_one_line_a_record_whatever_a_rank_says() -> None:
    program = (
        "from agents.log import note\n"
        "note('rank said', text='a\\nb\\x1b[2J\\u202e\\ud800\\x00', many=['\\ud800', 2**80], number=2**80, ratio=0.5)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[3], capture_output=True, check=True
    )
    (line,) = done.stderr.decode().splitlines()
    assert harmful(line) == set()
    assert json.loads(line)["text"] == "a\nb\\x1b[2J\\u202e\\ud800\\x00"


def test_the_servers_log_stays_one_line_a_record_too() -> None:
    program = (
        "from controlplane.runtime.logs import configure, get\n"
        "configure()\n"
        "get('x').info('said', text='a\\nb\\x1b[2J\\x7f\\u202e\\ud800\\x00')\n"
        "import logging; logging.getLogger('y').warning('%s', 'a\\nb\\x1b\\x7f')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[3], capture_output=True, check=True
    )
    lines = done.stderr.decode().splitlines()
    assert len(lines) == 2
    assert harmful("".join(lines)) == set()
