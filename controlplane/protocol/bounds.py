"""The range of every number and the length and characters of every text that travels.

Theory of operation. Each field of a message has one of these types, so that a range is
stated once and the decoders refuse what is outside of it where it enters: at the rank's
socket, at the agent's frame, at an enrolment. What passes can be stored: integers fit the
columns that they end in (`Index` 32 bits, the others well within 64), floats are finite, no
text holds U+0000 (PostgreSQL has no such character) or half a surrogate pair, and none is
longer than its column. Long texts are cut and cleaned by whoever composes them (`fitted`);
everything else outside of its range is refused, counted and reported, never bent into it.

Imported by the message modules alone, and by senders for `fitted`. It never decodes.
"""

import re
from collections.abc import Iterable
from types import MappingProxyType
from typing import Annotated, Any, Literal

from msgspec import Meta

MAX_INT = (1 << 53) - 1
"""Beyond it JSON readers disagree on the value (RFC 8259, 6)."""
MAX_INDEX = (1 << 31) - 1
MAX_SECONDS = 1e9
MAX_REPORTED_S = 1e8
MAX_FLOAT = 1e300

MAX_DEVICES = 256
MAX_RANKS_PER_NODE = 512
MAX_NODE_CHECKS = 64
MAX_MEMBERS = 16_384
MAX_MICRO_BATCHES = 8_192
MAX_SHARDS = 4_096
MAX_HOLDERS = 64
MAX_ENTRIES = 1_024
MAX_ARGUMENTS = 1_024
MAX_GROUPS = 1_024
MAX_OPERATIONS = 4_096
MAX_DIMENSIONS = 64

MAX_PATH_CHARS = 640
"""In UTF-8 at most 2560 bytes: what an index of PostgreSQL takes (a third of a page)."""
MAX_DETAIL_CHARS = 4_000
MAX_ERROR_CHARS = 16_000
MAX_LOOK_CHARS = 32_000
MAX_QUOTED_CHARS = 300
MAX_COMMAND_TEXT_CHARS = 65_536

_STORABLE = r"\A[^\x00\ud800-\udfff]*\Z"
_PRINTABLE = r"\A[^\x00-\x1f\x7f\ud800-\udfff]*\Z"
_WORD = r"\A[A-Za-z0-9_.:@+-]*\Z"
_BASE64URL = r"\A[A-Za-z0-9_-]*\Z"
_HOST = r"\A[a-z0-9_.:-]*\Z"
_SHA256 = r"\A(?:[0-9a-f]{64})?\Z"
CHARACTERS = MappingProxyType(
    {
        _STORABLE: "lines without U+0000",
        _PRINTABLE: "one line",
        _WORD: "letters, digits and `_.:@+-`",
        _BASE64URL: "base64url",
        _HOST: "small letters, digits and `_.:-`",
        _SHA256: "64 hexadecimal digits, or none",
    },
)
"""In words, for docs/protocol.md."""
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")

# --- numbers -----------------------------------------------------------------------

