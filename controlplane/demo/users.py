"""As whom ranks run in the demo: the policy file of its agents, and what is said about it.

Started by root, each owner's jobs get a user id of their own, if such a user can reach the
interpreter, this checkout and the demo's directory; started by anybody else, or where it cannot,
ranks run as the demo itself does. The installation says which of both at its start.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from controlplane.config.guards import PASS_ONLY
from controlplane.demo.nodes import MARKER

FIRST_UID, LAST_UID = 610_000, 619_999
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Users:
    """`separate`: each owner's jobs have a user of their own; `why`: for people."""

    separate: bool
    why: str


def find_out(directory: Path, repository: Path) -> Users:
    """Whether ranks can have users of their own here. Opens the demo's directory to passers-by."""
    if os.geteuid() != 0:
        return Users(False, "ranks run as you, because the demo does not run as root")
    directory.chmod(directory.stat().st_mode | PASS_ONLY)
    question = "import os, sys, msgspec, controlplane.protocol.launch; sys.exit(not os.access(sys.argv[1], os.X_OK))"
    try:
        done = subprocess.run(
            [sys.executable, "-c", question, str(directory)],
            user=FIRST_UID,
            group=FIRST_UID,
            extra_groups=(),
            cwd="/",
            env={"PYTHONPATH": str(repository), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        said = (
            "" if done.returncode == 0 else (done.stderr.decode(errors="replace").strip().rpartition("\n")[2] or "no")
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = str(error)
    if said:
        return Users(
            False,
            "ranks run as root, like the demo: another user cannot reach this interpreter, checkout and directory "
            f"({said[:200]}). Do not run other people's programs in it",
        )
    return Users(True, f"each owner's ranks run as a user of their own ({FIRST_UID} and up)")


def write_policy(path: Path, users: Users, *, directory: Path, checkpoints: Path) -> None:
    """The file that all agents of the demo read."""
    lines = ["# Made by the demo; docs/nodes.md, Who ranks run as."]
    if users.separate:
        lines += [f"checkpoint_roots = [{json.dumps(str(checkpoints))}]", "[users]", 'default = "dynamic"']
        lines += [f"dynamic = [{FIRST_UID}, {LAST_UID}]", f"dynamic_table = {json.dumps(str(directory / 'uids.json'))}"]
    else:
        lines += ["[users]", 'default = "agent"']
    # By it the demo finds the ranks of a node again.
    lines += ["[env]", f"inherit = [{json.dumps(MARKER)}]", ""]
    path.touch(mode=0o600)
    path.write_text("\n".join(lines))
