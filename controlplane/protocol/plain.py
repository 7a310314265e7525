"""Which texts and numbers may come in, and how a text that did may be shown on a terminal.

`first_fault` is asked at each door of the server (REST edge, enrolment, spec text): what it
refuses no database can keep and no encoder can write. `shown` is asked by whoever prints text
of a node, a job or a person: the command line, the management commands, the logs. Pure; never
changes what is stored: a reader of the API gets the text as it came.
"""

import re
import unicodedata
from collections.abc import Iterable

MAX_DEPTH = 64
MAX_VALUES = 200_000
INT_MIN, INT_MAX = -(2**63), 2**63 - 1
# Marks that turn the direction of what follows, or are not seen: they make a text read as another.
_INVISIBLE = frozenset("\u061c\u115f\u1160\u17b4\u17b5\u180e\u2028\u2029\u3164\ufeff\uffa0")
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_LAYOUT = frozenset("\n\t")
# Every secret that Holdfast makes begins so; see `access.tokens.new_secret`. A join token's id is no secret
# and stays, so that it can be revoked; `(?!` keeps a masked one from being masked again, id and all. (`?+` would,
# but takes half an id with it in Python before 3.11.4.)
_ID = "jt_[0-9A-HJKMNP-TV-Z]{26}_"
_SECRET = re.compile(rf"\b((?:holdfast_[a-z]+_(?:{_ID}|(?!{_ID}))|otp_))[A-Za-z0-9_-]{{20,}}")
MASKED = "[masked]"


def text_fault(text: str) -> str | None:
    """Why no row can hold `text`: it has a NUL or half of a surrogate pair. None if it has neither."""
    if "\x00" in text:
        return "it has a NUL character"
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        return "it has half of a surrogate pair, which is no character"
    return None


def first_fault(value: object) -> tuple[str, str] | None:
    """(JSON Pointer, what is wrong) of the first part of a decoded document that no door lets
    in: a text or key with `text_fault`, a whole number beyond 64 bits, nesting deeper than
    MAX_DEPTH, more than MAX_VALUES values. None for a document that is fit. Uses no recursion."""
    todo: list[tuple[str, int, object]] = [("", 0, value)]
    seen = 0
    while todo:
        pointer, depth, part = todo.pop()
        seen += 1
        if seen > MAX_VALUES:
            return pointer, f"more than {MAX_VALUES} values"
        if isinstance(part, str):
            fault = text_fault(part)
            if fault:
                return pointer, fault
        elif isinstance(part, int) and not INT_MIN <= part <= INT_MAX:
            return pointer, "a whole number beyond 64 bits"
        elif isinstance(part, dict | list | tuple):
            if depth >= MAX_DEPTH:
                return pointer, f"nested deeper than {MAX_DEPTH} levels"
            faulty = _key_fault(part) if isinstance(part, dict) else None
            if faulty:
                return pointer, faulty
            todo.extend((f"{pointer}/{name}", depth + 1, item) for name, item in _children(part))
    return None


def _key_fault(mapping: dict[object, object]) -> str | None:
    for key in mapping:
        fault = text_fault(key) if isinstance(key, str) else None
        if fault:
            return f"a key is not usable: {fault}"
    return None


def _children(part: dict[object, object] | list[object] | tuple[object, ...]) -> Iterable[tuple[str, object]]:
    """In reverse, since the last one put on a stack is the first one taken."""
    pairs = list(part.items()) if isinstance(part, dict) else list(enumerate(part))
    return ((_token(name), item) for name, item in reversed(pairs))


def _token(name: object) -> str:
    return str(name)[:64].replace("~", "~0").replace("/", "~1")


def shown(text: str, *, layout: bool = True) -> str:
    r"""`text` with every character that a terminal would obey, hide or turn written as \xNN or
    \uNNNN: control characters (ESC and DEL among them), marks of direction, characters of no
    width, halves of surrogate pairs, characters without a meaning. A backslash stays as it is.
    `layout`: line breaks and tabs stay; without it (one line, one cell) they are written too."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_shown_character(character, layout) for character in text)


def without_secrets(text: str) -> str:
    """`text` with every credential of Holdfast's own making masked, which people paste into reasons
    and programs into messages; what kind it was stays, and of a join token which one."""
    return _SECRET.sub(rf"\1{MASKED}", text)


def _shown_character(character: str, layout: bool) -> str:
    if character in _LAYOUT:
        return character if layout else {"\n": "\\n", "\t": "\\t"}[character]
    if unicodedata.category(character) not in _HIDDEN_CATEGORIES and character not in _INVISIBLE:
        return character
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
