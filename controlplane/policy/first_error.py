"""Which of many ranks failed first, and which only because of it (root and cascade). Pure.

One rank's error ends its peers: they lose a connection or give a collective up, and say so in
their own tracebacks. The root is the first error that is not of that kind, or the death by a signal,
without a word, that came before it. `recovery.incident_evidence` asks; nothing here decides what is done.
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
    r"|SystemExit|KeyboardInterrupt"
    # gloo: a pair, the first mesh, the barrier that names who is missing.
    r"|timeout caused pair closure|connectFullMesh failed|monitoredBarrier"
    # TCPStore's client; its server's failure to listen is a root.
    r"|DistNetworkError: .*(?:to connect|failed to (?:recv|send))|client socket has (?:failed|timed out)"
    # NCCL: ncclSystemError and ncclRemoteError, which it gives when a peer's socket goes.
    r"|unhandled system error|remote process exited or there was a network error"
    r"|Errno 107\b|endpoint is not connected",
    re.IGNORECASE,
)
# An end of file is another's end on a connection between ranks; in a data loader it is an error by itself.
_END_OF_FILE = re.compile(r"(?:[\w.]+\.)?EOFError\b")
_ON_A_CONNECTION = re.compile(r"multiprocessing[/.](?:connection|managers)|torch[/.]distributed|distributed_c10d")
_OF_DATA = re.compile(r"torch[/.]utils[/.]data|data_?loader|pin_memory", re.IGNORECASE)


class LastWords(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank wrote before it ended. `ended_s`: by the server's clock; `killed`: its end was
    ordered, so its words explain nothing; `signal`: what ended it, None where it exited."""

    replica: int
    incarnation: int
    rank: int
    ended_s: float
    text: str
    killed: bool = False
    signal: int | None = None


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
    words, line = min(judged, key=lambda each: (_order(*each), each[0].ended_s, each[0].replica, each[0].rank))
    followed = sum(1 for other, said in judged if other is not words and said and _is_cascade(said, other.text))
    root = bool(line) and not _is_cascade(line, words.text)
    return FirstError(words=words, line=line, root=root, followed=followed)


def error_line(text: str) -> str:
    """The error at the end of a text: of its last traceback, else its last line that names one."""
    lines = text.splitlines()
    starts = [place for place, line in enumerate(lines) if TRACEBACK in line]
    after = lines[starts[-1] + 1 :] if starts else []
    found = next((m["line"] for line in after if (m := _ERROR.match(line.strip())) and not line.startswith(" ")), "")
    if not found:
        found = next((m["line"] for line in reversed(lines) if (m := _ERROR.match(line.strip()))), "")
    return found.strip()[:MAX_LINE]


def _is_cascade(line: str, text: str) -> bool:
    if _END_OF_FILE.match(line):
        last = text[text.rfind(TRACEBACK) :] if TRACEBACK in text else text
        return _ON_A_CONNECTION.search(last) is not None and _OF_DATA.search(last) is None
    return _CASCADE.search(line) is not None


def _order(words: LastWords, line: str) -> int:
    """A root and a silent death by a signal, whichever came first; then an exit without a word, and that
    before what follows from another's end."""
    if not line:
        return 1 if words.signal is None else 0
    return 2 if _is_cascade(line, words.text) else 0
