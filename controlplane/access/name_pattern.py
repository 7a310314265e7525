"""Patterns of node names for join tokens: `gpu-a1-*`. Pure; called by `access.join_tokens`.

`*` stands for any characters or none, `?` for exactly one, all else for itself. Never a regular
expression: a name is read once, whatever the pattern is, so nobody can make a match slow.
"""

import re

MAX_CHARS = 100
FIX = f"a-z, 0-9, '-' and '.', with * for any characters and ? for one; at most {MAX_CHARS}"
_PATTERN = re.compile(rf"^[a-z0-9.*?-]{{1,{MAX_CHARS}}}\Z")


def fault_of(pattern: str) -> str:
    """Why a token cannot be bound to `pattern`; "" if it can."""
    if not _PATTERN.match(pattern):
        return "no pattern of node names"
    if not re.search(r"[*?]", pattern):
        return "it has no * and no ?: give it as the name"
    if not re.search(r"[a-z0-9]", pattern):
        return "it fits every name: it needs a letter or a digit"
    return ""


def matches(pattern: str, name: str) -> bool:
    """True if all of `name` fits all of `pattern`. Bit i of `reached` says that the first i plain
    characters of the pattern fit what was read of the name."""
    stars, one_of_any, exact, plain = 0, 0, dict[str, int](), 0
    for character in pattern:
        if character == "*":
            stars |= 1 << plain
            continue
        if character == "?":
            one_of_any |= 1 << plain
        else:
            exact[character] = exact.get(character, 0) | 1 << plain
        plain += 1
    reached = 1
    for character in name:
        goes_on = reached & (one_of_any | exact.get(character, 0))
        reached = (reached & stars) | goes_on << 1
    return bool(reached >> plain & 1)
