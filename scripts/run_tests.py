"""`make test`: the checks and every test set, each once, with a private PostgreSQL.

Sets: fast (unit, properties, simulation, contracts, house), attacks (each hole that was found,
replayed), install (the pages of installation, block by block, and the images' programs), services
(real Redis, sockets, agents, processes), rows (the backend over rows alone: `rows_alone`), trainer (real ranks),
postgres (the backend's sets and attacks that a database decides again on PostgreSQL), scenes (the whole ring
broken five ways), alerts (each shipped alert fired and resolved by a real fault; it waits most of its six minutes),
e2e (pages in a browser), slurm (guest mode on a real Slurm, where it is installed). `all` is check + all of them
but the last (`APART`), two at a time (`QUEUE`) with the alerts beside, and at a low
priority, one after the other, those that wait for nobody (`FILLS`), which take what the others leave. The scenes
come last, with nothing beside them but the rest of those: what they wait for is the whole ring's own pace. What
pytest prints goes to var/tests/SET.log; of it are shown here the progress, the skips, the slowest and the sum, so
that a whole run stays short enough to be read. What failed is told when its set ends, with the time
that the set took by the clock and of the cores (`processor_time`), and again, a line for each, at the very end.
A failed test whose processes keep real clocks is run once more, alone, when all else is over (`second_run`): a set
counts as passed if all of its failed tests pass then, and each of these has its line at the very end too.
"""

import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from processor_time import adopt, children, taken_s, wait_for_adopted
from second_run import MOST_TESTS, WAITS, failed_tests, first_options, may_repeat, passed_tests, second_options

from controlplane.demo.private_postgres import MissingPostgres, private_postgres

ROOT = Path(__file__).resolve().parent.parent
PY = sys.executable
FAST = ("tests/unit", "tests/properties", "tests/simulation", "tests/contracts", "tests/house")
RANKS = ("tests/integration/trainer", "tests/integration/workloads")
INSTALL = ("tests/integration/install",)
OTHERS = tuple(
    str(path.relative_to(ROOT))
    for path in sorted((ROOT / "tests" / "integration").glob("[!_]*/"))
    if str(path.relative_to(ROOT)) not in (*RANKS, *INSTALL)
)
BACKEND = ("tests/integration/api", "tests/integration/backend")
# Each is a ring of its own, and needs both cores for itself: two at once take longer than one after the other.
SCENES = tuple(
    f"tests/scenes/test_{name}.py"
    for name in (
        "restore", "silent_node", "replica_failure", "heat_and_spares", "backend_outage", "prometheus",
        "left_out_first", "up", "recomputed_step", "spot_notice", "storage_stall", "urgent_job", "quotas",
        "stall_of_few",
    )
)  # fmt: skip
REPORTS = ROOT / "var" / "tests"
TOLD_LINES, FIRST_LINES, TOLD_CHARS, SHORT_CHARS, POLL_S = 12, 4, 300, 160, 0.2
TITLE = re.compile(r"=+ (.+) =+")
TOLD = re.compile(r"E |>|\S+\.py:\d+: ")
SHOWN = ("short test summary", "slowest", "processor time")
# What an attacker meets can differ by database where rows are written and read; the others are about
# Redis, files, the sandbox and sockets alone.
ATTACKED_BACKEND = (
    "tests/attacks/api",
    *(
        f"tests/attacks/backend/{name}.py"
        for name in (
            "test_enrolment_garbage", "test_f25_cross_node_matrix",
            "test_f26_env_at_rest", "test_f26_stolen_secrets", "test_held_nodes", "test_own_quarantine",
            "test_v01_checkpoint_paths", "test_v02_dead_letters",
            "test_v02_generated_events", "test_v02_what_passes_is_stored", "test_v05_copied_key",
            "test_v15_takeover", "test_v17_token_in_no_row", "test_v18_commands",
        )
    ),
)  # fmt: skip
# Who may do what is decided before any row is read, and pages say the same: alike on both databases. The last is
# about SQLite alone.
NEVER_ON_POSTGRES = (
    "tests/integration/api/test_access.py",
    "tests/integration/backend/test_documents.py",
    "tests/integration/backend/test_every_command.py",
    "tests/integration/backend/test_sqlite.py",
)
# What is concluded from rows that either database gives alike, and what is about sockets, files and streams:
# `make test-postgres` and `make test-attacks`, before a release, run these on PostgreSQL too. `make test` keeps
# there to what a database decides: locks, constraints, order, transactions, types, large reads.
JUDGED = (
    *(
        f"tests/attacks/{name}.py"
        for name in (
            "api/test_i11_secrets_stay_secret", "api/test_v01_checkpoint_roots",
            "api/test_v08_what_the_database_holds", "api/test_v09_children_of_tokens",
            "api/test_v10_scope_of_the_owner", "api/test_v11_who_revokes_what", "api/test_v12_streams_end",
            "api/test_v19_kept_sentences", "api/test_v19_shared_answers", "api/test_v19_side_doors",
            "api/test_v20_one_rate", "api/test_v20_web", "api/test_v22_everything_is_audited",
            "backend/test_f25_cross_node_matrix", "backend/test_f26_env_at_rest",
            "backend/test_f26_stolen_secrets", "backend/test_held_nodes", "backend/test_own_quarantine",
            "backend/test_v01_checkpoint_paths", "backend/test_v05_copied_key", "backend/test_v15_takeover",
            "backend/test_v17_token_in_no_row", "backend/test_v18_commands",
        )
    ),
    *(
        f"tests/integration/api/test_{name}.py"
        for name in (
            "audit_state", "capabilities", "capacity", "device_faults", "device_resets", "fields", "incident_readings",
            "incidents", "join_tokens", "mesh", "one_replica", "passwords", "problems", "project_access", "queue",
            "ranks", "requests", "series", "static_files", "told_to_the_page", "unchanged",
        )
    ),
    *(
        f"tests/integration/backend/test_{name}.py"
        for name in (
            "bound_sessions", "breaker", "certificate_clocks", "certificates", "checkpoint_age", "checkpoints",
            "choices", "clock_and_ages", "clock_and_effective_time", "clock_and_incidents", "clock_and_limits",
            "clock_set", "clock_steps", "common_stall", "consent", "counters_before", "device_resets",
            "effective_time", "effective_time_joined", "elsewhere", "ends", "entrypoints", "event_numbers", "evidence",
            "figures", "figures_agree", "fleetmap", "gpu_ledger", "held_nodes", "identity", "incident_causes",
            "incident_machine", "incident_timeline", "incidents", "keeping", "known_ends", "lasting_flags",
            "launch_fields", "ledger_failures", "ledger_preemption", "load_growth", "logs", "looks",
            "make_room", "node_findings", "not_heard", "one_truth", "opinion", "pace", "policies", "preemption",
            "quotas", "readers", "real_clock", "recompute", "relief", "replay", "requests", "resumptions",
            "set_back", "shadow", "shared_incidents", "shared_runs", "sockets", "speed", "stall", "stuck",
            "two_deaths", "two_nodes", "unknown_signals", "void_starts", "windows", "work_at_risk",
        )
    ),
)  # fmt: skip
RING = "tests/integration/backend/test_ring.py"


