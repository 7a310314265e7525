"""Checks of a job spec about where its state and data lie."""

import os.path
import re
from collections.abc import Iterator, Sequence

from controlplane.protocol.spec import TrainSpec
from controlplane.protocol.spec_fault import Fault, Ground

_LOCAL = "/spec/checkpoint/local"
_ADDRESS = re.compile(r"(s3|gs|gcs)://[A-Za-z0-9][A-Za-z0-9._-]{1,221}(/[^/\s]+)*/?")


def root_of(place: str, roots: Sequence[str]) -> str | None:
    """The longest of `roots` that `place` lies at or below, by its text; None: none. A path with a
    name like `.`, `..` or an empty one lies nowhere."""
    scheme, found, path = place.rpartition("://")
    names = path.rstrip("/").split("/")
    if {"", ".", ".."} & set(names if found else names[1:]):
        return None
    plain = f"{scheme}{found}{'/'.join(names)}/"
    return max((root for root in roots if plain.startswith(f"{root}/")), key=len, default=None)


def absolute(pointer: str, path: str | None) -> Iterator[Fault]:
    if path is not None and (not os.path.isabs(path) or ".." in path.split("/")):
        yield Fault(pointer, "not an absolute path without '..'", "give the full path, the same on every node")


def check_checkpoint_dir(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """A path or an object store's address that means the same on every node."""
    place = spec.checkpoint.dir
    if place is None:
        return
    faults = list(absolute("/spec/checkpoint/dir", place)) if "://" not in place else []
    if faults:
        yield from faults
    elif "://" in place and (not _ADDRESS.fullmatch(place) or ".." in place.split("/")):
        yield Fault(
            "/spec/checkpoint/dir",
            f"{place!r} is no address that checkpoints can be kept at",
            "give an absolute path, or s3://bucket/prefix, or gs://bucket/prefix",
        )
    elif ground.checkpoint_roots is not None and root_of(place, ground.checkpoint_roots) is None:
        yield Fault(
            "/spec/checkpoint/dir",
            f"{place!r} does not lie below a directory that this server keeps checkpoints in",
            f"leave it out, or name a place below {' or '.join(ground.checkpoint_roots)};"
            " an administrator adds others to HOLDFAST_CHECKPOINT_ROOTS",
        )


def check_local_dir(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """A folder of each node, below a root where the server has a list of them, as the nodes' policies do."""
    place = spec.checkpoint.local.dir
    faults = list(absolute(f"{_LOCAL}/dir", place))
    yield from faults
    if place is None or faults or ground.local_roots is None:
        return
    roots = [root for root in ground.local_roots if "://" not in root]
    if "://" in place or root_of(place, roots) is None:
        yield Fault(
            f"{_LOCAL}/dir",
            f"{place!r} does not lie below a directory that this server lets jobs keep checkpoints in",
            f"leave it out, or name a place below {' or '.join(roots)};"
            " an administrator adds others to HOLDFAST_CHECKPOINT_ROOTS",
        )


def check_local_copies(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """A copy is on another node, or it survives nothing."""
    local, nodes = spec.checkpoint.local, spec.resources.nodes
    if local.wanted and local.copies >= nodes:
        yield Fault(
            "/spec/checkpoint/local/copies",
            f"{local.copies} copies on other nodes, but the job has {nodes} nodes",
            f"set it to {nodes - 1} or less, or ask for more nodes",
        )


def check_local_interval(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """The nearer tier saves more often, or it is of no use."""
    local, far = spec.checkpoint.local, spec.checkpoint.interval_steps
    if local.wanted and local.interval_steps > far:
        yield Fault(
            "/spec/checkpoint/local/interval_steps",
            f"a local save every {local.interval_steps} steps is rarer than one of the persistent tier (every {far})",
            f"set it to {far} or less, or leave the local tier out",
        )


def check_local_program(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """Only the built-in trainer has the tier."""
    local = spec.checkpoint.local
    if local.wanted and spec.entrypoint is not None:
        yield Fault(
            f"{_LOCAL}/{'medium' if local.dir is None else 'dir'}",
            "the local tier is the built-in trainer's; this job runs its own program",
            "leave it out",
        )


def check_restore_test(spec: TrainSpec, ground: Ground) -> Iterator[Fault]:
    """Only what the built-in trainer writes is known well enough to be loaded."""
    if spec.checkpoint.restore_test and spec.entrypoint is not None:
        yield Fault(
            "/spec/checkpoint/restore_test",
            "a job with its own program writes checkpoints that nothing here can load",
            "leave it out",
        )
