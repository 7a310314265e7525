"""What this node allows, whatever the server says: rules of the node's own administrator.

The runtime reads them from a file on the node (`agents.policy_file`) and puts them into the
state; `commands.act` asks `refusal` before it carries an order out. Nothing here looks at the
machine: who an account is, and whether a path is a link, is found out where it is used
(`agents.ranks.users`, `agents.ranks.places`).
"""

import math
import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from agents.core.loaders import loads_code
from controlplane.protocol.commands import Body, CollectStacks, EndVerification, StartRanks, VerifyCheckpoint, WarmHost
from controlplane.protocol.launch import ReplicaLaunch

REFUSE, AGENT, DYNAMIC = "refuse", "agent", "dynamic"
"""Words that `users.default` knows beside the name of an account and a number."""

HARMLESS = (CollectStacks, EndVerification)
"""They start and stop nothing of a job and change nothing."""

SYSTEM_PLACES = (
    "/proc", "/sys", "/dev", "/etc", "/root", "/boot", "/run", "/var/run", "/bin", "/sbin", "/lib", "/lib32",
    "/lib64", "/usr",
)  # fmt: skip
"""No job's files where no roots are named; `/dev/shm` is a place for memory and is not meant."""
_NEVER = ("/proc", "/sys")
# A checkpoint that the nodes hold themselves, by its name alone: each finds it below a root of its own.
_ON_NODES = re.compile(r"\Alocal:step_\d{8,16}-e\d{1,16}\Z")
_MEMORY = "/dev/shm"  # noqa: S108  Named to be told apart; nothing is written here.

