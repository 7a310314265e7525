"""`make test`: the checks and every test set, each once, with a private PostgreSQL.

Sets: fast (unit, properties, simulation, contracts, house), trainer (real ranks), services
(real Redis, sockets, agents, processes), postgres (the backend's sets again on PostgreSQL),
e2e (pages in a browser), scenes (the whole ring broken five ways). `all` is check + all of
them: a set mostly waits or keeps one core busy, so two lanes run beside each other, and the
scenes, which need both cores, alone at the end. A lane's output comes when its set has ended.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from private_postgres import MissingPostgres, private_postgres

ROOT = Path(__file__).resolve().parent.parent
PY = sys.executable
FAST = ("tests/unit", "tests/properties", "tests/simulation", "tests/contracts", "tests/house")
BACKEND = ("tests/integration/backend", "tests/integration/api")
SETS: dict[str, tuple[str, ...]] = {
    "fast": FAST,
    "trainer": ("tests/integration/trainer", "tests/integration/workloads"),
    "services": (*BACKEND, "tests/integration/agents", "tests/integration/cli"),
    "postgres": ("tests/unit/backend", "tests/unit/api", *BACKEND),
    "e2e": ("tests/e2e",),
    "scenes": ("tests/scenes",),
}
LANES = (("trainer",), ("fast", "services", "postgres", "e2e"))
_printing = threading.Lock()


def run_set(name: str, *, aside: bool = False) -> int:
    """One pytest run; for `postgres` with a private server around it. `aside`: print at the end."""
    command = [PY, "-m", "pytest", "-q", "--durations=8", "-x" if name == "scenes" else "-rs", *SETS[name]]
    title = f"--- {name}: {' '.join(SETS[name])}"
    if not aside:
        print(title, flush=True)
    started_s = time.monotonic()
    with tempfile.TemporaryFile() as output:
        code = _run(name, command, output.fileno() if aside else None)
        output.seek(0)
        with _printing:
            if aside:
                print(title, output.read().decode(errors="replace"), sep="\n")
            print(f"--- {name}: exit {code}, {time.monotonic() - started_s:.0f} s", flush=True)
    return code


def _run(name: str, command: list[str], output: int | None) -> int:
    if name != "postgres":
        return _pytest(command, {}, output)
    try:
        with private_postgres() as url:
            return _pytest(command, {"HOLDFAST_TEST_DATABASE": "postgres", "HOLDFAST_DATABASE_URL": url}, output)
    except MissingPostgres as error:
        print(f"postgres: NOT RUN, {error}")
        return 1 if os.environ.get("CI") else 0


def _pytest(command: list[str], more: dict[str, str], output: int | None) -> int:
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | more, stdout=output, stderr=output, check=False
    ).returncode


def _lane(names: tuple[str, ...]) -> list[str]:
    """Those that failed."""
    return [name for name in names if run_set(name, aside=True)]


def run_all() -> list[str]:
    """Checks, lanes, scenes; what failed."""
    failed = ["check"] if subprocess.run([PY, "scripts/check.py"], cwd=ROOT, check=False).returncode else []
    with ThreadPoolExecutor(len(LANES)) as lanes:
        for found in lanes.map(_lane, LANES):
            failed += found
    return failed + (["scenes"] if run_set("scenes") else [])


def main(argv: list[str]) -> int:
    """Run what was asked for; 1 if any of it failed, 2 if it is not known."""
    wanted = argv[0] if argv else "all"
    if wanted != "all" and wanted not in SETS:
        print(f"unknown test set {wanted!r}; one of: all, {', '.join(SETS)}")
        return 2
    failed = run_all() if wanted == "all" else [wanted] if run_set(wanted) else []
    print(f"failed: {', '.join(failed)}" if failed else "all sets passed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
