"""Checks of a job spec about how its ranks are started: what would silently take fault
tolerance away, as nvidia-resiliency-ext's list of pitfalls tells it."""

import os.path
import re
from collections.abc import Iterator
from typing import NamedTuple

from controlplane.protocol.spec import TrainSpec, replica_count
from controlplane.protocol.spec_fault import Fault, Ground, plain_number

LAUNCHERS = frozenset(
    {
        "torchrun", "torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic", "ft_launcher",
        "accelerate", "deepspeed", "horovodrun", "mpirun", "mpiexec", "srun", "torchx",
    }
)  # fmt: skip
"""Programs that start ranks themselves."""
PROFILERS = frozenset({"nsys"})
_INTERPRETERS = re.compile(r"python[0-9.]*|pypy[0-9.]*")
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
_PREFIXES = frozenset({"env", "nohup", "nice", "numactl", "setsid", "stdbuf", "taskset", "time", "timeout", "exec"})
_CHDIR = frozenset({"-C", "--chdir"})
_WITHOUT_ENVIRONMENT = frozenset({"-i", "-", "--ignore-environment"})
_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})
_COMMANDS = re.compile(r"[;&|()\n]+")
_WORDS = re.compile(r"[^\s'\"]+")

# What NCCL and its watchdog must not do where a view change aborts communicators in place.
_ABORTABLE = {
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "its watchdog would end the rank that a view change keeps",
    "NCCL_NVLS_ENABLE": "a communicator with NVLS may hang when a view change aborts it",
}
_HEARTBEAT = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"


def programs_of(argv: list[str]) -> tuple[str, ...]:
    """What an argv runs: the module of `python -m`, else the name of the program, through
    prefixes such as `env` and `timeout`; of a shell line, what each of its commands runs."""
    for position, word in enumerate(argv):
        name = os.path.basename(word)
        if name in _SHELLS:
            commands = _COMMANDS.split(_shell_line(argv[position + 1 :]))
            return tuple(program for command in commands for program in programs_of(_WORDS.findall(command)))
        if _INTERPRETERS.fullmatch(name):
            return (_of_python(argv[position + 1 :]) or name,)
        if name in _PREFIXES or "=" in word or word.startswith("-") or word[:1].isdigit():
            continue
        return (name,)
    return ()


class Run(NamedTuple):
    """How an argv runs a Python program, as its words name it: in the `directory` of env's
    `--chdir` ("" for the one it is started in), with the `interpreter`, the `script` file ("" for
    `-m`, `-c` and none). All are "" where a shell or another program would have to be understood."""

    directory: str = ""
    interpreter: str = ""
    script: str = ""


def python_run(argv: list[str]) -> Run:
    """What an argv runs, through prefixes such as `env` and `nice`."""
    directory = ""
    words = iter(enumerate(argv))
    for position, word in words:
        name = os.path.basename(word)
        is_program = "=" not in word and not word.startswith("-")
        if is_program and _INTERPRETERS.fullmatch(name):
            return Run(directory, word, _script(argv[position + 1 :]))
        if word in _CHDIR:
            directory = next(words, (0, ""))[1]
            continue
        if word.startswith("--chdir="):
            directory = word.removeprefix("--chdir=")
            continue
        passed_over = name in _PREFIXES or not is_program or word[:1].isdigit()
        if not passed_over or word in _WITHOUT_ENVIRONMENT or word.startswith("PATH="):
            break
    return Run()


def interpreter_of(argv: list[str]) -> str:
    """The Python that an argv runs its program with, as it is named there; "" for none, and
    where a shell would have to be understood to tell."""
    return python_run(argv).interpreter


def check_launcher(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """Each rank is started by its agent; another launcher would stand between the two."""
    programs = programs_of(spec.entrypoint or [])
    for program in sorted(LAUNCHERS.intersection(programs)):
        yield Fault(
            "/spec/entrypoint",
            f"{program} starts ranks of its own: the agent would watch launchers, and fault tolerance would be off",
            'give the program itself, ["/srv/train/.venv/bin/python", "/srv/train/train.py"]; RANK, WORLD_SIZE,'
            " LOCAL_RANK and MASTER_ADDR are set",
        )
    for program in sorted(PROFILERS.intersection(programs)):
        yield Fault(
            "/spec/entrypoint",
            f"{program} holds the processes it profiles, and they could not be ended and replaced",
            "leave it out; a rank is profiled with `holdfast rank debug`",
        )


def check_own_replicas(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """Replicas exchange gradients through the built-in trainer; copies of another program would not,
    and would write the same directory."""
    replicas = replica_count(spec)
    if spec.entrypoint is not None and replicas > 1:
        yield Fault(
            "/spec/parallelism/dp",
            f"{replicas} replicas of a program of your own would train apart: only the built-in trainer's replicas"
            " exchange gradients",
            "set dp: 1, and give the data parallelism inside your program as parallelism.replica_dp",
        )


def check_nccl_environment(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """Our own trainer aborts communicators in place; what forbids that is refused."""
    if spec.entrypoint is not None:
        return
    for name, why in _ABORTABLE.items():
        if spec.env.get(name, "0") != "0":
            yield Fault(f"/spec/env/{name}", f"{name} = {spec.env[name]!r}: {why}", "leave it out; 0 is set")


def check_watchdog(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """NCCL's watchdog ends a rank without a word; a step's own limit must come before it."""
    step_s, setup_s = spec.resiliency.timeouts.step_s, spec.resiliency.timeouts.setup_s
    if step_s == "auto":
        return
    if setup_s != "auto" and step_s >= setup_s and spec.entrypoint is None:
        yield Fault(
            "/spec/resiliency/timeouts/step_s",
            f"collectives inside a replica time out after setup_s = {plain_number(setup_s)} s, "
            f"before step_s = {plain_number(step_s)} s",
            "lower step_s or raise setup_s",
        )


def check_nccl_watchdog(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """Nor may its heartbeat end a rank before that."""
    step_s = spec.resiliency.timeouts.step_s
    if step_s == "auto":
        return
    told = spec.env.get(_HEARTBEAT, "")
    if told.isdecimal() and int(told) <= step_s:
        yield Fault(
            f"/spec/env/{_HEARTBEAT}",
            f"NCCL's watchdog ends a rank after {told} s, before step_s = {plain_number(step_s)} s finds it",
            f"set it above {plain_number(step_s)}, or leave it out (480 is PyTorch's default)",
        )


def _shell_line(words: list[str]) -> str:
    """The argument of `-c` (or `-lc`); "" where a script is run."""
    for position, word in enumerate(words[:-1]):
        if word.startswith("-") and word.endswith("c"):
            return words[position + 1]
        if not word.startswith("-"):
            return ""
    return ""


def _of_python(words: list[str]) -> str:
    """The module of `-m`, "" where a script is run."""
    for position, word in enumerate(words):
        if word == "-m":
            return words[position + 1] if position + 1 < len(words) else ""
        if not word.startswith("-"):
            return ""
    return ""


def _script(words: list[str]) -> str:
    """The file that Python is given to run; "" for a module, a command, its standard input."""
    rest = iter(words)
    for word in rest:
        if word in _WITH_VALUE:
            next(rest, "")
        elif not word.startswith("-"):
            return word
        elif word == "-" or (not word.startswith("--") and ("m" in word or "c" in word)):
            return ""
    return ""
