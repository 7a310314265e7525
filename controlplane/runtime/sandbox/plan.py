"""What the server asks of the sandbox, and what the sandbox answers. No Django: the launcher
is a program of its own.

In `argv`, in the environment, in `links` and in the content of `files`, `{in0}`, `{in1}`, ... stand
for the inputs as the
program sees them, `{scratch}` for its own folder `{out}` for the folder whose files the
launcher hands out afterwards, and `{keep}` for the writable directory.
"""

from collections.abc import Mapping

import msgspec

OUT_OF_TIME = 124
OUT_OF_MEMORY = 137
NOT_ISOLATED = 78
"""Exit codes of the launcher; any other is the program's own, 128 + n where signal n ended it."""
REPORT = "sandbox.json"
LOG = "log"
LOG_MAX_BYTES = 1 << 20

MEANS: Mapping[str, str] = {
    "environment": "an empty environment",
    "user": "a user of its own",
    "network": "no network but its own loopback",
    "files": "access to no files but its inputs and its programs",
    "processes": "no access to other processes, and an end for all that it starts",
    "memory": "a limit on memory, all its processes together",
    "disk": "a limit on what it writes",
    "time": "a limit on time",
    "privileges": "no way to more rights",
}
"""Name of each means of isolation, and what it gives."""


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Of one run. `wall_s` of it as a whole; `cpu_s` of each process; `disk_bytes` of all that it
    writes; `out_bytes` of each file that is handed out."""

    wall_s: float = 300.0
    cpu_s: int = 3600
    memory_bytes: int = 4 << 30
    disk_bytes: int = 1 << 30
    out_bytes: int = 64 << 20
    processes: int = 512
    open_files: int = 1024


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`inputs` are descriptors of files and directories, inherited; `links` what the
    program finds by these names in its own folder; `place` is a descriptor of the folder for report, log
    and `outputs`, the names of files that are handed out. `programs` are paths that are seen, read-only,
    under their own names. `uid` None: the program keeps the server's user. `network`: it keeps the
    server's network. `required`: it is not run where a means is missing that it should have.
    `writable`: a descriptor of a directory that it may write to, beside its own, as `{keep}`."""

    argv: list[str]
    inputs: list[int]
    files: dict[str, str]
    links: dict[str, str]
    outputs: list[str]
    place: int
    writable: int | None = None
    programs: list[str]
    environment: dict[str, str]
    limits: Limits
    uid: int | None = None
    gid: int | None = None
    nice: int = 0
    network: bool = False
    required: bool = False


class Report(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which means were applied, which were not and why. By the names of `MEANS`."""

    applied: list[str] = []
    missing: dict[str, str] = {}

    def has(self, means: str) -> None:
        """It is applied."""
        self.applied.append(means)

    def lacks(self, means: str, why: object) -> None:
        """It is not; the first reason stays."""
        self.missing.setdefault(means, str(why))
