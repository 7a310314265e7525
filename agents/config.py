"""Settings: command line over HOLDFAST_AGENT_* environment over defaults.

The only file of the agent that reads the environment. Unknown HOLDFAST_AGENT_ keys are
refused, because a misspelt setting is worse than none.
"""

import argparse
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import takewhile
from pathlib import Path

from agents.core import limits
from agents.errors import ConfigError
from agents.exporter import DEFAULT_BIND, parse_bind
from agents.link.server import Server
from agents.ranks.places import LONGEST
from agents.ranks.users import separates
from controlplane.protocol.bounds import MAX_NOTICE_S

PREFIX = "HOLDFAST_AGENT_"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}")
_LINK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]{0,31}")
_MAX_JOBS_DIR_BYTES = 107 - LONGEST
_SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,62}")
_METADATA = re.compile(r"http://[A-Za-z0-9][A-Za-z0-9.-]{0,253}(:[0-9]{1,5})?")
_MAX_MEMORY_WAIT_S = 120.0
MIN_GRACE_S = 1.0
_DEVICE = re.compile(r"([0-9]{1,4}|(GPU|MIG)-[A-Za-z0-9/-]{1,80})")
NOTICES = ("none", "file", "ec2", "gce")
NODE, ALLOCATION = "node", "allocation"
ANYONE = "*"
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS")
_MAX_VISIBLE_CHARS = 4096
_NO_DEVICE = frozenset({"-1", "NoDevFiles"})
"""What CUDA and Slurm write for none; CUDA sees no device behind it in the list either."""
_SECRET_FIELDS = frozenset({"join_token"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything the agent needs to know. `join_token` is read from its file, "" if none. `inherited`: of an
    allocation, which devices are its own, by index or UUID; None: it does not say, so all that are there.
    `identity_dir`: key, credential and count of sessions; the state directory's unless they outlive it. `owners`: of an
    allocation, whose jobs may run as the user who lends it (`ANYONE`: all), see `agents.policy_file`."""

    server: Server
    name: str
    state_dir: Path
    identity_dir: Path
    jobs_dir: Path
    policy_file: Path
    probe: str
    devices: int
    model: str
    seed: int
    ambient_c: float
    insecure_dev: bool
    host_module: str
    min_driver: int
    min_free_mib: int
    min_nvlinks: int | None
    check_paths: tuple[str, ...]
    check_links: tuple[str, ...]
    check_socket: str
    memory_wait_s: float
    empty_device_mib: int
    segment: str
    metrics_bind: tuple[str, int] | None
    notices: str
    notice_file: str
    notice_url: str
    tenancy: str
    grace_s: float
    owners: tuple[str, ...]
    inherited: tuple[str, ...] | None
    join_token: str

    def masked(self) -> dict[str, str]:
        """For the log: secrets are only said to be set or not."""
        values = {field.name: str(getattr(self, field.name)) for field in fields(self)}
        return {key: ("set" if text else "not set") if key in _SECRET_FIELDS else text for key, text in values.items()}


def load(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> Config:
    """Raises ConfigError (argparse itself exits for --help and malformed options)."""
    environment = os.environ if environment is None else environment
    parser = _parser()
    known = {PREFIX + action.dest.upper(): action for action in parser._actions if action.dest != "help"}
    unknown = sorted(key for key in environment if key.startswith(PREFIX) and key not in known)
    if unknown:
        raise ConfigError(f"unknown settings {', '.join(unknown)}; known: {', '.join(sorted(known))}")
    for key, action in known.items():
        if key in environment:
            parser.set_defaults(**{action.dest: _converted(key, environment[key], action)})
    return _checked(parser.parse_args(list(argv)), environment)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m agents",
        description="The Holdfast node agent. Every option can also be set as HOLDFAST_AGENT_<OPTION>.",
    )
    parser.add_argument("--server", default="ws://127.0.0.1:8000", help="ws:// or wss:// URL of the control plane")
    parser.add_argument("--name", default=socket.gethostname(), help="this node's name")
    parser.add_argument("--state-dir", default="/var/lib/holdfast-agent", help="journal and credential")
    parser.add_argument(
        "--identity-dir", default="", help="key and credential, where they outlive --state-dir; else they lie there"
    )
    parser.add_argument("--jobs-dir", default="", help="sockets, logs and debug sockets of jobs")
    parser.add_argument("--policy-file", default="/etc/holdfast/agent-policy.toml", help="what this node allows")
    parser.add_argument("--probe", default="nvml", choices=("nvml", "simulated"))
    parser.add_argument("--devices", type=int, default=8, help="number of simulated devices")
    parser.add_argument("--model", default="H100", help="name of the simulated model")
    parser.add_argument("--seed", type=int, default=0, help="of the simulated readings")
    parser.add_argument("--ambient-c", type=float, default=28.0, help="of the simulated machine room")
    parser.add_argument("--join-token-file", default="", help="a file with the join token (first start only)")
    parser.add_argument("--insecure-dev", action="store_true", help="allow plain ws:// off loopback")
    parser.add_argument("--tls-ca-file", default="", help="PEM; the only authorities that count for wss://")
    parser.add_argument("--tls-certificate", default="", help="PEM; shown to a proxy that asks for one")
    parser.add_argument("--tls-key", default="", help="PEM; of --tls-certificate, for the agent's user alone")
    parser.add_argument("--host-module", default="trainer.host", help="Python module started as rank host")
    parser.add_argument("--min-driver", type=int, default=570, help="oldest major driver version to start ranks with")
    parser.add_argument("--min-free-mib", type=int, default=256, help="room that --check-paths need before a start")
    parser.add_argument("--min-nvlinks", type=int, help="NVLinks of a device that must be up; not given: all it has")
    parser.add_argument("--check-paths", default="", help="paths, by commas, that must be writable before a start")
    parser.add_argument("--check-links", default="", help="network interfaces, by commas, that must be up")
    parser.add_argument("--check-socket", default="", help="unix socket of a checker of the node's own")
    parser.add_argument(
        "--memory-wait-s", type=float, default=limits.MEMORY_WAIT_S, help="longest wait for a device to be empty again"
    )
    parser.add_argument(
        "--empty-device-mib",
        type=int,
        default=limits.EMPTY_DEVICE_BYTES >> 20,
        help="what may be used of an empty device",
    )
    parser.add_argument("--segment", default="", help="NVLink domain or network block of this node")
    parser.add_argument("--notices", default="none", choices=NOTICES, help="where this machine's provider gives notice")
    parser.add_argument("--notice-file", default="", help="of --notices file: a path that a provider's hook writes")
    parser.add_argument("--notice-url", default="", help="of --notices ec2 or gce: http://HOST[:PORT] of the metadata")
    parser.add_argument("--tenancy", default=NODE, choices=(NODE, ALLOCATION), help="the node is ours, or lent to us")
    parser.add_argument("--grace-s", type=float, default=30.0, help="of an allocation: from SIGTERM or USR1 to its end")
    parser.add_argument(
        "--owners", default="", help="of an allocation: accounts, by commas, whose jobs may run as this user; *: all"
    )
    parser.add_argument("--metrics-bind", default=DEFAULT_BIND, help="ADDRESS:PORT of /metrics, or off")
    return parser


def _converted(key: str, text: str, action: argparse.Action) -> object:
    if isinstance(action.const, bool):
        if text not in ("0", "1", "true", "false"):
            raise ConfigError(f"{key} must be 1 or 0, not {text!r}")
        return text in ("1", "true")
    if action.choices is not None and text not in action.choices:
        raise ConfigError(f"{key} must be one of {', '.join(map(str, action.choices))}, not {text!r}")
    try:
        return action.type(text) if callable(action.type) else text
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from error


def _checked(options: argparse.Namespace, environment: Mapping[str, str]) -> Config:
    server = Server(
        url=options.server.rstrip("/"),
        ca_file=_path(options.tls_ca_file),
        certificate=_path(options.tls_certificate),
        key=_path(options.tls_key),
    )
    server.check(insecure_dev=options.insecure_dev)
    if not _NAME.fullmatch(options.name):
        raise ConfigError(f"--name must be a host name, not {options.name!r}")
    if not 0 <= options.devices <= 64:
        raise ConfigError(f"--devices must be 0..64, not {options.devices}")
    if min(options.min_driver, options.min_free_mib, options.min_nvlinks or 0) < 0:
        raise ConfigError("--min-driver, --min-free-mib and --min-nvlinks are 0 or more; 0 asks for nothing")
    _check_memory(options)
    if options.segment and not _SEGMENT.fullmatch(options.segment):
        raise ConfigError(f"--segment must be up to 63 letters, digits and _.:-, not {options.segment!r}")
    if not all(os.path.isabs(path) for path in _listed(options.check_paths)):
        raise ConfigError(f"--check-paths must be absolute paths, not {options.check_paths!r}")
    if not all(_LINK.fullmatch(link) for link in _listed(options.check_links)):
        raise ConfigError(f"--check-links must be names of interfaces, not {options.check_links!r}")
    _check_notices(options)
    state_dir = Path(options.state_dir).absolute()
    jobs_dir = Path(options.jobs_dir).absolute() if options.jobs_dir else jobs_beside(state_dir)
    if over_long_bytes(jobs_dir) > 0:
        raise ConfigError(f"--jobs-dir {jobs_dir} is over {_MAX_JOBS_DIR_BYTES} bytes: too long for unix sockets in it")
    return Config(
        server=server,
        name=options.name,
        state_dir=state_dir,
        identity_dir=Path(options.identity_dir).absolute() if options.identity_dir else state_dir,
        jobs_dir=jobs_dir,
        policy_file=Path(options.policy_file).absolute(),
        probe=options.probe,
        devices=options.devices,
        model=options.model,
        seed=options.seed,
        ambient_c=options.ambient_c,
        insecure_dev=options.insecure_dev,
        host_module=options.host_module,
        min_driver=options.min_driver,
        min_free_mib=options.min_free_mib,
        min_nvlinks=options.min_nvlinks,
        check_paths=_listed(options.check_paths),
        check_links=_listed(options.check_links),
        check_socket=options.check_socket,
        memory_wait_s=options.memory_wait_s,
        empty_device_mib=options.empty_device_mib,
        segment=options.segment,
        metrics_bind=parse_bind(options.metrics_bind),
        notices=options.notices,
        notice_file=options.notice_file,
        notice_url=options.notice_url.rstrip("/"),
        tenancy=options.tenancy,
        grace_s=options.grace_s,
        owners=_listed(options.owners),
        inherited=_inherited(environment) if options.tenancy == ALLOCATION else None,
        join_token=_read_token(options.join_token_file),
    )


def _check_memory(options: argparse.Namespace) -> None:
    """How long a start waits for which memory."""
    if not 0 <= options.memory_wait_s <= _MAX_MEMORY_WAIT_S:
        limit = f"0 (do not wait) to {_MAX_MEMORY_WAIT_S:.0f}"
        raise ConfigError(f"--memory-wait-s must be {limit}, not {options.memory_wait_s:g}")
    if options.empty_device_mib < 0:
        raise ConfigError(f"--empty-device-mib must be 0 or more, not {options.empty_device_mib}")


def _check_notices(options: argparse.Namespace) -> None:
    """Each setting belongs to the sources that use it; who lends an allocation gives notice of its end himself."""
    if not MIN_GRACE_S <= options.grace_s <= MAX_NOTICE_S:
        raise ConfigError(f"--grace-s must be {MIN_GRACE_S:g} to {MAX_NOTICE_S:g}, not {options.grace_s:g}")
    if options.tenancy == ALLOCATION and options.notices != "none":
        raise ConfigError("--notices belongs to --tenancy node: an allocation's end comes by signal")
    if options.tenancy == NODE and options.owners:
        raise ConfigError("--owners belongs to --tenancy allocation: a node's policy file has users.allowed")
    if (options.notices == "file") is not bool(options.notice_file):
        raise ConfigError("--notice-file is the path of --notices file: give both or neither")
    if options.notice_file and not os.path.isabs(options.notice_file):
        raise ConfigError(f"--notice-file must be absolute, not {options.notice_file!r}")
    if options.notice_url and options.notices not in ("ec2", "gce"):
        raise ConfigError("--notice-url belongs to --notices ec2 or gce")
    if options.notice_url and not _METADATA.fullmatch(options.notice_url.rstrip("/")):
        raise ConfigError(f"--notice-url must be http://HOST[:PORT], not {options.notice_url!r}")


def _inherited(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """Devices by the first variable that is set; the scheduler sets it for the tasks that it starts. One that is
    empty or begins with `_NO_DEVICE` names none; None: neither is set. Raises ConfigError for what are no devices."""
    for name in _VISIBLE:
        text = environment.get(name)
        if text is None:
            continue
        names = tuple(takewhile(lambda name: name not in _NO_DEVICE, _listed(text)))
        if len(text) > _MAX_VISIBLE_CHARS or not all(map(_DEVICE.fullmatch, names)) or len({*names}) < len(names):
            raise ConfigError(f"{name} must list indices or UUIDs of devices, each once, not {text[:80]!r}")
        return names
    return None


def over_long_bytes(jobs_dir: Path) -> int:
    """By how much its path is too long for the unix sockets in it; up to 0 it is not."""
    return len(os.fsencode(jobs_dir)) - _MAX_JOBS_DIR_BYTES


def jobs_beside(state_dir: Path) -> Path:
    """Ranks that run as other users must pass through it, and through the state directory nobody."""
    return state_dir.with_name(f"{state_dir.name}-jobs") if separates() else state_dir / "jobs"


def _path(text: str) -> Path | None:
    return Path(text).absolute() if text else None


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _read_token(path: str) -> str:
    if not path:
        return ""
    try:
        return Path(path).read_text().strip()
    except FileNotFoundError:
        # Normal on every start but the first: the token may be removed once it was used.
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--join-token-file: {error}") from error
