"""What Slurm tells a process of an allocation, checked. The only file of the package that reads the environment."""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from controlplane.engines.slurm.answers import name_in_holdfast

_NUMBER = re.compile(r"[0-9]{1,10}")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
OBSERVER_FILE = "/etc/holdfast/slurm.toml"
_MAX_TOPOLOGY_CHARS = 1024


class NoAllocation(RuntimeError):
    """This process was not started by Slurm; the text says which variable is not as Slurm sets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """`job`: its id, new for each submission. `node`: this node's name in Slurm; `index` its place in the allocation.
    `segment`: see `segment`."""

    job: str
    node: str
    index: str
    segment: str

    @property
    def name(self) -> str:
        """Of the node in Holdfast, where names are those of hosts in small letters; Slurm's may be `GPU_01`."""
        return name_in_holdfast(self.node)


def read(environ: Mapping[str, str] | None = None) -> Allocation:
    """Of the batch script, or of a task of `srun`; of this process where none is given. Raises NoAllocation."""
    environ = os.environ if environ is None else environ
    wanted = (("SLURM_JOB_ID", _NUMBER), ("SLURMD_NODENAME", _NODE), ("SLURM_NODEID", _NUMBER))
    for name, pattern in wanted:
        if not pattern.fullmatch(environ.get(name, "")):
            raise NoAllocation(
                f"{name} is {environ.get(name, '')[:80]!r}, and no process of Slurm's has it so. Start it by the script"
                " that `holdfast slurm submit` makes"
            )
    where = segment(environ.get("SLURM_TOPOLOGY_ADDR", ""), environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", ""))
    job, node, index = (environ[name] for name, _ in wanted)
    return Allocation(job=job, node=node, index=index, segment=where)


def observed(environ: Mapping[str, str] | None = None) -> tuple[Path, str]:
    """(the file of the observer's settings, this node's name in Slurm), for a hook of Slurm's: HOLDFAST_SLURM_CONFIG
    and SLURMD_NODENAME, which Slurm sets; else the usual file, and the host's name up to its first dot."""
    environ = os.environ if environ is None else environ
    name = environ.get("SLURMD_NODENAME", "") or socket.gethostname().partition(".")[0]
    return Path(environ.get("HOLDFAST_SLURM_CONFIG", "") or OBSERVER_FILE), name if _NODE.fullmatch(name) else ""


def segment(address: str, pattern: str) -> str:
    """The agent's `--segment` from SLURM_TOPOLOGY_ADDR and _PATTERN: the switches above the node, or its block; "":
    Slurm knows no topology."""
    names, kinds = address[:_MAX_TOPOLOGY_CHARS].split("."), pattern.split(".")
    if len(names) != len(kinds) or kinds[-1] != "node":
        return ""
    found = ".".join(names[:-1])
    return found if _NODE.fullmatch(found) else ""
