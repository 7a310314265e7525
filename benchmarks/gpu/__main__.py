"""One command for a machine with one NVIDIA GPU, in the Python that is there, without network.

    make gpu-check [WHEELS=folder]          python3 -m benchmarks.gpu [--cpu] [--wheels folder]

Each part runs in a process of its own with a limit of its own, all within eight minutes, the
installation included; a part that fails or hangs takes no other with it, and nothing that it has
started outlives it. What this Python lacks is installed from the wheels in `--wheels` into
var/gpu, never into the machine. `--cpu` runs the same parts where no
card is: gloo, simulated devices, no claim about a GPU. This module uses the standard library alone.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.ending import adopting, end
from benchmarks.gpu.page import Part, page

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "var" / "gpu" / "site"
BUDGET_S = 460.0
INSTALL_LIMIT_S = 120.0
NEEDED = ("torch", "megatron.core", "msgspec", "xxhash", "numpy", "pynvml")


@dataclass(frozen=True, slots=True)
class Task:
    """A module of this package that is run by itself; `limit_s` of wall clock."""

    name: str
    title: str
    limit_s: float


TASKS = (
    Task("readings", "The real NVML beside nvidia-smi", 60.0),
    Task("timing", "Times by CUDA events", 60.0),
    Task("stream", "Catch-up on a stream of its own", 60.0),
    Task("nccl", "NCCL", 90.0),
    Task("ring_one", "The trainer with one replica", 140.0),
    Task("ring_two", "The trainer with two replicas on one card, one of them killed", 180.0),
)


def install(wheels: Path, *, limit_s: float) -> str:
    """Wheels to var/gpu/site; what pip reported where that failed or took more than `limit_s`, else ""."""
    files = sorted(map(str, wheels.glob("*.whl")))
    if not files:
        return f"{wheels} holds no wheels"
    command = [
        *(sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile", "--upgrade"),
        *("--target", str(SITE), *files),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return f"not over within {limit_s:g} s"
    return done.stderr.strip() if done.returncode else ""


def missing(env: dict[str, str]) -> list[str]:
    """Modules of NEEDED that this Python does not have."""
    program = "import importlib.util as u, sys\nfor n in sys.argv[1:]:\n try: f = u.find_spec(n)\n"
    program += " except ModuleNotFoundError: f = None\n if f is None: print(n)"
    done = subprocess.run(
        [sys.executable, "-c", program, *NEEDED], env=env, cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.split()


def limited(command: list[str], *, env: dict[str, str], limit_s: float) -> str:
    """What a program printed. When it is over, or its time is, all that it has started is ended."""
    # Not a pipe: that is open for as long as anything that the program has started lives.
    with tempfile.TemporaryFile() as output, adopting() as before:
        process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        late = left = ""
        try:
            process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            late = f"\nnot over within {limit_s:.0f} s"
        finally:
            if running := end(before, part=process.pid):
                left = f"\nSIGKILL did not end {', '.join(str(pid) for pid, _ in sorted(running))}"
            process.poll()
        output.seek(0)
        return output.read().decode(errors="replace") + late + left


def run(task: Task, *, cpu: bool, env: dict[str, str], limit_s: float) -> Part:
    """What the part found; what it last said where it found nothing."""
    answer = ROOT / "var" / "gpu" / f"{task.name}.json"
    answer.unlink(missing_ok=True)
    command = [sys.executable, "-m", f"benchmarks.gpu.{task.name}", "--json", str(answer), *(["--cpu"] if cpu else [])]
    began_s = time.monotonic()
    said = limited(command, env=env, limit_s=limit_s)
    took_s = time.monotonic() - began_s
    try:
        found = json.loads(answer.read_text())
    except (OSError, ValueError):
        found = {"state": "failed", "rows": [], "why": "\n".join(said.strip().splitlines()[-12:])}
    return Part(title=task.title, took_s=took_s, state=found["state"], rows=found["rows"], why=found.get("why", ""))


def main(argv: list[str]) -> int:
    """0 when no part failed; 2 when something that is needed is missing."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--cpu", action="store_true", help="the same parts without a card")
    options.add_argument("--wheels", type=Path, help="folder of wheels for what this Python lacks")
    options.add_argument(
        "--report", type=Path, help="where the report goes (docs/gpu.md; with --cpu var/gpu/report.md)"
    )
    options.add_argument("--only", help="names of parts, with commas between")
    args = options.parse_args(argv)
    ends_s = time.monotonic() + BUDGET_S
    signal.signal(signal.SIGTERM, _terminated)
    SITE.mkdir(parents=True, exist_ok=True)
    env = dict(os.environ) | {"PYTHONPATH": os.pathsep.join(filter(None, (str(SITE), os.environ.get("PYTHONPATH"))))}
    if args.cpu:
        env["CUDA_VISIBLE_DEVICES"] = ""
    if args.wheels is not None and (said := install(args.wheels, limit_s=INSTALL_LIMIT_S)):
        print(f"the wheels were not installed: {said}", file=sys.stderr)
        return 2
    if lacking := missing(env):
        print(
            f"{sys.executable} has no {', '.join(lacking)}; put their wheels into a folder and name it:"
            " make gpu-check WHEELS=folder",
            file=sys.stderr,
        )
        return 2
    wanted = args.only.split(",") if args.only else [task.name for task in TASKS]
    parts = []
    for task in (task for task in TASKS if task.name in wanted):
        left_s = ends_s - time.monotonic()
        if left_s > 0.0:
            part = run(task, cpu=args.cpu, env=env, limit_s=min(task.limit_s, left_s))
        else:
            part = Part(title=task.title, took_s=0.0, state="failed", rows=[], why="no time was left for it")
        print(f"{task.title}: {part.state}, {part.took_s:.0f} s{f': {part.why}' if part.why else ''}", flush=True)
        parts.append(part)
    report = args.report or (ROOT / "var" / "gpu" / "report.md" if args.cpu else ROOT / "docs" / "gpu.md")
    report.write_text(page(parts, cpu=args.cpu))
    print(f"written: {report}")
    return int(any(part.state == "failed" for part in parts))


def _terminated(number: int, _frame: object) -> None:
    """Leave by way of every `finally`, so that the part's processes end, too."""
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
