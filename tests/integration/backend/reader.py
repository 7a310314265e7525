"""Somebody who follows a page: a folder like a checkout, with curl, `holdfast` and `manage.py`."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from tests.forks import command
from tests.house.tree import ROOT

DOCUMENTED_URLS = ("http://127.0.0.1:8000", "https://holdfast.example.org")
"""Addresses of the server in documents: the only thing that is changed in what they say."""
ENDLESS_S, BLOCK_S = 3, 240.0
# The real curl; a stream that never ends is left after a while. Each status is noted with its request.
CURL = """#!/bin/bash
body=$(mktemp)
case "$*" in *events/watch*) limit=ENDLESS ;; *) limit=30 ;; esac
status=$(CURL --max-time $limit -o "$body" -w '%{http_code}' "$@")
code=$?
echo "$status $*" >> "$STATUSES"
cat "$body"
[ $code = 28 ] && [ $limit = ENDLESS ] && exit 0
exit $code
""".replace("ENDLESS", str(ENDLESS_S))

# What is of `manage.py` is Django's and ours before anything else: those are imported already.
PYTHON = """#!/bin/sh
[ "$1" = manage.py ] && exec {ready} "$@"
exec {forked} "$@"
"""


class Reader:
    """Somebody who follows a page in a checkout: `var/demo/token`, `examples`, curl and holdfast."""

    def __init__(self, folder: Path, url: str, token: str) -> None:
        self.folder, self.url = folder, url
        self.statuses = folder / "statuses"
        self.statuses.touch()
        self.state = folder / "state.sh"
        self.state.touch()
        (folder / "var" / "demo").mkdir(parents=True)
        (folder / "var" / "demo" / "token").write_text(f"{token}\n")
        (folder / "token.txt").write_text(f"{token}\n")
        (folder / "examples").symlink_to(ROOT / "examples")
        (folder / "manage.py").symlink_to(ROOT / "manage.py")
        self.programs = folder / "bin"
        self.programs.mkdir()
        self._program("curl", CURL.replace("CURL", shlex.quote(shutil.which("curl") or "curl")))
        forked, ready = shlex.join(command(kind="server")), shlex.join(command(kind="backend"))
        self._program("python", PYTHON.format(forked=forked, ready=ready))
        self._program("holdfast", f'#!/bin/sh\nexec {forked} -m controlplane.cli "$@"\n')
        self.environment = {
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "HOME": str(folder),
            "PYTHONPATH": str(ROOT),
            "STATUSES": str(self.statuses),
            "HOLDFAST_URL": url,
            "HOLDFAST_TOKEN": token,
            "HOLDFAST_CLI_CONFIG": str(folder / "config.toml"),
        }

    def _program(self, name: str, text: str) -> None:
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)

    def shell(self, text: str) -> str:
        """Run one block; what it exports, the next ones have. Its output. Who is asked for a token
        gives it."""
        script = f"set -eu -o pipefail\n. {self.state}\n{self._here(text)}\nexport -p > {self.state}\n"
        return self._run(["bash", "-c", script])

    def python(self, text: str) -> str:
        """Run a page's whole Python."""
        return self._run([sys.executable, "-c", self._here(text)])

    def shorten(self, steps: int) -> None:
        """The examples train so many steps: they are followed to their end."""
        (self.folder / "examples").unlink()
        shutil.copytree(ROOT / "examples", self.folder / "examples")
        for path in (self.folder / "examples").glob("*.yaml"):
            text = re.sub(r"steps: 2000", f"steps: {steps}", path.read_text())
            path.write_text(text if "training:" in text else f"{text}  training: {{steps: {steps}}}\n")

    def _here(self, text: str) -> str:
        for documented in DOCUMENTED_URLS:
            text = text.replace(documented, self.url)
        return text

    def answers(self) -> list[tuple[int, str]]:
        """(status, request) of each curl, in order."""
        lines = [line.partition(" ") for line in self.statuses.read_text().splitlines()]
        return [(int(status), request) for status, _, request in lines]

    def _run(self, argv: list[str]) -> str:
        done = subprocess.run(
            argv, cwd=self.folder, env=self.environment, input=f"{self.environment['HOLDFAST_TOKEN']}\n",
            capture_output=True, text=True, timeout=BLOCK_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{argv[-1]}\n--- out\n{done.stdout[-3000:]}\n--- err\n{done.stderr[-3000:]}"
        return done.stdout
