"""The process between the server and a sandboxed program: `python -m controlplane.runtime.sandbox.launcher`.

1. it takes the plan (JSON, on its input), a session and a niceness of its own, and makes a cgroup;
2. it leaves the namespaces of the server: a user namespace first where it is not root, then
   mounts, network, processes, IPC and host name; and builds the program's file tree;
3. it forks. The child enters the tree, raises its loopback, takes its limits and its user,
   drops every right, reports what was applied, and becomes the program;
4. it waits: for the program's end, for the limit on time, or for the end of the server's
   process that started it; copies what the program prints to the log, up to a limit;
5. it ends whatever the program has left, and hands out the outputs that the plan names.

What this machine does not allow is left out and reported, or, where the plan requires it all,
the program is not run. The launcher never reads a file of the program's but its outputs, which
it copies as bytes. Started by `service`; imports no Django.
"""

import contextlib
import os
import resource
import select
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Mapping

import msgspec

from controlplane.runtime.sandbox import linux, view
from controlplane.runtime.sandbox.cgroup import Cgroup
from controlplane.runtime.sandbox.plan import (
    LOG,
    LOG_MAX_BYTES,
    MEANS,
    NOT_ISOLATED,
    OUT_OF_MEMORY,
    OUT_OF_TIME,
    REPORT,
    Plan,
    Report,
)
from controlplane.runtime.sandbox.view import View

POLL_S = 0.5
REPORT_MAX_BYTES = 1 << 16
CHUNK_BYTES = 1 << 16


class Run:
    """One run of a plan: what was made for it, and what of it could not be."""

    def __init__(self, plan: Plan, base: str) -> None:
        self.plan, self.base, self.report = plan, base, Report()
        self.wanted = set(MEANS) - ({"network"} if plan.network else set()) - ({"user"} if plan.uid is None else set())
        if plan.uid is not None and os.geteuid() != 0:
            self.plan = msgspec.structs.replace(plan, uid=None)
            self.report.lacks("user", "the server does not run as root, which alone may change users")
            self.wanted.discard("user")  # No configuration of this machine could give it.
        self.child: int | None = None
        self.cgroup: Cgroup | None = None
        self.own_processes = self.own_network = False
        self.report.has("environment")  # That of the launcher was empty already.

    def prepare(self) -> View:
        """Steps 1 and 2."""
        try:
            self.cgroup = Cgroup(memory_bytes=self.plan.limits.memory_bytes)
        except OSError as error:
            self.report.lacks("memory", f"{error}; each process has the limit by itself")
        if os.geteuid() != 0:
            self._enter_user_namespace()
        self._unshare()
        try:
            linux.unshare(linux.CLONE_NEWNS)
            found = view.build(self.plan, self.base)
        except OSError as error:
            self.report.lacks("disk", f"{error}; each file has the limit by itself")
            with contextlib.suppress(OSError):
                linux.unmount(self.base)
            return view.without_root(self.plan, self.base)
        self.report.has("disk")
        return found

    def _enter_user_namespace(self) -> None:
        uid, gid = os.geteuid(), os.getegid()
        try:
            linux.unshare(linux.CLONE_NEWUSER)
            for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
                with open(f"/proc/self/{name}", "w") as file:
                    file.write(text)
        except OSError as error:
            for name in ("network", "processes"):
                self.report.lacks(name, f"no user namespace: {error}")

    def _unshare(self) -> None:
        with contextlib.suppress(OSError):
            linux.unshare(linux.CLONE_NEWIPC | linux.CLONE_NEWUTS)
        if not self.plan.network:
            try:
                linux.unshare(linux.CLONE_NEWNET)
                self.own_network = True
            except OSError as error:
                self.report.lacks("network", error)
        try:
            linux.unshare(linux.CLONE_NEWPID)
            self.own_processes = True
        except OSError as error:
            self.report.lacks("processes", f"{error}; what outlives the program is ended one by one")
            with contextlib.suppress(OSError):
                linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)

    def isolate(self, found: View) -> None:
        """Step 3, in the child: everything up to the program itself. Raises OSError where going on
        would leave the program with the server's rights."""
        report, plan = self.report, self.plan
        if found.root is not None:
            view.enter(found, own_processes=self.own_processes)
            report.has("files")
        os.chdir(found.scratch)
        if self.own_network:
            linux.raise_loopback()
            report.has("network")
        if self.own_processes:
            report.has("processes")
        if self.cgroup is not None:
            report.has("memory")
        _limit(plan)
        report.has("time")
        linux.bound_capabilities()
        self._become_user()
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
        linux.drop_capabilities()
        report.has("privileges")
        if found.root is None:
            try:
                view.confine(found, plan)
                report.has("files")
            except OSError as error:
                report.lacks("files", f"neither a mount namespace nor Landlock: {error}")

    def _become_user(self) -> None:
        plan = self.plan
        if plan.uid is None:
            return
        os.setgroups([])
        gid = plan.uid if plan.gid is None else plan.gid
        os.setresgid(gid, gid, gid)
        os.setresuid(plan.uid, plan.uid, plan.uid)
        self.report.has("user")


