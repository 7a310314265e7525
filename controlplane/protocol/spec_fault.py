"""One thing wrong in a job spec. A module of its own, so that checks need no other."""

import msgspec


class Fault(msgspec.Struct, frozen=True):
    """One thing wrong: where (JSON Pointer), what, and how to mend it."""

    pointer: str
    message: str
    fix: str