Count = Annotated[int, Meta(ge=0, le=MAX_INT)]
"""How many, how many bytes, which step, which epoch, which sequence number."""
Step = Count
Epoch = Count
Bytes = Count
Index = Annotated[int, Meta(ge=0, le=MAX_INDEX)]
"""Which attempt, replica, incarnation, rank: an IntegerField."""
IndexOrAll = Annotated[int, Meta(ge=-1, le=MAX_INDEX)]
"""-1: all of them, or none."""
DeviceIndex = Annotated[int, Meta(ge=0, le=MAX_DEVICES - 1)]
Repeats = Annotated[int, Meta(ge=1, le=100_000_000)]
"""How often since it was last told: within a minute or so."""
Pid = Annotated[int, Meta(ge=0, le=1 << 22)]
"""Linux gives no larger one (proc(5), pid_max)."""
Ticks = Annotated[int, Meta(ge=0, le=MAX_INT)]
"""Field 22 of /proc/<pid>/stat; compared, never stored."""
ExitCode = Annotated[int, Meta(ge=-255, le=255)]
SignalNumber = Annotated[int, Meta(ge=0, le=127)]
Xid = Annotated[int, Meta(ge=0, le=1_000_000)]
Seconds = Annotated[float, Meta(ge=0.0, le=MAX_SECONDS)]
"""Three decades; an age or a duration."""
MAX_NOTICE_S = 7 * 86_400.0
"""No provider gives notice of more; what says so is no notice."""
NoticeSeconds = Annotated[float, Meta(ge=0.0, le=MAX_NOTICE_S)]
UnixSeconds = Annotated[float, Meta(ge=0.0, le=1e11)]
"""A moment by the server's clock, since 1970."""
Reported = Annotated[float, Meta(ge=0.0, le=MAX_REPORTED_S)]
"""What a rank says of its own times; what its agent adds to it is still within `Seconds`."""
Number = Annotated[float, Meta(ge=-MAX_FLOAT, le=MAX_FLOAT)]
"""Finite."""
Magnitude = Annotated[float, Meta(ge=0.0, le=MAX_FLOAT)]
Ratio = Annotated[float, Meta(ge=0.0, le=1.0)]
Spread = Annotated[float, Meta(ge=0.0, le=1e6)]
Cores = Annotated[float, Meta(ge=0.0, le=1e5)]
Celsius = Annotated[float, Meta(ge=-273.15, le=1e4)]
Watts = Annotated[float, Meta(ge=0.0, le=1e6)]
Megahertz = Annotated[float, Meta(ge=0.0, le=1e6)]

# --- texts -------------------------------------------------------------------------

Id = Annotated[str, Meta(min_length=1, max_length=64, pattern=_WORD)]
"""Of a job, a command, a node, a journal."""
IdOrNone = Annotated[str, Meta(max_length=64, pattern=_WORD)]
"""Empty: none."""
Word = Annotated[str, Meta(max_length=24, pattern=_WORD)]
"""A name out of a closed set: a kind, a look, a check."""
JobEnd = Literal["", "succeeded", "failed", "cancelled"]
Label = Annotated[str, Meta(max_length=80, pattern=_PRINTABLE)]
"""A name given by a driver or an operator: one line."""
HostOrNone = Annotated[str, Meta(max_length=100, pattern=_WORD)]
NodeName = Annotated[str, Meta(min_length=1, max_length=100, pattern=_WORD)]
DriverName = Annotated[str, Meta(max_length=16, pattern=_WORD)]
Version = Annotated[str, Meta(max_length=40, pattern=_PRINTABLE)]
Segment = Annotated[str, Meta(max_length=63, pattern=_WORD)]
Digest = Annotated[str, Meta(max_length=128, pattern=_WORD)]
Marker = Annotated[str, Meta(max_length=300, pattern=_PRINTABLE)]
Path = Annotated[str, Meta(max_length=MAX_PATH_CHARS, pattern=_PRINTABLE)]
Line = Annotated[str, Meta(max_length=1_000, pattern=_STORABLE)]
Reason = Annotated[str, Meta(min_length=1, max_length=200, pattern=_STORABLE)]
Detail = Annotated[str, Meta(max_length=MAX_DETAIL_CHARS, pattern=_STORABLE)]
ErrorText = Annotated[str, Meta(max_length=MAX_ERROR_CHARS, pattern=_STORABLE)]
LookText = Annotated[str, Meta(max_length=MAX_LOOK_CHARS, pattern=_STORABLE)]
CommandText = Annotated[str, Meta(max_length=MAX_COMMAND_TEXT_CHARS, pattern=_STORABLE)]
"""What the control plane composes from a job's spec, whose own ranges are in `spec_limits`."""

