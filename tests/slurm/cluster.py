"""A real Slurm on this machine: munged, slurmctld and six slurmd of Debian's packages, in a folder of their own.

Each node has two generic resources `gpu` (null devices) and a port on loopback. Processes are tracked by control
groups, as production does it, where the kernel has the freezer of version 1. Ends what it started, by pid.
"""

import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from controlplane.demo.ports import free_port
from controlplane.engines.slurm import answers
from controlplane.engines.slurm.health import Believed
from controlplane.slurm.observer import HOOKS

NODES = tuple(f"n{number}" for number in range(1, 7))
GPUS = 2
KILL_WAIT_S = 60
USER = "daemon"
"""Who submits: Debian's own user without rights, which every installation has."""
UP_S, COMMAND_S = 60.0, 30.0
FREEZER = Path("/sys/fs/cgroup/freezer")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "sinfo", "scancel")
PACKAGES = "slurmctld slurmd slurm-client munge"
SEARCHED = "/usr/sbin:/usr/bin:/sbin:/bin"
Found = TypeVar("Found")


def missing() -> str:
    """Why there can be no cluster here; "": there can."""
    if os.geteuid() != 0:
        return "Slurm's daemons are started as root, and this is not root"
    absent = [name for name in PROGRAMS if shutil.which(name, path=SEARCHED) is None]
    return f"no {', '.join(absent)}: install Debian's packages {PACKAGES}" if absent else ""


