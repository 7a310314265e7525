"""Where a job's sockets, debug servers and logs are on this node, and who may go there.

`<jobs>/<12 hex>/` is a job's own: the agent's socket for its ranks, which the job's user alone
may use, and below it `debug/`, `host/` and `home/`, which belong to that user. `<jobs>/logs/<job>/`
holds its logs: the files belong to the job's user, the directory to the agent, so that nobody
can put a link in a log's place. A rank reaches no other job's sockets, debug servers or logs. Called by
the runtime; the state directory with the credential is another one.
"""

import hashlib
import os
import re
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from agents.errors import LaunchError
from agents.ranks.debug_client import FOLDER
from agents.ranks.files import make_private
from agents.ranks.users import RunAs

LOGS = "logs"
LONGEST = len("/0123456789ab/host/host.sock")
_OURS = re.compile(r"[0-9a-f]{12}")
_SHARED = stat.S_ISVTX | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class Place:
    """One job's. `uid` and `gid` of the processes of the job here."""

    folder: Path
    uid: int
    gid: int

    @property
    def separate(self) -> bool:
        """They run as another user than the agent."""
        return self.uid != os.geteuid()

    @property
    def agent_socket(self) -> Path:
        """The agent listens here for the job's ranks."""
        return self.folder / "agent.sock"

    @property
    def host_socket(self) -> Path:
        """The job's rank host listens here for the agent."""
        return self.folder / "host" / "host.sock"

    @property
    def debug_servers(self) -> Path:
        """The debug servers of its ranks."""
        return self.folder / FOLDER

    @property
    def home(self) -> Path:
        """HOME of a user that has none."""
        return self.folder / "home"


class Places:
    """Those of this node, under `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.logs = root / LOGS

    def open(self) -> None:
        """Make the directory that holds them: everybody may pass, nobody but the agent may list. One that
        everybody shares, as /tmp, is not taken for it. Raises OSError."""
        self.root.mkdir(parents=True, exist_ok=True)
        if self.root.stat().st_mode & _SHARED == _SHARED:
            raise PermissionError(f"{self.root} is shared by everybody: name a directory below it with --jobs-dir")
        mode = 0o711 if os.geteuid() == 0 else 0o700
        make_private(self.root, owner=None, mode=mode)
        make_private(self.logs, owner=None, mode=mode)

    def prepare(self, job_id: str, user: RunAs | None) -> Place:
        """The job's place, made for `user` if it is not there. Raises LaunchError."""
        folder = self._folder(job_id)
        known = self.known(job_id)
        uid = user.uid if user else os.geteuid()
        if known is not None and known.uid != uid:
            # The owner was mapped to another user since; what ran as the first one is gone or
            # will be refused by its user id.
            shutil.rmtree(folder, ignore_errors=True)
        try:
            make_private(folder, owner=None)
            if user is not None:
                os.chown(folder, os.geteuid(), user.gid)
                folder.chmod(0o710)
            for name in (FOLDER, "host", "home"):
                make_private(folder / name, owner=user)
        except OSError as error:
            raise LaunchError(f"cannot make {folder}: {error.strerror}") from error
        return Place(folder, uid, user.gid if user else os.getegid())

    def known(self, job_id: str) -> Place | None:
        """The place as an earlier life of the agent made it; None: there is none."""
        folder = self._folder(job_id)
        try:
            found = (folder / "host").stat(follow_symlinks=False)
        except OSError:
            return None
        return Place(folder, found.st_uid, found.st_gid)

    def debug_servers(self, job_id: str) -> Path:
        """Of a job that may have no place any more."""
        return self._folder(job_id) / FOLDER

    def forget(self, job_id: str) -> None:
        """Nothing of the job runs here any more; its logs stay."""
        shutil.rmtree(self._folder(job_id), ignore_errors=True)

    def forget_all_but(self, job_ids: set[str]) -> None:
        """What an earlier life of the agent left behind, and nothing that bears no name of ours."""
        kept = {self._folder(job_id) for job_id in job_ids}
        for folder in self.root.iterdir():
            if _OURS.fullmatch(folder.name) and folder not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _folder(self, job_id: str) -> Path:
        """Short and of fixed length: the path of a unix socket ends at 107 bytes."""
        return self.root / hashlib.sha256(job_id.encode()).hexdigest()[:12]
