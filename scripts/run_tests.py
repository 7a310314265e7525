"""`make test`: the checks and every test set, each once, with a private PostgreSQL.

Sets: fast (unit, properties, simulation, contracts, house), trainer (real ranks), services
(real Redis, sockets, agents, processes), postgres (the backend's sets again on PostgreSQL),
e2e (pages in a browser), scenes (the whole ring broken five ways). `all` is check + all of
them, in stages: sets that mostly wait or keep one core busy run two at a time, and those of
real ranks, which need both cores, alone. The output of two comes when each has ended.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from private_postgres import MissingPostgres, private_postgres

ROOT = Path(__file__).resolve().parent.parent
PY = sys.executable
FAST = ("tests/unit", "tests/properties", "tests/simulation", "tests/contracts", "tests/house")
BACKEND = ("tests/integration/backend", "tests/integration/api")
RANKS = ("tests/integration/trainer", "tests/integration/workloads")
OTHERS = tuple(
    str(path.relative_to(ROOT))
    for path in sorted((ROOT / "tests" / "integration").glob("[!_]*/"))
    if str(path.relative_to(ROOT)) not in RANKS
)
SETS: dict[str, tuple[str, ...]] = {
    "fast": FAST,
    "trainer": RANKS,
    "services": OTHERS,
    "postgres": ("tests/unit/backend", "tests/unit/api", *BACKEND),
    "e2e": ("tests/e2e",),
    "scenes": ("tests/scenes",),
}
STAGES = (("fast", "e2e"), ("services", "postgres"), ("trainer",), ("scenes",))
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


def run_all() -> list[str]:
    """Checks and stages; what failed."""
    failed = ["check"] if subprocess.run([PY, "scripts/check.py"], cwd=ROOT, check=False).returncode else []
    for stage in STAGES:
        with ThreadPoolExecutor(len(stage)) as beside:
            codes = beside.map(partial(run_set, aside=len(stage) > 1), stage)
            failed += [name for name, code in zip(stage, codes, strict=True) if code]
    return failed


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
