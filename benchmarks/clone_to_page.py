"""From `git clone` to a job in state running on the page's API, on this machine.

    python -m benchmarks clone [--reuse-packages]

Clones the repository's HEAD into an empty directory, makes a fresh virtual environment
with the commands of the Makefile (timed by part), starts `python -m controlplane.demo` in
it, and asks the API until the job runs. `--reuse-packages` links this environment's
packages instead of installing them, and says so.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.processes import REPOSITORY
from benchmarks.report import Report
from controlplane.demo.driver import Driver
from controlplane.demo.ports import free_port

INSTALL_TIMEOUT_S = 900.0
RUNNING_TIMEOUT_S = 240.0
LOOPBACK = "127.0.0.1"


class StepFailed(RuntimeError):
    """A command of the set-up failed; the text is its own."""


def timed(*argv: str, cwd: Path) -> float:
    """Run a command; its seconds. Raises StepFailed."""
    began_s = time.monotonic()
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise StepFailed(f"{' '.join(argv)}:\n{(done.stdout + done.stderr)[-3000:]}")
    return time.monotonic() - began_s


def install(clone: Path, *, reuse: bool) -> dict[str, float]:
    """The Makefile's set-up, by part; seconds."""
    python = clone / ".venv" / "bin" / "python"
    parts = {"virtual environment": timed(sys.executable, "-m", "venv", ".venv", cwd=clone)}
    if reuse:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        link = clone / ".venv" / "lib" / version / "site-packages" / "parent.pth"
        link.write_text(sysconfig.get_paths()["purelib"] + "\n")
        return parts
    pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    locked = (*pip, "--require-hashes", "--no-deps")
    parts["torch"] = timed(*locked, "-r", "requirements/torch-cpu.txt", cwd=clone)
    parts["locked packages"] = timed(*locked, "-r", "requirements/lock.txt", cwd=clone)
    return parts


def start_and_wait(clone: Path, scratch: Path) -> float:
    """Start the demo in the clone and wait until its job runs; seconds."""
    port = free_port(LOOPBACK)
    home = scratch / "demo"
    argv: Sequence[str] = (
        str(clone / ".venv" / "bin" / "python"), "-m", "controlplane.demo", "--port", str(port), "--dir", str(home),
        "--seconds", str(RUNNING_TIMEOUT_S + 30.0),
    )  # fmt: skip
    log = (scratch / "demo.log").open("wb")
    began_s = time.monotonic()
    demo = subprocess.Popen(argv, cwd=clone, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        token = _token(home / "token", demo, scratch / "demo.log", began_s + RUNNING_TIMEOUT_S)
        driver = Driver(f"http://{LOOPBACK}:{port}", token)
        driver.wait(
            "a job that runs",
            lambda: any(job["state"] == "running" for job in driver.items("/jobs")),
            timeout_s=RUNNING_TIMEOUT_S,
        )
        return time.monotonic() - began_s
    finally:
        if demo.poll() is None:
            demo.send_signal(signal.SIGINT)
        try:
            demo.wait(timeout=30.0)
        except subprocess.TimeoutExpired:
            os.killpg(demo.pid, signal.SIGKILL)
            demo.wait()
        log.close()


def _token(path: Path, demo: subprocess.Popen[bytes], log: Path, deadline_s: float) -> str:
    """The token that the demo leaves for local use. Raises StepFailed."""
    while time.monotonic() < deadline_s and demo.poll() is None:
        if path.exists() and path.read_text():
            return path.read_text().strip()
        time.sleep(0.1)
    raise StepFailed(f"the demo gave no token:\n{log.read_text(errors='replace')[-3000:]}")


def main(argv: list[str]) -> int:
    """0 when the job ran."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "--reuse-packages", action="store_true", help="do not install, link this environment's packages"
    )
    args = options.parse_args(argv)
    scratch = Path(tempfile.mkdtemp(prefix="holdfast-clone-"))
    clone = scratch / "holdfast"
    report = Report(goal_id="clone", title="from git clone to a running job on the page's API")
    try:
        total = {"git clone": timed("git", "clone", "--quiet", str(REPOSITORY), str(clone), cwd=scratch)}
        total |= install(clone, reuse=args.reuse_packages)
        total["demo start to job running"] = start_and_wait(clone, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    for part, seconds in total.items():
        report.add(part, "s", [seconds])
    report.add("all", "s", [sum(total.values())])
    report.facts["packages"] = "linked, not installed" if args.reuse_packages else "from the configured index"
    report.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
