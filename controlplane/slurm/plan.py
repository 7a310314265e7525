"""What is asked of Slurm for one job, checked: nothing in a `Plan` can be taken for anything but a value.

Called by `holdfast slurm submit`. Pure: the job spec's text comes in, and paths are not opened.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import PurePosixPath

from controlplane.protocol.plain import shown
from controlplane.protocol.spec import JobSpec
from controlplane.protocol.spec_lint import lint
from controlplane.protocol.spec_text import SpecTextError, parse_yaml

MAX_NODES = 4096
MAX_GPUS = 64
MAX_SPEC_BYTES = 256 * 1024
MIN_GRACE_S, MAX_GRACE_S = 10, 3600
MAX_PATH_BYTES = 400
PROBES = ("nvml", "simulated")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,63}")
_LIST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+,-]{0,255}")
_FEATURES = re.compile(r"[A-Za-z0-9\[(!][A-Za-z0-9_.+&|!*\[\]()-]{0,255}")
_TIME = re.compile(r"([0-9]{1,4}-)?[0-9]{1,5}(:[0-9]{1,2}){0,2}")
_PATH = re.compile(r"/[A-Za-z0-9_.+@=:,/-]*")
_ACCOUNT = r"[\w.@+-]{1,150}"
_OWNERS = re.compile(rf"\*|{_ACCOUNT}(,{_ACCOUNT}){{0,99}}")
_RUN = re.compile(r"[0-9]{1,10}")
_SERVER = re.compile(r"(https://[A-Za-z0-9][A-Za-z0-9.-]{0,253}|http://(127\.0\.0\.1|localhost))(:[0-9]{1,5})?")


class PlanError(ValueError):
    """What was asked for cannot be: what is wrong, and `fix`, how to put it right."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.fix = fix


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What every submission asks of Slurm. `nodes`: that train, or at a time.

    `python` runs Holdfast on every node, in `checkout` where it is no installed package (""). `directory` is on a file
    system of all nodes. `grace_s`: so long before the time limit Slurm warns. `kill_wait_s`: from the signal of
    `scancel` to the end (Slurm's KillWait). `join_token_file` holds a token of `server`; `owners` are its accounts, by
    commas, whose jobs may run as the user who submits ("*": all). "" of the others: Slurm's default."""

    nodes: int
    gpus_per_node: int
    python: str
    directory: str
    checkout: str = ""
    time: str = ""
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    reservation: str = ""
    grace_s: int = 60
    kill_wait_s: int = 30
    probe: str = "nvml"
    server: str = ""
    join_token_file: str = ""
    owners: str = ""

    def __post_init__(self) -> None:
        """Raises PlanError with the first value that cannot be: what is wrong does not exist."""
        for field in fields(self):
            check = _CHECKS.get(field.name)
            value = getattr(self, field.name)
            if check is not None and (value != "" or field.name in _NEEDED) and (wrong := check(value)):
                option = f"--{_OPTIONS.get(field.name, field.name).replace('_', '-')}"
                raise PlanError(
                    f"{option} {shown(str(value)[:80])!r} is not possible: {wrong}", f"give another {option}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Asked):
    """One allocation of `nodes` + `spares` nodes for the job of `spec_text`: `directory` gets one folder for each.
    `server` "": a control plane of the allocation's own. `continues`: the id of the run in `directory` whose job goes
    on here; `chained`: once that one has ended."""

    spec_text: str
    job_name: str
    spares: int
    continues: str = ""
    chained: bool = False

    def __post_init__(self) -> None:
        """Raises PlanError: a plan that is wrong does not exist."""
        Asked.__post_init__(self)
        if bool(self.server) is not bool(self.join_token_file):
            raise PlanError(
                "--server and --join-token-file belong together",
                "a control plane that stands already admits these nodes by a token: `holdfast join-token create` makes"
                " one, with --uses for all nodes",
            )
        if self.owners and not self.server:
            raise PlanError(
                "--owners belongs to --server",
                "leave it out: in a control plane of the allocation's own there is one account, and it is yours",
            )
        if self.server and self.continues:
            raise PlanError(
                "--continue does not go with --server",
                "a control plane that stands already keeps the job in its queue, and it continues there by itself",
            )


def is_server(text: str) -> bool:
    """The address of a server to which a token may be shown: https, or loopback."""
    return bool(_SERVER.fullmatch(text.rstrip("/")))


def is_account(text: str) -> bool:
    """The name of one account: a list of several would let others in."""
    return bool(re.fullmatch(_ACCOUNT, text))


def plan_of(spec: bytes, *, gpus_per_node: int | None, **given: object) -> Plan:
    """The plan for a job spec's text (YAML or JSON). `gpus_per_node` None: as many as the spec asks for. Raises
    PlanError with the first fault."""
    text, job = _read(spec)
    wanted = job.spec.resources
    plan = Plan(
        spec_text=text,
        job_name=job.metadata.name,
        gpus_per_node=wanted.gpus_per_node if gpus_per_node is None else gpus_per_node,
        **given,  # type: ignore[arg-type]
    )
    if wanted.nodes > plan.nodes:
        raise PlanError(
            f"the job wants {wanted.nodes} nodes (spec.resources.nodes) and --nodes is {plan.nodes}:"
            " it would never start",
            f"give --nodes {wanted.nodes}, or change the spec",
        )
    if wanted.gpus_per_node > plan.gpus_per_node:
        raise PlanError(
            f"the job wants {wanted.gpus_per_node} devices of a node (spec.resources.gpus_per_node) and --gpus-per-node"
            f" is {plan.gpus_per_node}: it would never start",
            f"give --gpus-per-node {wanted.gpus_per_node}, or change the spec",
        )
    return plan


def _read(spec: bytes) -> tuple[str, JobSpec]:
    if len(spec) > MAX_SPEC_BYTES:
        raise PlanError(f"the job spec has {len(spec)} bytes; {MAX_SPEC_BYTES} at most", "leave out what is no spec")
    try:
        text = spec.decode("utf-8")
        found = lint(parse_yaml(spec))
    except (UnicodeDecodeError, SpecTextError) as error:
        raise PlanError(f"the job spec cannot be read: {error}", "fix the file's syntax") from error
    if "\0" in text or "\r" in text:
        raise PlanError("the job spec has a NUL or a carriage return in it", "save it as plain text with newlines")
    if found.spec is None:
        fault = found.faults[0]
        more = f" (and {len(found.faults) - 1} more: `holdfast job validate`)" if len(found.faults) > 1 else ""
        raise PlanError(f"the job spec is not valid: {fault.pointer}: {fault.message}{more}", fault.fix)
    return text, found.spec


Check = Callable[[object], str]


def _number(low: int, high: int) -> Check:
    return lambda value: "" if type(value) is int and low <= value <= high else f"it must be {low} to {high}"


def _like(pattern: "re.Pattern[str]", words: str) -> Check:
    return lambda value: "" if isinstance(value, str) and pattern.fullmatch(value) else words


def _path(value: object) -> str:
    if not isinstance(value, str) or not _PATH.fullmatch(value) or ".." in PurePosixPath(value).parts:
        return "it must be an absolute path of letters, digits and _.+@=:,/- without '..'"
    return "" if len(value) <= MAX_PATH_BYTES else f"it must be at most {MAX_PATH_BYTES} bytes long"


_OPTIONS = {"continues": "continue"}
_NEEDED = frozenset({"job_name", "python", "directory", "probe"})
_CHECKS: dict[str, Check] = {
    "job_name": _like(_WORD, "it must be letters, digits and _.+-"),
    "nodes": _number(1, MAX_NODES),
    "spares": _number(0, MAX_NODES),
    "cold": _number(0, MAX_NODES),
    "gpus_per_node": _number(0, MAX_GPUS),
    "grace_s": _number(MIN_GRACE_S, MAX_GRACE_S),
    "kill_wait_s": _number(1, MAX_GRACE_S),
    "python": _path,
    "directory": _path,
    "checkout": _path,
    "join_token_file": _path,
    "time": _like(_TIME, "it must be minutes, MM:SS, HH:MM:SS, or DAYS-HH[:MM[:SS]]"),
    "partition": _like(_LIST, "it must be names of partitions, with commas"),
    "account": _like(_WORD, "it must be letters, digits and _.+-"),
    "qos": _like(_WORD, "it must be letters, digits and _.+-"),
    "constraint": _like(_FEATURES, "it must be names of features with & | ! * [ ] ( )"),
    "reservation": _like(_LIST, "it must be names of reservations, with commas"),
    "probe": lambda value: "" if value in PROBES else f"it must be {' or '.join(PROBES)}",
    "continues": _like(_RUN, "it must be the number of a run in --directory"),
    "owners": _like(_OWNERS, "it must be names of accounts with commas, or * for all"),
    "server": _like(_SERVER, "it must be https://HOST[:PORT], or http:// on loopback"),
}
