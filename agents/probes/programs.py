"""Whether a job's own program can begin here: its file, its script and where it starts are looked at.

Called before a start by `node_checks`, in a thread of its own. The program is looked for as the
kernel will: with the `PATH` that the rank gets, from the directory that it starts in, with the
rights of the job's user. It starts nothing and reads no file. What a shell line or another
program runs in its turn is not understood, and passes.
"""

import os
import stat
from dataclasses import dataclass

from agents.core.health import short
from agents.ranks.files import acting_as
from agents.ranks.launch import Standing, clean_environment
from controlplane.protocol.launch import ReplicaLaunch
from controlplane.protocol.launch_checks import python_run

GONE = "the directory that the agent was started in, and ranks start in, is gone: start the agent in one that stays"
_MAX_NAME_CHARS = 60


def fault_of(launch: ReplicaLaunch, standing: Standing) -> str:
    """What keeps the launch's entrypoint from beginning here, and how that is mended, in one
    sentence; "" for nothing. Raises LaunchError where files cannot be used as the job's user."""
    try:
        start = os.getcwd()
    except OSError:
        return GONE
    environment = clean_environment(os.environ, standing) | launch.env
    who = f" for user {standing.user.name}" if standing.user else ""
    ground = _Ground(start=start, places=tuple(os.get_exec_path(environment)), who=who)
    argv = list(launch.entrypoint or ())
    with acting_as(standing.user):
        return _fault(argv, ground)


@dataclass(frozen=True, slots=True)
class _Ground:
    """`start`: the directory ranks start in; `places`: those of PATH; `who`: words for whose
    rights are meant."""

    start: str
    places: tuple[str, ...]
    who: str


def _fault(argv: list[str], ground: _Ground) -> str:
    if fault := _program(argv[0], ground.start, ground):
        return fault
    run = python_run(argv)
    where = os.path.join(ground.start, run.directory)
    if why := _why_no_directory(where):
        return f"{short(where)} {why}{ground.who}, and the program is to begin there: make it, or correct --chdir"
    if run.interpreter and (fault := _program(run.interpreter, where, ground)):
        return fault
    script = os.path.join(where, run.script)
    if run.script and (why := _why_not(script, os.R_OK)):
        return f"{short(script)} {why}{ground.who}: give the script's absolute path, or begin with env --chdir=DIR"
    return ""


def _program(name: str, where: str, ground: _Ground) -> str:
    if os.path.dirname(name):
        path = os.path.join(where, name)
        why = _why_not(path, os.X_OK)
        return f"{short(path)} {why}{ground.who}: put the program there, or correct the entrypoint" if why else ""
    reasons = [_why_not(os.path.join(where, place, name), os.X_OK) for place in ground.places]
    if "" in reasons:
        return ""
    found = next((why for why in reasons if why != _ABSENT), _ABSENT)
    mend = "give its absolute path, or set PATH in the job's env"
    return f"{short(name, _MAX_NAME_CHARS)} {found}{ground.who} (PATH {short(':'.join(ground.places))}): {mend}"


_ABSENT = "is not there"


def _why_not(path: str, wanted: int) -> str:
    """Why the file cannot be used so (`os.X_OK`, `os.R_OK`); "" where it can."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return _ABSENT
    except PermissionError:
        return "may not be reached"
    except (OSError, ValueError) as error:
        return f"cannot be inspected ({getattr(error, 'strerror', None) or error})"
    if stat.S_ISDIR(mode) and wanted == os.X_OK:
        return "is a directory"
    # Of the rights in effect, for those of a job's user are taken on as such.
    if not os.access(path, wanted, effective_ids=True):
        return "may not be executed" if wanted == os.X_OK else "may not be read"
    return ""


def _why_no_directory(path: str) -> str:
    why = _why_not(path, os.R_OK)
    if why in ("", "may not be read"):
        if not os.path.isdir(path):
            return "is no directory"
        return "" if os.access(path, os.X_OK, effective_ids=True) else "may not be entered"
    return why
