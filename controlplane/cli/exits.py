"""Exit codes: part of the interface, documented in `holdfast --help`."""

from enum import IntEnum


class Exit(IntEnum):
    """Each has one meaning; scripts may rely on them."""

    OK = 0
    NEGATIVE = 1
    USAGE = 2
    NOT_FOUND = 3
    AUTH = 4
    CONFLICT = 5
    TIMEOUT = 6
    UNAVAILABLE = 7
    INTERRUPTED = 130


MEANINGS = {
    Exit.OK: "done",
    Exit.NEGATIVE: "the job failed or was cancelled, or the answer is no",
    Exit.USAGE: "wrong usage, or the spec or request is not valid",
    Exit.NOT_FOUND: "no such object",
    Exit.AUTH: "not signed in, or not allowed",
    Exit.CONFLICT: "the present state does not allow it",
    Exit.TIMEOUT: "it did not end within --timeout",
    Exit.UNAVAILABLE: "the server cannot be reached or does not answer, after retries",
    Exit.INTERRUPTED: "interrupted with Ctrl-C; nothing was cancelled",
}


class CliError(Exception):
    """Ends the command: what is wrong, how to mend it, and the exit code."""

    def __init__(self, message: str, *, fix: str = "", code: Exit = Exit.USAGE) -> None:
        super().__init__(message)
        self.fix = fix
        self.code = code