def rows_alone() -> tuple[str, ...]:
    """The backend's test files that wait for nobody: in their own process, over rows."""
    files = [path for folder in BACKEND for path in sorted((ROOT / folder).glob("test_*.py"))]
    return tuple(str(path.relative_to(ROOT)) for path in files if not WAITS.search(path.read_text(encoding="utf-8")))


ROWS = rows_alone()
# The whole ring on SQLite is what the scenes break; with PostgreSQL it runs in no other set.
LEFT_OUT = {
    "services": (RING, *ROWS),
    "postgres": (*NEVER_ON_POSTGRES, *JUDGED),
    "whole-postgres": NEVER_ON_POSTGRES,
    "attacks-postgres": NEVER_ON_POSTGRES,
}
POSTGRES = ("tests/integration/backend", "tests/integration/api", *ATTACKED_BACKEND)
SETS: dict[str, tuple[str, ...]] = {
    "fast": FAST,
    "attacks": ("tests/attacks",),
    "install": INSTALL,
    "services": OTHERS,
    "rows": ROWS,
    "trainer": RANKS,
    "postgres": POSTGRES,
    "whole-postgres": ("tests/unit/backend", "tests/unit/api", *POSTGRES),
    "attacks-postgres": ATTACKED_BACKEND,
    "scenes": SCENES,
    "alerts": ("tests/alerts",),
    "e2e": ("tests/e2e",),
    "slurm": ("tests/slurm",),
}
APART = ("slurm",)
"""Not of `all`: asked for by its own name alone."""
# Most of a set is waiting, for processes and for clocks: two of them share two cores well, and the next
# is taken when one has ended, the longest first.
QUEUE = ("services", "trainer", "attacks", "e2e", "postgres", "install")
AT_ONCE = 2
# Waits for Prometheus most of its six minutes: in a lane of its own from the start.
BESIDE = "alerts"
# They compute most of the time, and wait for nobody: they take what the others leave, from the start. What may
# still run beside the scenes comes last: it waits for no clock at all.
FILLS, LOW = ("fast", "rows"), ("nice", "-n", "10")
# Of a test that takes what others leave: half a minute of computing may last ten.
LOW_LIMIT_S = 600
LAST = "scenes"
NPM_CI = ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent")
ALONE = "alone"
"""Of the names of files that a second run leaves, and what its lines begin with."""


