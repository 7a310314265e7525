"""Checks of a job spec about how its ranks are started: what would silently take fault
tolerance away, as nvidia-resiliency-ext's list of pitfalls tells it."""

import os.path
import re
from collections.abc import Iterator

from controlplane.protocol.spec import TrainSpec
from controlplane.protocol.spec_fault import Fault, Ground

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


def interpreter_of(argv: list[str]) -> str:
    """The Python that an argv runs its program with, as it is named there; "" for none, and
    where a shell would have to be understood to tell."""
    for word in argv:
        name = os.path.basename(word)
        if _INTERPRETERS.fullmatch(name):
            return word
        passed_over = name in _PREFIXES or "=" in word or word.startswith("-") or word[:1].isdigit()
        if not passed_over or word.startswith("PATH="):
            return ""
    return ""


def check_launcher(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """Each rank is started by its agent; another launcher would stand between the two."""
    programs = programs_of(spec.entrypoint or [])
    for program in sorted(LAUNCHERS.intersection(programs)):
        yield Fault(
            "/spec/entrypoint",
            f"{program} starts ranks of its own: the agent would watch launchers, and fault tolerance would be off",
            'give the program itself, ["python", "train.py"]; RANK, WORLD_SIZE, LOCAL_RANK and MASTER_ADDR are set',
        )
    for program in sorted(PROFILERS.intersection(programs)):
        yield Fault(
            "/spec/entrypoint",
            f"{program} holds the processes it profiles, and they could not be ended and replaced",
            "leave it out; a rank is profiled with `holdfast rank look`",
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
            f"collectives inside a replica time out after setup_s = {setup_s:g} s, before step_s = {step_s:g} s",
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
            f"NCCL's watchdog ends a rank after {told} s, before step_s = {step_s:g} s finds it",
            f"set it above {step_s:g}, or leave it out (480 is PyTorch's default)",
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
