"""Works out beforehand what msgspec works out when a struct type is first decoded.

msgspec (0.22) puts a struct's description into its class before it has filled it in, and runs Python code
in between: when two threads decode the same type for the first time at once, the second reads a null
pointer, and the process ends by SIGSEGV (seen in a joiner whose fetch threads read the same index).
Called once by each process that decodes in several threads, before it starts them: web, sentinel,
agent, ranks. A Celery worker decodes in one.
"""

import contextlib

import msgspec


def prepare() -> int:
    """Every struct type that is defined by now; how many. Types that stand for others alone (generic,
    abstract) have no description of their own and are passed over."""
    prepared, waiting = set[type[msgspec.Struct]](), [msgspec.Struct]
    while waiting:
        for kind in waiting.pop().__subclasses__():
            if kind not in prepared:
                prepared.add(kind)
                waiting.append(kind)
                with contextlib.suppress(TypeError, NameError):
                    msgspec.json.Decoder(kind)
    return len(prepared)
