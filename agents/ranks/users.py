"""As whom a job's processes run on this node: the policy's words, looked up in the machine.

Where the agent is root every job has a user of its owner's, never root; where it is not, the
operating system lets it start processes as itself only, and `resolve` says so with None. Called
before each start, in a thread of its own or on the loop (local accounts are read in
microseconds). It changes nothing but the table of user ids that it gives out itself.
"""

import fcntl
import grp
import json
import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from agents.core.policy import AGENT, DYNAMIC, REFUSE, Policy, Users, account_of
from agents.errors import LaunchError

PRIVATE_UMASK, GROUP_UMASK = 0o077, 0o027


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAs:
    """A user of the machine. `home` "": it has none (a user id without an account)."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    home: str = ""
    shell: str = "/bin/sh"
    umask: int = PRIVATE_UMASK


def separates() -> bool:
    """Processes can be started as another user than the agent's."""
    return os.geteuid() == 0


def resolve(policy: Policy, owner: str, *, state_dir: Path) -> RunAs | None:
    """The user for this owner's jobs; None: the agent's own. Raises LaunchError with what the
    node's administrator can do."""
    if not separates():
        return None
    users = policy.users
    account = account_of(users, owner)
    if users.accounts and owner not in users.map and _exists(owner):
        account = owner
    if account == AGENT:
        return None
    if account == REFUSE:
        raise LaunchError(
            f"this node has no user for jobs of {owner or 'nobody in particular'} and runs none as root: "
            "map the owner in users.map of its policy file, or set users.default"
        )
    if account == DYNAMIC:
        account = _dynamic_uid(users, owner, Path(users.dynamic_table or state_dir / "uids.json"))
    return _checked(_numeric(account) if isinstance(account, int) else _account(account), users, policy, owner)


def group_of(policy: Policy) -> int | None:
    """The id of the group that may read what jobs save. Raises LaunchError."""
    group = policy.checkpoint_group
    if group is None or isinstance(group, int):
        return group
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise LaunchError(f"checkpoint_group of this node's policy names {group}, which is no group here") from None


def _checked(user: RunAs, users: Users, policy: Policy, owner: str) -> RunAs:
    where = f"jobs of {owner or 'nobody in particular'} would run as {user.name} ({user.uid})"
    if user.uid == 0 or user.gid == 0 or 0 in user.groups:
        raise LaunchError(f"{where}, who is root or in its group: map the owner to another account in users.map")
    if user.uid < users.min_uid:
        raise LaunchError(f"{where}, below users.min_uid {users.min_uid} of this node's policy")
    group = group_of(policy)
    return user if group is None else _with_umask(user, GROUP_UMASK)


def _with_umask(user: RunAs, umask: int) -> RunAs:
    return RunAs(
        uid=user.uid, gid=user.gid, groups=user.groups, name=user.name, home=user.home, shell=user.shell, umask=umask
    )


def _exists(account: str) -> bool:
    try:
        pwd.getpwnam(account)
    except (KeyError, ValueError):
        return False
    return True


def _account(name: str) -> RunAs:
    try:
        entry = pwd.getpwnam(name)
    except (KeyError, ValueError):
        raise LaunchError(f"this node's policy names the account {name}, which is not here: create it") from None
    groups = tuple(sorted(set(os.getgrouplist(name, entry.pw_gid))))
    return RunAs(uid=entry.pw_uid, gid=entry.pw_gid, groups=groups, name=name, home=entry.pw_dir, shell=entry.pw_shell)


def _numeric(uid: int) -> RunAs:
    """A user id alone: its group bears the same number, and it is in no other."""
    return RunAs(uid=uid, gid=uid, groups=(uid,), name=str(uid))


def _dynamic_uid(users: Users, owner: str, table: Path) -> int:
    """The owner's id in the table, which agents of one machine may share; a new one is the next."""
    assert users.dynamic is not None, "checked when the file was read"
    first, last = users.dynamic
    try:
        descriptor = os.open(table, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LaunchError(f"the table of user ids {table}: {error.strerror}") from error
    with open(descriptor, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            given: dict[str, int] = json.loads(file.read() or "{}")
        except ValueError as error:
            raise LaunchError(f"the table of user ids {table} cannot be read: {error}") from error
        if owner not in given:
            uid = max(given.values(), default=first - 1) + 1
            if not first <= uid <= last:
                raise LaunchError(f"all user ids of users.dynamic are given out ({table}): give a wider range")
            given[owner] = uid
            file.seek(0)
            file.truncate()
            file.write(json.dumps(given, indent=1))
            file.flush()
            os.fsync(file.fileno())
        return given[owner]