KeyId = Annotated[str, Meta(max_length=16, pattern=_WORD)]
PublicKey = Annotated[str, Meta(min_length=43, max_length=43, pattern=_BASE64URL)]
SignatureText = Annotated[str, Meta(max_length=86, pattern=_BASE64URL)]
"""Base64url of an Ed25519 key or signature; empty: none."""
DialledHost = Annotated[str, Meta(max_length=253, pattern=_HOST)]
Fingerprint = Annotated[str, Meta(max_length=64, pattern=_SHA256)]
"""SHA-256 of a TLS certificate in DER; empty: none was seen."""
SignatureBytes = Annotated[bytes, Meta(max_length=64)]
StatementBytes = Annotated[bytes, Meta(max_length=2 << 20)]

# --- several -----------------------------------------------------------------------

MicroBatches = Annotated[tuple[Index, ...], Meta(max_length=MAX_MICRO_BATCHES)]
Replicas = Annotated[tuple[Index, ...], Meta(max_length=MAX_MEMBERS)]
Environment = Annotated[dict[CommandText, CommandText], Meta(max_length=MAX_ENTRIES)]
Shapes = Annotated[
    tuple[Annotated[tuple[Count, ...], Meta(max_length=MAX_DIMENSIONS)], ...], Meta(max_length=MAX_ENTRIES)
]
ServerKeys = Annotated[tuple[PublicKey, ...], Meta(max_length=4)]
Names = Annotated[tuple[Label, ...], Meta(max_length=MAX_ENTRIES)]
Scalars = Annotated[
    dict[Word, bool | Annotated[int, Meta(ge=-MAX_INT, le=MAX_INT)] | Number | Line], Meta(max_length=16)
]
"""Fields of a struct that only its two ends know."""
SaveName = Annotated[str, Meta(min_length=1, max_length=64, pattern=_WORD)]
Saves = Annotated[tuple[tuple[Epoch, Step], ...], Meta(max_length=4)]
"""Of checkpoints that are kept beyond their time: few, each is a whole state on a disk."""
Holders = Annotated[tuple[Annotated[tuple[Id, ...], Meta(max_length=MAX_HOLDERS)], ...], Meta(max_length=MAX_SHARDS)]
ThrottleReasons = Annotated[tuple[Word, ...], Meta(max_length=32)]


def fitted(text: str, max_chars: int) -> str:
    """The first `max_chars` of a text from outside, as it may travel: what no column takes
    becomes U+FFFD."""
    return _UNSTORABLE.sub("\ufffd", text[:max_chars])


def fitted_tail(text: str, max_chars: int) -> str:
    """The same of its last `max_chars`."""
    return _UNSTORABLE.sub("\ufffd", text[-max_chars:])


def quoted(error: Exception) -> str:
    """The words of a decoder, which may quote what came, in a form that can be stored."""
    text = str(error)
    for pattern, words in CHARACTERS.items():
        text = text.replace(f"matching regex {pattern!r}", f"of {words}")
    return fitted(text, MAX_QUOTED_CHARS)


def unstorable(value: Any) -> str | None:
    """Why something made of dicts, lists, texts and numbers cannot be stored; None: it can. For
    what has no bounds in its type: a job's spec that travels inside a command."""
    match value:
        case str():
            return "a text holds U+0000 or half a surrogate pair" if _UNSTORABLE.search(value) else None
        case bool() | None:
            return None
        case int() | float():
            return None if -MAX_FLOAT <= value <= MAX_FLOAT and _is_whole_enough(value) else f"{value!r} is no number"
        case dict():
            return _first(unstorable(part) for pair in value.items() for part in pair)
        case list() | tuple():
            return _first(map(unstorable, value))
        case _:
            return f"a {type(value).__name__} does not travel"


def _is_whole_enough(value: float) -> bool:
    return isinstance(value, float) or -MAX_INT <= value <= MAX_INT


def _first(faults: Iterable[str | None]) -> str | None:
    return next((fault for fault in faults if fault is not None), None)
