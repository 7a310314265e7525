"""Reads this node's policy file (`--policy-file`), at the start and again on SIGHUP.

The file belongs to root or to the agent's own user, and nobody else may write it: the server
cannot change it, nor a job. In an allocation the user who lends it narrows it further: ranks run as he
does there, so `--owners` says whose jobs may. Called by `agents.main` and the runtime; never writes anything.
"""

import os
import stat
import tomllib
from pathlib import Path

import msgspec

from agents.config import ALLOCATION, ANYONE, Config
from agents.core.policy import NodeRules, Policy, PolicyInvalid, parse
from agents.errors import ConfigError
from agents.ranks.users import separates

MAX_BYTES = 256 * 1024


def rules_of(config: Config) -> NodeRules:
    """What the policy file of these settings allows, and of an allocation who lends it. Raises ConfigError."""
    own = tuple(dict.fromkeys(map(str, (config.state_dir, config.identity_dir, config.jobs_dir))))
    policy = read_policy(config.policy_file)
    if config.tenancy == ALLOCATION and not separates() and ANYONE not in config.owners:
        policy = _of_owners(policy, config.owners)
    return NodeRules(policy=policy, own_places=own)


def _of_owners(policy: Policy, owners: tuple[str, ...]) -> Policy:
    """Jobs of these alone, of those whom the file allows. Raises ConfigError."""
    if not owners:
        raise ConfigError(
            "--tenancy allocation runs ranks as this user, with all that he can read: --owners names the accounts whose"
            " jobs may, or * for all"
        )
    allowed = policy.users.allowed
    both = tuple(owner for owner in owners if allowed is None or owner in allowed)
    return msgspec.structs.replace(policy, users=msgspec.structs.replace(policy.users, allowed=both))


def read_policy(path: Path) -> Policy:
    """The rules of the file, or the safe defaults where there is no file. Raises ConfigError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return Policy()
    except OSError as error:
        raise ConfigError(f"--policy-file {path}: {error.strerror}") from error
    try:
        _check(path, os.fstat(descriptor))
        text = os.read(descriptor, MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(text) > MAX_BYTES:
        raise ConfigError(f"--policy-file {path} is longer than {MAX_BYTES} bytes")
    try:
        return parse(tomllib.loads(text.decode()))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, PolicyInvalid) as error:
        raise ConfigError(f"--policy-file {path}: {error}") from error


def _check(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"--policy-file {path} is no file")
    if found.st_uid not in (0, os.geteuid()):
        raise ConfigError(f"--policy-file {path} belongs to user {found.st_uid}: chown it to root")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(f"--policy-file {path} can be written by others: chmod go-w it")
