"""What Slurm's own hooks run on a node beside the agent: `healthcheck`, `prolog` and `epilog`. Within two seconds.

`python -m controlplane.slurm.observer HOOK` (the scripts of deploy/slurm), and `holdfast slurm HOOK`. The server is
asked for this node by its name, Slurm for what it believes (`health`). A server or a Slurm that is down, slow or
answers garbage changes nothing: one line on stderr and in the system's log, and the job runs. The prolog refuses a job,
with `REFUSES`, only where the node is drained, with its reason to be read by `sinfo -R`: after a refusal alone Slurm
drains it in its own words, and nobody would undo that.
"""

import argparse
import http.client
import os
import ssl
import sys
import syslog
import threading
import time
import tomllib
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from controlplane.engines.slurm import answers, health, tools
from controlplane.engines.slurm.answers import name_in_holdfast
from controlplane.protocol.plain import shown
from controlplane.slurm.environment import observed
from controlplane.slurm.plan import is_server

HOOKS = ("healthcheck", "prolog", "epilog")
REFUSES = 17
"""Exit code of a prolog that refuses; no other program's crash has it by chance, so that a broken one lets jobs run."""
WORK_S, LAST_S = 1.4, 0.2
"""From the first line of ours to the last; what starts the interpreter is not in it. LAST_S: so much earlier whatever
was begun is ended by itself, so that the line says what became of it."""
MAX_ANSWER_BYTES = 4 << 20
MAX_CONFIG_BYTES = 1 << 16
KEYS = {"url", "token", "ca_file", "node", "agents"}
RESIDENT, PILOTS = "resident", "pilots"


class NoNewsError(RuntimeError):
    """Nothing can be concluded; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`ca_file` "": the system's certificates. `node`: its name in Slurm, of which the one in Holdfast follows
    (`answers.name_in_holdfast`). `piloted`: its agent runs in pilots alone, and not for good."""

    url: str
    token: str
    ca_file: str
    node: str
    piloted: bool = False


def run(hook: str, settings: Settings, *, until_s: float) -> tuple[int, str]:
    """(exit code, the line to be said, "" for none). `until_s`: of the monotonic clock. Raises NoNewsError."""
    node = health.parsed(_ask(settings, until_s), name_in_holdfast(settings.node))
    if node is None:
        raise NoNewsError("the server's answer is none about this node")
    why = health.unfit(node, piloted=settings.piloted)
    if not why and hook != "healthcheck":
        return 0, ""
    believed = answers.believed(_run(("scontrol", "--oneliner", "show", "node", settings.node), until_s), settings.node)
    if believed is None:
        raise NoNewsError("Slurm does not say what it believes of this node")
    act = health.act(node, believed, may_undo=hook == "healthcheck", piloted=settings.piloted)
    if act is not health.Act.NOTHING:
        _run(health.update(settings.node, act, why), until_s)
    if hook == "prolog":
        return REFUSES, f"job refused: {health.reason(why)}"
    words = {health.Act.DRAIN: f"drained: {health.reason(why)}", health.Act.UNDRAIN: "is well again: drain undone"}
    return 0, words.get(act, "")


