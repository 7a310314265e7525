"""Which of many ranks failed first, and which only because of it (root and cascade). Pure.

One rank's error ends its peers: they lose a connection or give a collective up, and say so in
their own tracebacks. The root is the first error that is not of that kind. `recovery.told`
asks; nothing here decides what is done.
"""

import re
from collections.abc import Iterable

import msgspec

MAX_LINE = 300
TRACEBACK = "Traceback (most recent call last)"
_ERROR = re.compile(
    r"^(?:\[[^\]]*\]:?\s*)?(?P<line>(?:[A-Za-z_][\w.]*\.)?[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit|Warning)\b.*"
    r"|Fatal Python error: .*|terminate called .*|.*CUDA error: .*|.*Segmentation fault.*)$"
)
_CASCADE = re.compile(
    r"connection (?:was )?(?:closed|reset|refused|aborted)|closed by peer|broken pipe|ConnectionResetError|BrokenPipe"
    r"|communicator (?:was|is) aborted|collective operation timeout|timed out waiting|wait timeout|socket timeout"
    r"|remote process (?:has )?(?:exited|terminated)|DistBackendError|recvValue failed|peer (?:is )?gone"
    r"|SystemExit|KeyboardInterrupt",
    re.IGNORECASE,
)


class LastWords(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank wrote before it ended. `ended_s`: by the server's clock; `killed`: its end was
    ordered, so its words explain nothing."""

    replica: int
    incarnation: int
    rank: int
    ended_s: float
    text: str
    killed: bool = False


class FirstError(msgspec.Struct, frozen=True, kw_only=True):
    """The rank that failed first. `line`: its error, empty where it left none; `root` False: all
    that is known are errors that follow from another's end; `followed`: ranks that failed because
    of it."""

    words: LastWords
    line: str
    root: bool
    followed: int


def first_error(found: Iterable[LastWords]) -> FirstError | None:
    """None: no rank ended by itself."""
    judged = [(words, error_line(words.text)) for words in found if not words.killed]
    if not judged:
        return None
    words, line = min(judged, key=lambda each: (_order(each[1]), each[0].ended_s, each[0].replica, each[0].rank))
    followed = sum(1 for other, said in judged if other is not words and said and _is_cascade(said))
    return FirstError(words=words, line=line, root=bool(line) and not _is_cascade(line), followed=followed)


def error_line(text: str) -> str:
    """The error at the end of a text: of its last traceback, else its last line that names one."""
    lines = text.splitlines()
    starts = [place for place, line in enumerate(lines) if TRACEBACK in line]
    after = lines[starts[-1] + 1 :] if starts else []
    found = next((m["line"] for line in after if (m := _ERROR.match(line.strip())) and not line.startswith(" ")), "")
    if not found:
        found = next((m["line"] for line in reversed(lines) if (m := _ERROR.match(line.strip()))), "")
    return found.strip()[:MAX_LINE]


def _is_cascade(line: str) -> bool:
    return _CASCADE.search(line) is not None


def _order(line: str) -> int:
    """A root before a silent end, and that before what follows from another's end."""
    if not line:
        return 1
    return 2 if _is_cascade(line) else 0
