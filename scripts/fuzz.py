"""`make fuzz`: schemathesis for long, every phase and every kind of caller, on SQLite and on a private
PostgreSQL. `python scripts/fuzz.py [EXAMPLES [SEED]]`; prints what was answered, exits 1 on any 5xx."""

import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from controlplane.demo.private_postgres import private_postgres

ROOT = Path(__file__).resolve().parent.parent
TESTS = "tests/attacks/api/test_v14_fuzz.py"
EXAMPLES = 50


def run(database: str, examples: int, seed: int, env: dict[str, str]) -> int:
    """One database; the answers by caller and status go to stderr."""
    print(f"--- {database}: {examples} examples of an operation, seed {seed}", flush=True)
    fuzzing = {"HOLDFAST_TEST_FUZZ_EXAMPLES": str(examples), "HOLDFAST_TEST_FUZZ_SEED": str(seed)}
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:logging", TESTS]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | fuzzing | env, check=False, stderr=subprocess.PIPE)
    lines = done.stderr.decode(errors="replace").splitlines()
    print("\n".join(line for line in lines if " answers (" in line), flush=True)
    return done.returncode


def main(argv: list[str]) -> int:
    """Both databases, one after the other; 1 if either found something."""
    examples = int(argv[0]) if argv else EXAMPLES
    seed = int(argv[1]) if len(argv) > 1 else int(time.time())
    failed = run("SQLite", examples, seed, {})
    with private_postgres() as url:
        postgres = {"HOLDFAST_TEST_DATABASE": "postgres", "HOLDFAST_DATABASE_URL": url}
        failed += run("PostgreSQL", examples, seed, postgres)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