class Cluster:
    """`environment` is for who submits, `folder` is his."""

    def __init__(self) -> None:
        # Short, as sockets lie in it, and open, as other users have to pass.
        self.root = Path(tempfile.mkdtemp(prefix="slurm-"))
        self.root.chmod(0o755)
        self.folder = self.root / "user"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {
            "PATH": SEARCHED, "SLURM_CONF": str(self.root / "slurm.conf"), "HOME": str(self.folder), "LC_ALL": "C",
        }  # fmt: skip

    def start(self) -> None:
        """All daemons, until every node is idle."""
        self.folder.mkdir()
        shutil.chown(self.folder, USER)
        self._munge()
        self._configure()
        self._daemon("slurmctld", "slurmctld", "-D", "-c", "-f", str(self.root / "slurm.conf"))
        for node in NODES:
            self._daemon(node, "slurmd", "-D", "-N", node, "-f", str(self.root / "slurm.conf"))
        self.wait("all nodes are idle", lambda: self.idle() == len(NODES), timeout_s=UP_S)

    def stop(self) -> None:
        """Jobs first, then the daemons; what is still there of them is killed."""
        with contextlib.suppress(AssertionError, subprocess.SubprocessError):
            self.run("scancel", "--full", "--user", USER)
            self.wait("no job is left", lambda: not self.run("squeue", "--noheader"), timeout_s=COMMAND_S)
        for process in reversed(self._daemons.values()):
            process.terminate()
        for process in reversed(self._daemons.values()):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.root, ignore_errors=True)

    @contextlib.contextmanager
    def without_controller(self) -> Iterator[None]:
        """While slurmctld is stopped: it answers nobody, and nobody is refused."""
        controller = self._daemons["slurmctld"]
        controller.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            controller.send_signal(signal.SIGCONT)

    def run(self, *argv: str, timeout_s: float = COMMAND_S) -> str:
        """What one of Slurm's programs prints for root."""
        done = subprocess.run(
            argv, env=self.environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def as_user(
        self, *argv: str, environment: dict[str, str], timeout_s: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        """A program of the user without rights."""
        return subprocess.run(
            argv, env=self.environment | environment, cwd=self.folder, capture_output=True, text=True, check=False,
            timeout=timeout_s, user=USER, group=USER, extra_groups=(),
        )  # fmt: skip

    def idle(self) -> int:
        """How many nodes are."""
        return sum(line == "idle" for line in self.run("sinfo", "--noheader", "-N", "-o", "%T").splitlines())

    def wait(self, what: str, ask: Callable[[], Found], *, timeout_s: float) -> Found:
        """Ask until the answer is true."""
        until_s = time.monotonic() + timeout_s
        while not (found := ask()):
            dead = [name for name, process in self._daemons.items() if process.poll() is not None]
            assert not dead, f"{what}: {dead[0]} has ended: {self.log(dead[0])}"
            assert time.monotonic() < until_s, f"{what}: not in {timeout_s:.0f} s; {self.log('slurmctld')}"
            time.sleep(0.2)
        return found

    def log(self, name: str) -> str:
        """The end of a daemon's log."""
        path = self.root / f"{name}.log"
        return path.read_text(errors="replace")[-1500:] if path.exists() else "no log"

    def _munge(self) -> None:
        folder = self.root / "munge"
        folder.mkdir(mode=0o755)
        key = folder / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        for path in (folder, key):
            shutil.chown(path, "munge", "munge")
        argv = (
            "munged", "--foreground", "--num-threads=2", f"--socket={folder}/socket", f"--key-file={key}",
            f"--pid-file={folder}/pid", f"--log-file={folder}/log", f"--seed-file={folder}/seed",
        )  # fmt: skip
        self._daemon("munged", *argv, user="munge")
        self.wait("munged listens", lambda: (folder / "socket").exists(), timeout_s=UP_S)

    def hook(self, name: str, script: str = "#!/bin/sh\nexit 0\n") -> None:
        """Slurm's `name` is this from now on; by itself it does nothing."""
        draft = self.root / f"{name}.new"
        draft.write_text(script)
        draft.chmod(0o755)
        draft.rename(self.root / "hooks" / name)

    def believed(self, node: str) -> Believed:
        """What Slurm believes of it."""
        found = answers.believed(self.run("scontrol", "--oneliner", "show", "node", node) + "\n", node)
        assert found is not None, node
        return found

    def _configure(self) -> None:
        root, host = self.root, socket.gethostname()
        (root / "hooks").mkdir()
        for name in HOOKS:
            self.hook(name)
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (root / name).mkdir()
        for number in range(GPUS):
            os.mknod(root / f"gpu{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        (root / "gres.conf").write_text(f"NodeName={','.join(NODES)} Name=gpu File={root}/gpu[0-{GPUS - 1}]\n")
        (root / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=yes\n")
        tracked = "proctrack/cgroup" if FREEZER.is_dir() else "proctrack/linuxproc"
        nodes = "\n".join(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port('127.0.0.1')} CPUs=2"
            f" RealMemory=1000 Gres=gpu:{GPUS} State=UNKNOWN"
            for node in NODES
        )
        (root / "slurm.conf").write_text(f"""ClusterName=holdfast
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={free_port("127.0.0.1")}
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
ProctrackType={tracked}
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_min_interval=200000,nohold_on_prolog_fail
HealthCheckProgram={root}/hooks/healthcheck
HealthCheckInterval=5
HealthCheckNodeState=ANY
Prolog={root}/hooks/prolog
Epilog={root}/hooks/epilog
PrologFlags=Alloc
SlurmdParameters=config_overrides
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=10
KillWait={KILL_WAIT_S}
GresTypes=gpu
{nodes}
PartitionName=main Nodes={",".join(NODES)} Default=YES MaxTime=INFINITE State=UP
""")

    def _daemon(self, name: str, program: str, *arguments: str, user: str | None = None) -> None:
        found = shutil.which(program, path=SEARCHED)
        assert found is not None, f"{program} was found before"
        with (self.root / f"{name}.log").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                (found, *arguments), env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, user=user, group=user, extra_groups=() if user else None,
            )  # fmt: skip


def kill(pid: int) -> None:
    """SIGKILL, of a rank of a job."""
    os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def running() -> Iterator[Cluster]:
    """A cluster, for as long as it is needed."""
    cluster = Cluster()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
