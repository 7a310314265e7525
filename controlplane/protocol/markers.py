"""Lines of a rank's captured log that say something the rank itself does not report.

Matched by the agent, out of the training's threads; told as `LogMarked` and shown on the
job's timeline. They are hints for people: no decision rests on a line of text. The known
markers are those of nvidia-resiliency-ext, Megatron and PyTorch; a job adds its own in
`resiliency.log_markers`.
"""

from collections.abc import Mapping
from types import MappingProxyType

ANY = "*"

# name -> (texts of which a line contains one, in lower case; what it means, for people)
KNOWN: Mapping[str, tuple[tuple[str, ...], str]] = MappingProxyType(
    {
        "out_of_memory": (
            ("cuda out of memory", "outofmemoryerror", "std::bad_alloc", "cannot allocate memory"),
            "out of memory",
        ),
        "collective_timeout": (
            ("watchdog caught collective operation timeout", "timed out waiting for all ranks"),
            "collective timeout",
        ),
        "cuda_error": (("cuda error", "cublas_status_", "cudnn_status_"), "CUDA error"),
        "nccl_error": (("nccl error", "ncclsystemerror", "ncclunhandledcudaerror"), "NCCL error"),
        "fault_tolerance": (("[faulttolerance]",), "fault tolerance"),
        "rank_monitor": (("[rankmonitorserver",), "rank monitor"),
        "async_save": (
            ("scheduling async checkpoint save", "scheduled an async checkpoint save"),
            "asynchronous save",
        ),
        "straggler_report": (("gpu relative performance", "gpu individual performance"), "straggler report"),
    }
)

MAX_OWN = 16
MIN_TEXT, MAX_TEXT = 3, 200


def meaning(marker: str) -> str:
    """What a marker says, for people; a job's own is called by its name."""
    return KNOWN[marker][1] if marker in KNOWN else marker


def marker_of(line: str, own: Mapping[str, str]) -> str | None:
    """The first marker in the line, the job's own before the known ones; None: there is none."""
    for name, pattern in own.items():
        if contains(line, pattern):
            return name
    lowered = line.lower()
    return next((name for name, (texts, _) in KNOWN.items() if any(text in lowered for text in texts)), None)


def may_hold_any(text: str, own: Mapping[str, str]) -> bool:
    """False: no line of `text` has a marker. Cheaper than asking each line."""
    lowered = text.lower()
    if any(needle in lowered for texts, _ in KNOWN.values() for needle in texts):
        return True
    return any(contains(text, pattern) for pattern in own.values())


def contains(line: str, pattern: str) -> bool:
    """The pattern's parts between `*` stand in the line one after the other. In time linear in
    the line, whatever the pattern: it is not a regular expression."""
    at = 0
    for part in pattern.split(ANY):
        found = line.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return True


def fault_of(name: str, pattern: str) -> str | None:
    """Why a job's own marker cannot be used; None: it can."""
    if name in KNOWN:
        return f"{name!r} is a known marker"
    texts = [part.strip() for part in pattern.split(ANY)]
    if max(map(len, texts)) < MIN_TEXT or len(pattern) > MAX_TEXT:
        return f"the pattern needs {MIN_TEXT} characters in a row, and at most {MAX_TEXT} in all"
    return None
