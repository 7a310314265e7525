"""One command for a machine with one NVIDIA GPU, in the Python that is there, without network.

    make gpu-check [WHEELS=folder]          python3 -m benchmarks.gpu [--cpu] [--wheels folder]

Each part runs in a process of its own with a limit of its own, all within eight minutes; a
part that fails or hangs takes no other with it. What this Python lacks is installed from the
wheels in `--wheels` into var/gpu, never into the machine. `--cpu` runs the same parts where no
card is: gloo, simulated devices, no claim about a GPU. This module uses the standard library alone.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.page import Part, page

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "var" / "gpu" / "site"
BUDGET_S = 470.0
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


def install(wheels: Path) -> str:
    """Wheels to var/gpu/site; what pip said where that failed, else ""."""
    files = sorted(map(str, wheels.glob("*.whl")))
    if not files:
        return f"{wheels} holds no wheels"
    command = [
        *(sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile", "--upgrade"),
        *("--target", str(SITE), *files),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""


def missing(env: dict[str, str]) -> list[str]:
    """Modules of NEEDED that this Python does not have."""
    program = "import importlib.util as u, sys\nfor n in sys.argv[1:]:\n try: f = u.find_spec(n)\n"
    program += " except ModuleNotFoundError: f = None\n if f is None: print(n)"
    done = subprocess.run(
        [sys.executable, "-c", program, *NEEDED], env=env, cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.split()


def run(task: Task, *, cpu: bool, env: dict[str, str], limit_s: float) -> Part:
    """What the part found; what it last said where it found nothing."""
    answer = ROOT / "var" / "gpu" / f"{task.name}.json"
    answer.unlink(missing_ok=True)
    command = [sys.executable, "-m", f"benchmarks.gpu.{task.name}", "--json", str(answer), *(["--cpu"] if cpu else [])]
    began_s = time.monotonic()
    process = subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        said, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        said, _ = process.communicate()
        said = f"{said}\nnot over within {limit_s:.0f} s"
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
    SITE.mkdir(parents=True, exist_ok=True)
    env = dict(os.environ) | {"PYTHONPATH": os.pathsep.join(filter(None, (str(SITE), os.environ.get("PYTHONPATH"))))}
    if args.cpu:
        env["CUDA_VISIBLE_DEVICES"] = ""
    if args.wheels is not None and (said := install(args.wheels)):
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
    ends_s = time.monotonic() + BUDGET_S
    parts = []
    for task in (task for task in TASKS if task.name in wanted):
        part = run(task, cpu=args.cpu, env=env, limit_s=min(task.limit_s, max(5.0, ends_s - time.monotonic())))
        print(f"{task.title}: {part.state}, {part.took_s:.0f} s{f': {part.why}' if part.why else ''}", flush=True)
        parts.append(part)
    report = args.report or (ROOT / "var" / "gpu" / "report.md" if args.cpu else ROOT / "docs" / "gpu.md")
    report.write_text(page(parts, cpu=args.cpu))
    print(f"written: {report}")
    return int(any(part.state == "failed" for part in parts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