REFUSED_ENVIRONMENT = frozenset(
    {"LD_PRELOAD", "LD_AUDIT", "GCONV_PATH", "BASH_ENV", "ENV", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONINSPECT"}
)
"""They put code into every program that the job starts, unseen by who reads its spec."""
REFUSED_PREFIXES = ("HOLDFAST_AGENT_", "HOLDFAST_FORK_", "TORCHELASTIC_")


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base: a misspelt key is refused."""


class Users(_Table, frozen=True):
    """As whom a job's processes run where the agent is root. `allowed`: owners whose jobs may
    run here, None: all. `map`: owner to account or user id. `accounts`: the local account with
    the owner's name. `default`: for everybody else an account, a user id, or one of "refuse",
    "dynamic" (a user id of `dynamic`, first and last, one for each owner) and "agent" (the
    agent's own user: nothing protects the node from the job). `min_uid`: no lower one is used."""

    allowed: tuple[str, ...] | None = None
    map: dict[str, str | int] = {}
    accounts: bool = False
    default: str | int = REFUSE
    dynamic: tuple[int, int] | None = None
    dynamic_table: str = ""
    min_uid: int = 1000


class Environment(_Table, frozen=True):
    """`allowed`: variables that a spec may set (a name, or a prefix that ends with `*`), None:
    all but those never allowed. `inherit`: variables of the agent that ranks get besides."""

    allowed: tuple[str, ...] | None = None
    inherit: tuple[str, ...] = ()


class Limits(_Table, frozen=True):
    """Of one job on this node (`memory_bytes`, `processes`, `cpus`: by its control groups; where one
    cannot be kept, the job is refused) and of each of its processes (`open_files`). None: no limit
    beyond the agent's own."""

    memory_bytes: int | None = None
    processes: int | None = None
    cpus: float | None = None
    open_files: int | None = None


class Policy(_Table, frozen=True):
    """The whole file. `commands`: kinds of orders that are obeyed, None: all. `checkpoint_roots`
    and `data_roots`: directories (or s3:// and gs:// prefixes) below which a job may save and
    read, (): anywhere but in the system's own places. `checkpoint_group`: may read what jobs
    save. `entrypoints`: programs and directories of programs (ending with `/`) that a job may
    name by absolute path, (): none, None: any; where it is set, a spec sets no variable that loads
    code (`loaders`) unless `env.allowed` has its very name. `observe_only`: nothing is started or stopped."""

    observe_only: bool = False
    commands: tuple[str, ...] | None = None
    checkpoint_roots: tuple[str, ...] = ()
    data_roots: tuple[str, ...] = ()
    checkpoint_group: str | int | None = None
    entrypoints: tuple[str, ...] | None = None
    users: Users = Users()
    env: Environment = Environment()
    limits: Limits = Limits()


KINDS = tuple(sorted(str(kind.__struct_config__.tag) for kind in Body.__args__))


DEFAULTS = Policy()
"""Where there is no file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRules:
    """The file's rules, and the agent's own directories, where no job has anything to do."""

    policy: Policy = DEFAULTS
    own_places: tuple[str, ...] = ()


DEFAULT_RULES = NodeRules()


class PolicyInvalid(ValueError):
    """The text names the key and what it must be."""


def parse(document: object) -> Policy:
    """What the file says. Raises PolicyInvalid."""
    try:
        policy = msgspec.convert(document, Policy)
    except msgspec.ValidationError as error:
        raise PolicyInvalid(str(error)) from error
    faults = [*_user_faults(policy.users), *_path_faults(policy)]
    if unknown := sorted(set(policy.commands or ()) - set(KINDS)):
        faults.append(f"commands: unknown kinds {', '.join(unknown)}; known: {', '.join(KINDS)}")
    limits = policy.limits
    numbers = (limits.memory_bytes, limits.processes, limits.open_files, limits.cpus)
    if any(number is not None and not 0 < number < math.inf for number in numbers):
        faults.append("limits: a limit is a number, more than 0; leave it out for none")
    if faults:
        raise PolicyInvalid("; ".join(faults))
    return policy


def refusal(rules: NodeRules, body: Body) -> str:
    """Why this node does not obey; "" when it does."""
    policy = rules.policy
    if policy.observe_only and not isinstance(body, HARMLESS):
        return "this node's policy is to observe only: it starts and stops nothing (observe_only)"
    kind = str(body.__struct_config__.tag)
    if policy.commands is not None and kind not in policy.commands:
        return f"this node's policy does not allow {kind} (commands)"
    match body:
        case StartRanks(launch=launch):
            return _owner(policy.users, launch.user) or _launch(rules, launch)
        case WarmHost(user=user):
            return _owner(policy.users, user)
        case VerifyCheckpoint(user=user, path=path):
            return _owner(policy.users, user) or _place(rules, "checkpoint", path, policy.checkpoint_roots)
    return ""


def account_of(users: Users, owner: str) -> str | int:
    """What the rules say of this owner, before anybody looked into the machine's accounts: an
    account, a user id, or one of the words. Where `accounts` is set and nothing is mapped, the
    caller tries the owner's name first."""
    return users.map.get(owner, users.default)


def is_below(path: str, roots: Iterable[str]) -> bool:
    """`path` is one of the roots or under it, by its text; it must be normal (no `..`)."""
    return any(path == root.rstrip("/") or path.startswith(root.rstrip("/") + "/") for root in roots)


def path_fault(path: str, roots: tuple[str, ...], own_places: tuple[str, ...]) -> str:
    """Why a job has nothing to do there; "" when it may."""
    if "\0" in path:
        return "holds a NUL"
    if "://" in path:
        normal = ".." not in path.split("/")
        return "" if normal and (not roots or is_below(path, roots)) else "is not below a root of this node's policy"
    if not path.startswith("/") or posixpath.normpath(path) != path.rstrip("/") or path.startswith("//"):
        return "is not absolute and in its shortest form"
    if is_below(path, _NEVER) or is_below(path, own_places) or any(is_below(own, (path,)) for own in own_places):
        return "holds what belongs to the system or to the agent"
    if roots:
        return "" if is_below(path, roots) else f"is not below {', '.join(roots)}"
    if path.strip("/") == "" or (is_below(path, SYSTEM_PLACES) and not path.startswith(f"{_MEMORY}/")):
        return "belongs to the system"
    return ""


def _owner(users: Users, owner: str) -> str:
    if users.allowed is not None and owner not in users.allowed:
        return f"this node's policy does not run jobs of {owner or 'nobody in particular'} (users.allowed)"
    return ""


def _launch(rules: NodeRules, launch: ReplicaLaunch) -> str:
    policy, config = rules.policy, launch.config
    checkpoints, data = policy.checkpoint_roots, policy.data_roots
    places = [("checkpoint directory", config.checkpoint_dir, checkpoints)]
    if config.checkpoint.local.dir is not None:
        places.append(("directory for local checkpoints", config.checkpoint.local.dir, checkpoints))
    if config.resume is not None and not _ON_NODES.match(config.resume.path):
        places.append(("checkpoint to resume from", config.resume.path, checkpoints))
    if config.training.data is not None:
        places.append(("training data", config.training.data, data))
    for what, path, roots in places:
        if fault := _place(rules, what, path, roots):
            return fault
    return _entrypoint(policy, launch.entrypoint) or _variables(policy, launch.env)


def _place(rules: NodeRules, what: str, path: str, roots: tuple[str, ...]) -> str:
    fault = path_fault(path, roots, rules.own_places)
    return f"this node's policy refuses the {what} {path[:100]!r}: it {fault}" if fault else ""


def _entrypoint(policy: Policy, entrypoint: tuple[str, ...] | None) -> str:
    if entrypoint is None or policy.entrypoints is None:
        return ""
    program = entrypoint[0] if entrypoint else ""
    if not policy.entrypoints:
        return "this node's policy runs no programs of jobs' own (entrypoints)"
    if program.startswith("/") and posixpath.normpath(program) == program:
        for allowed in policy.entrypoints:
            if program == allowed or (allowed.endswith("/") and program.startswith(allowed)):
                return ""
    return f"this node's policy does not run {program[:100]!r} (entrypoints; give a program's absolute path)"


def _variables(policy: Policy, env: dict[str, str]) -> str:
    rules = policy.env
    for name in sorted(env):
        if name in REFUSED_ENVIRONMENT or name.startswith(REFUSED_PREFIXES):
            return f"the variable {name[:100]} is never allowed in a job's env"
        if rules.allowed is not None and not any(_matches(name, pattern) for pattern in rules.allowed):
            return f"this node's policy does not let a job set {name[:100]} (env.allowed)"
        # By its own name: whoever allows NCCL_* thinks of settings, not of a plugin.
        if policy.entrypoints is not None and loads_code(name) and name not in (rules.allowed or ()):
            return (
                f"this node's policy names the programs that jobs may run (entrypoints), and {name[:100]} could put "
                f"other code into them: leave it out of the job's env, or have the node's administrator write "
                f"{name[:100]}, without *, into env.allowed"
            )
    return ""


def _matches(name: str, pattern: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def _user_faults(users: Users) -> list[str]:
    faults = []
    if users.min_uid < 1:
        faults.append("users.min_uid: must be 1 or more; nothing of a job runs as root")
    for owner, account in [*users.map.items(), ("users.default", users.default)]:
        if isinstance(account, int) and account < users.min_uid:
            faults.append(f"users: {owner} must have a user id of {users.min_uid} or more, not {account}")
        if account in ("root", ""):
            faults.append(f"users: {owner} cannot be {account!r}")
    if (users.default == DYNAMIC) != (users.dynamic is not None):
        faults.append('users.dynamic: [first, last] user id, together with default = "dynamic"')
    if users.dynamic is not None and not users.min_uid <= users.dynamic[0] <= users.dynamic[1] < 2**32 - 1:
        faults.append(f"users.dynamic: two user ids, the lower one first, from {users.min_uid} on")
    return faults


def _path_faults(policy: Policy) -> list[str]:
    faults = []
    for key, roots in (("checkpoint_roots", policy.checkpoint_roots), ("data_roots", policy.data_roots)):
        for root in roots:
            if "://" in root:
                continue
            if not root.startswith("/") or root.startswith("//") or posixpath.normpath(root) != root or root == "/":
                faults.append(f"{key}: {root!r} must be an absolute directory in its shortest form, and not /")
    faults.extend(
        f"entrypoints: {program!r} must be an absolute path"
        for program in policy.entrypoints or ()
        if program[:1] != "/"
    )
    if policy.users.dynamic_table and not policy.users.dynamic_table.startswith("/"):
        faults.append("users.dynamic_table: must be an absolute path")
    return faults