def run_all() -> list[str]:
    """The checks, and every set once; the names of those that failed."""
    if shutil.which("npm"):
        # The pages' tests use a package of it, and may come before the checks of the page, or beside them.
        subprocess.run(NPM_CI, cwd=ROOT / "frontend", check=False)
    with ThreadPoolExecutor(1) as beside, ThreadPoolExecutor(1) as below, ThreadPoolExecutor(AT_ONCE) as lanes:
        filled = below.map(lambda name: run_apart(name, before=LOW), FILLS)
        waited = beside.submit(run_apart, BESIDE)
        checked = beside.submit(subprocess.run, [PY, "scripts/check.py", "--installed"], cwd=ROOT, check=False)
        codes = dict(zip(QUEUE, lanes.map(run_apart, QUEUE), strict=True))
        codes |= {BESIDE: waited.result(), "check": checked.result().returncode}
        codes[LAST] = run_apart(LAST)
        codes |= zip(FILLS, filled, strict=True)
    return [name for name, code in codes.items() if code and not passes_alone(name, code)]


def passes_alone(name: str, code: int) -> bool:
    """Whether each failed test of a set that ended with `code` passes when nothing runs beside it."""
    if not may_repeat(name, code, report_of(name), ROOT):
        return False
    run_apart(name, alone=True)
    return failed_tests(report_of(name)) <= passed_tests(report_of(name, ALONE))


def run_apart(name: str, *, before: tuple[str, ...] = (), alone: bool = False) -> int:
    """One set by a process of its own, which so knows what the set takes. `before`: what starts it. `alone`: only
    those of its tests that failed."""
    options = [f"limit_s={LOW_LIMIT_S}"] * bool(before) + [f"part={ALONE}"] * alone
    return subprocess.run([*before, PY, __file__, name, f"{name:8} ", *options], cwd=ROOT, check=False).returncode


def run_set(name: str, *, prefix: str = "", limit_s: str = "", part: str = "") -> int:
    """One pytest run; for `postgres` with a private server around it. `limit_s`: of a test, if not the usual one.
    `part`: `ALONE` for the second run."""
    report, log = report_of(name, part), log_of(name, part)
    for old in (report, report_of(name, ALONE)):
        old.unlink(missing_ok=True)
    cache = report_of(name).with_suffix(".cache")
    options = [
        "-q",
        "-rs",
        "--durations=8",
        f"--junitxml={report}",
        *(second_options(cache) if part else first_options(cache)),
        *([f"--maxfail={MOST_TESTS + 1}"] if name.startswith("scenes") else []),
    ]
    options += [f"--timeout={limit_s}"] if limit_s else []
    paths = paths_of(name)
    command = [PY, "-m", "pytest", *options, *paths]
    print(f"--- {name}: {part or ' '.join(path for path in paths if not path.startswith('-'))}", flush=True)
    started_s = time.monotonic()
    if name.endswith("postgres"):
        try:
            with private_postgres() as url:
                env = os.environ | {"HOLDFAST_TEST_DATABASE": "postgres", "HOLDFAST_DATABASE_URL": url}
                # The database goes with its server; to drop it waits 5 s for a connection that is still open.
                code = run_pytest([*command, "--reuse-db"], log, env, prefix=prefix)
        except MissingPostgres as error:
            print(f"postgres: NOT RUN, {error}")
            code = 1 if os.environ.get("CI") else 0
    else:
        code = run_pytest(command, log, dict(os.environ), prefix=prefix)
    for line in failures(report):
        print(line)
    where = f", all of it: {log.relative_to(ROOT)}" if code else ""
    wall_s = time.monotonic() - started_s
    print(f"--- {name}: exit {code}, {wall_s:.0f} s, {taken_s():.0f} s of a core{where}", flush=True)
    return code


def paths_of(name: str) -> list[str]:
    """What pytest is given of a set. It runs a file that is named to it, whatever it is told to ignore."""
    left = LEFT_OUT.get(name, ())
    return [*(path for path in SETS[name] if path not in left), *(f"--ignore={path}" for path in left)]


