"""Sight of few files, where no mount namespace is to be had: Landlock (Linux 5.13), which
needs no rights. Called by the launcher in the process that becomes the program."""

import ctypes
import os
import struct
from collections.abc import Iterable

from controlplane.runtime.sandbox import linux

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION_FLAG, PATH_BENEATH = 1, 1
# linux/landlock.h: execute, read a file, read a directory; the rest changes something.
READ = 1 << 0 | 1 << 2 | 1 << 3
OF_FILES = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14
"""Rights that a rule for a file may name: to execute, write, read, truncate it."""
EVERYTHING = {1: (1 << 13) - 1, 2: (1 << 14) - 1}
EVERYTHING_SINCE_3 = (1 << 15) - 1
SCOPED_SINCE = 6
SCOPES = 1 << 0 | 1 << 1
"""No abstract unix socket and no signal beyond the sandbox."""


def confine(*, read: Iterable[str], write: Iterable[str]) -> None:
    """This thread and all that it starts see what lies at and below these paths, and no other
    file. Raises OSError where the kernel has no Landlock, or it is off."""
    version = linux.call(CREATE_RULESET, 0, 0, VERSION_FLAG)
    handled = EVERYTHING.get(version, EVERYTHING_SINCE_3)
    attributes = struct.pack("<QQQ", handled, 0, SCOPES if version >= SCOPED_SINCE else 0)
    size = 24 if version >= SCOPED_SINCE else 8
    ruleset = linux.call(CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    try:
        for path in read:
            _allow(ruleset, path, READ)
        for path in write:
            _allow(ruleset, path, handled)
        linux.call(RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not os.path.isdir(path):
            rights &= OF_FILES
        linux.call(ADD_RULE, ruleset, PATH_BENEATH, struct.pack("<Qi", rights, descriptor), 0)
    finally:
        os.close(descriptor)
