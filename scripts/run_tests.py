"""`make test`: the checks and every test set, each once, with a private PostgreSQL.

Sets: fast (unit, properties, simulation, contracts, house), integration (real Redis,
sockets, ranks), postgres (the backend's sets again on PostgreSQL), scenes (the whole
ring broken five ways), e2e (pages in a browser). `all` is check + all of them.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from private_postgres import MissingPostgres, private_postgres

ROOT = Path(__file__).resolve().parent.parent
PY = sys.executable
FAST = ("tests/unit", "tests/properties", "tests/simulation", "tests/contracts", "tests/house")
SETS: dict[str, tuple[str, ...]] = {
    "fast": FAST,
    "integration": ("tests/integration",),
    "postgres": ("tests/unit/backend", "tests/integration/backend", "tests/unit/api", "tests/integration/api"),
    "scenes": ("tests/scenes",),
    "e2e": ("tests/e2e",),
}
NO_TESTS = 5


def run_set(name: str) -> int:
    """One pytest run; for `postgres` with a private server around it."""
    paths = [path for path in SETS[name] if (ROOT / path).exists()]
    command = [PY, "-m", "pytest", "-q", "--durations=8", "-x" if name == "scenes" else "-rs", *paths]
    print(f"--- {name}: {' '.join(paths)}", flush=True)
    started_s = time.monotonic()
    if name == "postgres":
        try:
            with private_postgres() as url:
                env = os.environ | {"HOLDFAST_TEST_DATABASE": "postgres", "HOLDFAST_DATABASE_URL": url}
                code = subprocess.run(command, cwd=ROOT, env=env, check=False).returncode
        except MissingPostgres as error:
            print(f"postgres: NOT RUN, {error}")
            code = 1 if os.environ.get("CI") else 0
    else:
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
    print(f"--- {name}: exit {code}, {time.monotonic() - started_s:.0f} s", flush=True)
    return code


def main(argv: list[str]) -> int:
    """Run what was asked for; the worst exit code."""
    wanted = argv[0] if argv else "all"
    if wanted != "all" and wanted not in SETS:
        print(f"unknown test set {wanted!r}; one of: all, {', '.join(SETS)}")
        return 2
    failed = []
    if wanted == "all":
        check = subprocess.run([PY, "scripts/check.py"], cwd=ROOT, check=False).returncode
        if check:
            failed.append("check")
    for name in SETS if wanted == "all" else (wanted,):
        if run_set(name) not in (0,):
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "all sets passed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