def _limit(plan: Plan) -> None:
    limits = plan.limits
    for kind, most in (
        (resource.RLIMIT_CPU, limits.cpu_s),
        (resource.RLIMIT_DATA, limits.memory_bytes),
        (resource.RLIMIT_FSIZE, limits.disk_bytes),
        (resource.RLIMIT_NPROC, limits.processes),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (allowed, allowed))


def _become_program(run: Run, found: View, go: int, tell: int, log: int) -> None:
    """The child. Tells the report on `tell`, which closes when the program begins; never returns."""
    code = NOT_ISOLATED
    try:
        if not os.read(go, 1):
            os._exit(code)
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        words = _words(found)
        for name, content in run.plan.files.items():
            _give(found, name, _filled(content, words), run.plan)
        for name, target in run.plan.links.items():
            link = f"{found.root or ''}{found.scratch}/{name}"
            os.makedirs(os.path.dirname(link), exist_ok=True)
            os.symlink(_filled(target, words), link)
        run.isolate(found)
        os.write(tell, msgspec.json.encode(run.report))
        unmet = run.wanted - set(run.report.applied)
        if run.plan.required and unmet:
            print(f"not run: this machine does not give it {', '.join(sorted(unmet))}", file=sys.stderr, flush=True)
            os._exit(code)
        argv = [_filled(word, words) for word in run.plan.argv]
        # Without a tree of its own the program reaches its inputs through their descriptors alone.
        through = {*run.plan.inputs, run.plan.writable} if found.root is None else set()
        for descriptor in (*run.plan.inputs, run.plan.place, run.plan.writable):
            if descriptor is not None:
                os.set_inheritable(descriptor, descriptor in through)
        named = {key: _filled(value, words) for key, value in run.plan.environment.items()}
        environment = {**named, "HOME": found.scratch, "TMPDIR": found.scratch + view.TEMPORARY}
        os.umask(0o077)
        os.execve(argv[0], argv, environment)  # noqa: S606
    except BaseException as error:  # Whatever it is: the program is not run with the server's rights.
        print(f"not run: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def _words(found: View) -> Mapping[str, str]:
    inputs = {f"{{in{number}}}": path for number, path in enumerate(found.inputs)}
    return {**inputs, "{scratch}": found.scratch, "{out}": f"{found.scratch}/out", "{keep}": found.writable}


def _filled(text: str, words: Mapping[str, str]) -> str:
    for word, path in words.items():
        text = text.replace(word, path)
    return text


def _give(found: View, name: str, content: str, plan: Plan) -> None:
    """A file that the program reads, in its own folder."""
    path = f"{found.root or ''}{found.scratch}/{name}"
    with open(path, "x") as file:
        file.write(content)
    if plan.uid is not None:
        os.chown(path, plan.uid, plan.uid if plan.gid is None else plan.gid)


def _watch(run: Run, child: int, ends: tuple[int, int], parent: int) -> int:
    """Step 4: the exit code, by the rules of `plan`."""
    deadline_s = time.monotonic() + run.plan.limits.wall_s
    (tell, output), ended = ends, os.pidfd_open(child)
    log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600, dir_fd=run.plan.place)
    report, logged, open_ends = b"", 0, {tell, output}
    while True:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or os.getppid() != parent:
            return OUT_OF_TIME
        ready, _, _ = select.select([ended, *open_ends], [], [], min(POLL_S, left_s))
        for end in open_ends.intersection(ready):
            chunk = os.read(end, CHUNK_BYTES)
            if not chunk:
                open_ends.discard(end)
                if end == tell:
                    _store_report(run, report)
            elif end == tell:
                report = (report + chunk)[:REPORT_MAX_BYTES]
            elif logged < LOG_MAX_BYTES:
                logged += os.write(log, chunk[: LOG_MAX_BYTES - logged])
        if ended in ready and not open_ends.intersection(ready):
            status, run.child = os.waitpid(child, 0)[1], None
            code = os.waitstatus_to_exitcode(status)
            if run.cgroup is not None and run.cgroup.was_exceeded():
                return OUT_OF_MEMORY
            return code if code >= 0 else 128 - code