def run_pytest(command: list[str], log: Path, env: dict[str, str], *, prefix: str = "") -> int:
    """Run it; all it prints to `log`, the readable part of it to here, `prefix` before each line."""
    log.parent.mkdir(parents=True, exist_ok=True)
    own = children()
    with log.open("w") as whole:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=whole, stderr=subprocess.STDOUT)
    for line in readable(followed(log, process, own | {process.pid})):
        print(f"{prefix}{line}", end="", flush=True)
    return process.wait()


def followed(log: Path, process: subprocess.Popen[bytes], own: frozenset[int]) -> Iterator[str]:
    """The lines of `log` until the process has ended: a child of its that lives on, and holds the
    file open, keeps nobody waiting. `own`: children that others wait for."""
    with log.open(errors="replace") as text:
        line, ended = "", False
        while not ended:
            ended = process.poll() is not None
            wait_for_adopted(own)
            while more := text.readline():
                line += more
                if line.endswith("\n"):
                    yield line
                    line = ""
            time.sleep(0.0 if ended else POLL_S)
        if line:
            yield line


def readable(lines: Iterable[str]) -> Iterator[str]:
    """Pytest's progress, skips, durations and its last line; not what failing tests and warnings say."""
    shown, line, printed = True, "", True
    for line in lines:
        title = TITLE.fullmatch(line.strip())
        shown = title[1].startswith(SHOWN) if title else shown
        printed = shown and not title
        if printed:
            yield line
    if not printed:
        yield line


def report_of(name: str, part: str = "") -> Path:
    """Where pytest leaves what it found in a set. `part`: `ALONE` for its second run."""
    return REPORTS / f"{name}{part and '.'}{part}.xml"


def log_of(name: str, part: str = "") -> Path:
    """Where all that pytest printed of a set is kept."""
    return report_of(name, part).with_suffix(".log")


def failures(report: Path) -> list[str]:
    """A set's failed tests, each with its lines and the beginning and end of what it said; none
    where pytest left no report."""
    if not report.exists():
        return []
    told = []
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314 - pytest wrote it
        for found in [*case.iter("failure"), *case.iter("error")]:
            lines = [line for line in (found.text or "").splitlines() if TOLD.match(line)]
            if len(lines) > TOLD_LINES:
                # An error begins with what it is; a process that failed under a test says what was
                # wrong in its last words.
                errors = [line for line in lines if line.startswith("E ")]
                lines = [*errors[:FIRST_LINES], *lines[FIRST_LINES - TOLD_LINES :]]
            said = "\n".join(f"    {line[:TOLD_CHARS]}" for line in lines)
            told.append(f"{case.get('classname')}::{case.get('name')} ({found.tag})\n{said}")
    return told


def in_short(told: str) -> str:
    """One line of a failed test: its name, and the first and the last of what its error said."""
    name, *lines = told.splitlines()
    errors = [line.strip()[1:].strip()[:SHORT_CHARS] for line in lines if line.strip().startswith("E ")]
    return f"{name}: {' ... '.join(dict.fromkeys((*errors[:1], *errors[-1:])))}"


def verdicts(names: Iterable[str]) -> list[str]:
    """A line for each failed test of these sets; those that passed at the second run come last, and say so."""
    failed, passed = [], []
    for name in names:
        alone = passed_tests(report_of(name, ALONE))
        for report in failures(report_of(name)):
            title = report.splitlines()[0]
            test, line = title.rpartition(" (")[0], in_short(report)
            if test in alone:
                passed.append(f"passed at the second run, alone: {test} (first: {line.removeprefix(title)[2:]})")
            else:
                failed.append(f"{name}: {line}")
    return failed + passed


def main(argv: list[str]) -> int:
    """Run what was asked for; 1 if any of it failed, 2 if it is not known."""
    wanted = argv[0] if argv else "all"
    if wanted != "all" and wanted not in SETS:
        print(f"unknown test set {wanted!r}; one of: all, {', '.join(SETS)}")
        return 2
    if wanted != "all":
        adopt()
        if argv[1:]:  # `run_apart`, which itself says what failed, at the end.
            return run_set(wanted, prefix=argv[1], **dict(each.split("=") for each in argv[2:]))
    # Parts of other sets are asked for by `make test-attacks` and `make test-postgres`.
    failed = run_all() if wanted == "all" else [wanted] * bool(run_set(wanted))
    for line in verdicts((*QUEUE, BESIDE, LAST, *FILLS) if wanted == "all" else (wanted,)):
        print(line)
    print(f"failed: {', '.join(failed)}" if failed else "all sets passed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
