"""`make check`: format, lint, types, contracts, migrations, generated files, the page and its bundle.

Runs every check, says which failed, exits 1 if any did. The checks of the page need npm; without
it they are named as not checked, because nobody needs Node to run Holdfast.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STRICT = (
    "controlplane/protocol",
    "controlplane/policy",
    "controlplane/changes",
    "controlplane/simulator",
    "agents/core",
    "trainer/control",
    "trainer/core",
    "controlplane/cli",
    "controlplane/slurm",
    "controlplane/bench",
)
PY = sys.executable

CHECKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("format", (PY, "-m", "ruff", "format", "--check", ".")),
    ("lint", (PY, "-m", "ruff", "check", ".")),
    ("types (strict)", (PY, "-m", "mypy", "--strict", *STRICT)),
    ("imports", (str(Path(PY).parent / "lint-imports"), "--no-cache")),
    ("migrations", (PY, "manage.py", "makemigrations", "--check", "--dry-run")),
    ("states doc", (PY, "-m", "controlplane.policy.states_doc", "--check")),
    ("signals doc", (PY, "-m", "controlplane.policy.signals_doc", "--check")),
    ("readings doc", (PY, "-m", "controlplane.policy.readings_doc", "--check")),
    ("policy doc", (PY, "-m", "controlplane.policy.policy_doc", "--check")),
    ("protocol doc", (PY, "-m", "controlplane.protocol.doc", "--check")),
    ("job schema", (PY, "-m", "controlplane.protocol.spec_schema", "--check")),
    ("maturity", (PY, "-m", "controlplane.jobs.maturity", "--check")),
    ("openapi", (PY, "-m", "controlplane.api.openapi", "--check")),
    # Says "not checked" itself where the network has no answer about a pin.
    ("known vulnerabilities", (PY, "scripts/audit_pins.py")),
)
# In this order: the bundle is built from a fresh install, which the page's own checks then use.
PAGE_CHECKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("bundle", ("bash", "scripts/verify_bundle.sh")),
    ("page", ("npm", "--prefix", "frontend", "run", "check")),
)
CHECK_TIMEOUT_S = 600.0


def run(command: tuple[str, ...]) -> tuple[bool, str]:
    """True if `command` succeeded in time, and all that it said."""
    env = os.environ | {"DJANGO_SETTINGS_MODULE": "controlplane.config.settings.test", "NO_COLOR": "1"}
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=CHECK_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        said = error.stdout or b""
        return False, f"{said.decode(errors='replace')}\nnot done after {CHECK_TIMEOUT_S:.0f} s"
    except OSError as error:
        return False, str(error)
    return done.returncode == 0, done.stdout


def main() -> int:
    """Run all checks; 1 if any failed. `--installed`: the page's packages are, and others use them meanwhile."""
    checks = list(CHECKS)
    if shutil.which("npm"):
        (bundle, build), *others = PAGE_CHECKS
        more = ("--no-install",) if "--installed" in sys.argv[1:] else ()
        checks.extend([(bundle, (*build, *more)), *others])
    else:
        print(f"NOT CHECKED, there is no npm here: {', '.join(name for name, _ in PAGE_CHECKS)}", flush=True)
    failed = []
    for name, command in checks:
        started_s = time.monotonic()
        passed, said = run(command)
        took_s = time.monotonic() - started_s
        print(f"{'ok  ' if passed else 'FAIL'} {name} ({took_s:.1f} s)", flush=True)
        if not passed:
            failed.append(name)
            print(said[-6000:], flush=True)
        elif "NOT CHECKED" in said:
            print(said.strip(), flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