def _store_report(run: Run, told: bytes) -> None:
    """What the child said, or why there is no word from it."""
    try:
        report = msgspec.json.decode(told, type=Report)
    except msgspec.DecodeError:
        report = run.report
        report.lacks("privileges", "the program was not run; see its log")
    _write(run.plan.place, REPORT, msgspec.json.encode(report))


def _end_all(run: Run) -> None:
    """Step 5. With the first process of a process namespace all others end; without one, what has
    lost its parent became the launcher's own child."""
    while True:
        children = set() if run.child is None else {run.child}
        with contextlib.suppress(OSError), open(f"/proc/self/task/{os.getpid()}/children") as file:
            children |= set(map(int, file.read().split()))
        for pid in children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            if os.waitpid(-1, 0)[0] == run.child:
                run.child = None
        except ChildProcessError:
            return


def _hand_out(run: Run, found: View) -> None:
    """Plain files of the program's output folder, up to a size."""
    for name in run.plan.outputs:
        try:
            source = os.open(f"{found.outputs}/{name}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue
        with open(source, "rb") as file:
            about = os.fstat(source)
            if stat.S_ISREG(about.st_mode) and about.st_size <= run.plan.limits.out_bytes:
                _write(run.plan.place, name, file.read(run.plan.limits.out_bytes))


def _write(place: int, name: str, content: bytes) -> None:
    """All or nothing."""
    draft = f".{name}.draft"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(draft, dir_fd=place)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=place)
    with open(descriptor, "wb") as file:
        file.write(content)
    os.replace(draft, name, src_dir_fd=place, dst_dir_fd=place)


def main() -> None:
    """Its exit code is the program's."""
    parent = os.getppid()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    plan = msgspec.json.decode(sys.stdin.buffer.read(), type=Plan)
    with contextlib.suppress(PermissionError):
        os.setsid()
    os.nice(plan.nice)
    os.umask(0o022)
    base = tempfile.mkdtemp(prefix="holdfast-sandbox-")
    run, code = Run(plan, base), NOT_ISOLATED
    try:
        found = run.prepare()
        go_read, go_write = os.pipe()
        tell_read, tell_write = os.pipe()
        log_read, log_write = os.pipe()
        child = run.child = os.fork()
        if child == 0:
            os.close(go_write)
            _become_program(run, found, go_read, tell_write, log_write)
        for end in (go_read, tell_write, log_write):
            os.close(end)
        try:
            if run.cgroup is not None:
                run.cgroup.take(child)
            os.write(go_write, b"1")
            code = _watch(run, child, (tell_read, log_read), parent)
        finally:
            _end_all(run)
        if code != NOT_ISOLATED:
            _hand_out(run, found)
    except (view.Replaced, OSError) as error:
        code = NOT_ISOLATED
        _write(plan.place, LOG, f"not run: {error}\n".encode())
    finally:
        if run.cgroup is not None:
            run.cgroup.close()
        _remove(base)
    sys.exit(code)


def _remove(base: str) -> None:
    """With a tree the folder is a mount of this namespace, which ends with this process."""
    with contextlib.suppress(OSError):
        linux.unmount(base)
    shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