def settings_of(path: Path, node: str) -> Settings:
    """Of the file, for `node` unless that names one. Raises NoNewsError."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise NoNewsError(f"{path} holds a token and is open to others: chmod 600 it")
            values = tomllib.loads(file.read(MAX_CONFIG_BYTES).decode())
    except (OSError, ValueError) as error:
        raise NoNewsError(f"{path} cannot be read: {error}") from error
    if unknown := sorted(values.keys() - KEYS):
        raise NoNewsError(f"{path}: unknown key {unknown[0]!r}; known are {', '.join(sorted(KEYS))}")
    if not all(isinstance(value, str) and value.isprintable() for value in values.values()):
        raise NoNewsError(f"{path}: each value is one line of text in quotes")
    url, token, name = (str(values.get(key, "")) for key in ("url", "token", "node"))
    if not is_server(url) or not token.isascii() or not token:
        raise NoNewsError(
            f"{path}: url must be https://HOST[:PORT], or http:// on loopback, and token one of Holdfast's"
        )
    if not (name or node):
        raise NoNewsError(f"no name of this node is known: {path} may say node = ...")
    agents = values.get("agents", RESIDENT)
    if agents not in (RESIDENT, PILOTS):
        raise NoNewsError(f"{path}: agents is {RESIDENT!r} (they run for good) or {PILOTS!r} (in pilots alone)")
    authority = str(values.get("ca_file", ""))
    return Settings(url=url.rstrip("/"), token=token, ca_file=authority, node=name or node, piloted=agents == PILOTS)


def _ask(settings: Settings, until_s: float) -> bytes:
    """The server's answer about the node. Follows no redirect, as that would carry the token elsewhere."""
    try:
        link = _link(settings, max(0.05, until_s - time.monotonic()))
        try:
            headers = {"Authorization": f"Bearer {settings.token}", "Accept": "application/json"}
            link.request(
                "GET", f"/api/v1/nodes/{urllib.parse.quote(name_in_holdfast(settings.node), safe='')}", headers=headers
            )
            answer = link.getresponse()
            body = answer.read(MAX_ANSWER_BYTES + 1)
        finally:
            link.close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NoNewsError(f"the server does not answer: {error}") from error
    if answer.status == http.client.NOT_FOUND:
        raise NoNewsError(f"the server knows no node {name_in_holdfast(settings.node)!r}")
    if answer.status != http.client.OK or len(body) > MAX_ANSWER_BYTES:
        raise NoNewsError(f"the server answers {answer.status}, {len(body)} bytes")
    return body


def _link(settings: Settings, limit_s: float) -> http.client.HTTPConnection:
    where = urllib.parse.urlsplit(settings.url)
    if where.scheme != "https":
        return http.client.HTTPConnection(where.netloc, timeout=limit_s)
    trusted = ssl.create_default_context(cafile=settings.ca_file or None)
    return http.client.HTTPSConnection(where.netloc, timeout=limit_s, context=trusted)


def _run(argv: Sequence[str], until_s: float) -> str:
    """What one of Slurm's programs prints. Raises NoNewsError."""
    text = tools.ask(*argv, timeout_s=max(0.05, until_s - time.monotonic()))
    if text is None:
        raise NoNewsError(f"`{' '.join(argv[:2])}` does not work or takes too long")
    return text


def main(argv: Sequence[str]) -> int:
    """The exit code: REFUSES, or 0 whatever happens."""
    parser = argparse.ArgumentParser(prog="python -m controlplane.slurm.observer", description="A hook of Slurm's.")
    parser.add_argument("hook", choices=HOOKS)
    parser.add_argument("--config", type=Path, help="the file with url and token")
    options = parser.parse_args(argv)
    return guarded(options.hook, options.config)


def guarded(hook: str, config: Path | None) -> int:
    """The work in a thread of its own: a name server, a file system or a program that hangs is left behind."""
    until_s = time.monotonic() + WORK_S
    found = [(0, f"no answer within {WORK_S:.1f} s: nothing is concluded")]

    def work() -> None:
        try:
            path, node = observed()
            found[0] = run(hook, settings_of(config or path, node), until_s=until_s - LAST_S)
        except NoNewsError as error:
            found[0] = (0, f"{error}: nothing is concluded")
        except Exception as error:  # Of a hook that fails Slurm drains the node: no fault of ours may do that.
            found[0] = (0, f"fault in the hook: {type(error).__name__}: {error}")

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(max(0.0, until_s - time.monotonic()))
    code, line = found[0]
    if line:
        _say(f"holdfast slurm {hook}: {shown(line)}")
    return code


def _say(line: str) -> None:
    """One line, on stderr and in the system's log."""
    print(line, file=sys.stderr, flush=True)
    syslog.syslog(syslog.LOG_DAEMON | syslog.LOG_NOTICE, line)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    # Not `sys.exit`: that may wait for what was left behind.
    sys.stderr.flush()
    os._exit(code)
