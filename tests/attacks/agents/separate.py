"""Two users of this machine, and a program that tries what is not its business.

Users are numbers without accounts: nothing has to be created for them, and nothing of them
stays. Only root can start processes as others, so tests that need it are skipped elsewhere.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controlplane.protocol.launch import RankPlacement, ReplicaLaunch
from tests.integration.agents.conftest import ROOT, end_everything_of, launch

ALICE, BOB = 61_001, 61_002
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes as another user")
HOSTILE = """
import errno, json, os, socket, sys, time
from pathlib import Path

order = json.loads(sys.argv[1])

def tried(act, *arguments):
    try:
        return "got " + repr(act(*arguments))[:200]
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))

def connected(path):
    with socket.socket(socket.AF_UNIX) as other:
        other.connect(path)
        return "a connection"

def read(path):
    return Path(path).read_bytes()[:100]

def write(path):
    with open(path, "ab") as file:
        return file.write(b"x")

status = Path("/proc/self/status").read_text().splitlines()
found = {
    "uid": os.getuid(),
    "groups": os.getgroups(),
    "umask": os.umask(0o077),
    "status": {line.split(":")[0]: line.split(":")[1].strip() for line in status},
    "environment": dict(os.environ),
    "cgroup": Path("/proc/self/cgroup").read_text(),
    "read": {path: tried(read, path) for path in order["read"]},
    "written": {path: tried(write, path) for path in order["write"]},
    "listed": {path: tried(os.listdir, path) for path in order["list"]},
    "connected": {path: tried(connected, path) for path in order["connect"]},
    "signalled": {pid: tried(os.kill, int(pid), 0) for pid in order["signal"]},
    "own_socket": tried(connected, os.environ["HOLDFAST_SOCKET"]),
}
own = Path(json.loads(os.environ["HOLDFAST_CONFIG"])["checkpoint_dir"])
own.mkdir(exist_ok=True)
(own / "weights.tmp").write_text(json.dumps(found))
(own / "weights.tmp").rename(own / "weights")
print("its work is done", flush=True)
if order["stay"]:
    time.sleep(600)
"""


@contextmanager
def workplace() -> Iterator[Path]:
    """A directory that other users can pass through, which those of pytest are not."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-users-"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        end_everything_of(folder)
        shutil.rmtree(folder, ignore_errors=True)


def python_for_others() -> str:
    """An interpreter that a user without rights can start; skips the test where there is none."""
    for candidate in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        try:
            done = subprocess.run(
                [candidate, "-c", "import json"], user=ALICE, group=ALICE, extra_groups=(), cwd="/",
                capture_output=True, timeout=30, check=False,
            )  # fmt: skip
        except OSError:
            continue
        if done.returncode == 0:
            return candidate
    pytest.skip(f"no interpreter here can be started by another user: {sys.executable} lies in a private directory")


def within_reach(place: Path) -> tuple[str, ...]:
    """What to put before a command so that it and its children find this interpreter, its
    libraries and this checkout open to every user: nothing, or a mount namespace of their own in
    which a private directory above one of them (root's home, mostly) holds nothing but the way
    there. Skips the test where neither is possible."""
    private: dict[Path, set[str]] = {}
    for wanted in (Path(sys.executable), Path(sys.executable).resolve(), Path(sys.prefix).resolve(), ROOT):
        for parent in wanted.parents:
            if not parent.stat().st_mode & 0o001:
                private.setdefault(parent, set()).add(wanted.relative_to(parent).parts[0])
    lines = ["set -e"]
    for number, (parent, children) in enumerate(sorted(private.items())):
        scratch = place / f"mount-{number}"
        scratch.mkdir()
        lines.append(f"mount -t tmpfs -o mode=0711 none {scratch}")
        lines += [f"mkdir {scratch}/{name} && mount --rbind {parent}/{name} {scratch}/{name}" for name in children]
        lines.append(f"mount --rbind {scratch} {parent}")
    if not private:
        return ()
    script = place / "within_reach.sh"
    script.write_text("\n".join([*lines, 'exec "$@"', ""]))
    prefix = ("unshare", "--mount", "sh", str(script))
    asked = (sys.executable, "-c", "import msgspec, trainer.host")
    if not shutil.which("unshare") or subprocess.run([*prefix, *asked], cwd=ROOT, check=False).returncode != 0:
        pytest.skip(f"this interpreter lies below {min(private)}, which other users cannot enter")
    return prefix


def policy(place: Path, **more: str) -> str:
    """The node's policy: two owners, two users, one root for checkpoints."""
    lines = [f'checkpoint_roots = ["{place}/checkpoints"]', *(f"{key} = {value}" for key, value in more.items())]
    return "\n".join([*lines, "[users]", f"map = {{ alice = {ALICE}, bob = {BOB} }}", ""])


def job(place: Path, job_id: str, owner: str, *, stay: bool = False, **wishes: Any) -> ReplicaLaunch:
    """A start order of one rank that runs the hostile program with these wishes."""
    program = place / "program.py"
    program.write_text(HOSTILE)
    program.chmod(0o644)
    order = {"read": [], "write": [], "list": [], "connect": [], "signal": [], "stay": stay}
    ours = launch(job_id=job_id, user=owner, ranks=(RankPlacement(0, 0),), world_size=1)
    return msgspec.structs.replace(
        ours,
        entrypoint=(python_for_others(), str(program), json.dumps(order | wishes)),
        config=msgspec.structs.replace(ours.config, checkpoint_dir=str(place / "checkpoints" / job_id)),
    )
