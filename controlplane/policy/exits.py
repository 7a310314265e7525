"""What the end of a rank means: its exit code or signal, in words and as a cause.

The codes are the trainer's (`trainer.exits`) and the field's: 16, 17, 93, 201, 202 and 247
(S1.10) keep the meaning they have elsewhere. A negative code is the signal that ended the
process; 128 + n is how a shell or another launcher tells that its child ended by signal n.
"""

from collections.abc import Iterable

import msgspec

from controlplane.policy.snapshot import SignalFact
from controlplane.protocol.states import EXIT_PEER_LOST

EXIT_DISAMBIGUATE = 16
EXIT_FAILED_VALIDATION = 17
EXIT_RESUME_FAILED = 74
EXIT_DO_NOT_REQUEUE = 93
SHELL_SIGNALS, LAST_SIGNAL = 128, 64
UNOBSERVED = "unobserved"


class Ending(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`cause` is stable and for machines, `words` complete "rank 1 ended with code 70: ..."."""

    cause: str
    words: str


ENDINGS: dict[int, Ending] = {
    0: Ending("left", "it left before the training was over"),
    9: Ending("evicted", "it was evicted: it is no longer a member"),
    14: Ending("left", "it left on request, without saving"),
    15: Ending("left", "it left on request"),
    EXIT_DISAMBIGUATE: Ending("numerics", "a gradient computed there is not finite; the step is run elsewhere"),
    EXIT_FAILED_VALIDATION: Ending("failed_validation", "its results failed validation on a second run"),
    70: Ending("exception", "an exception ended it; the traceback is in its log"),
    EXIT_PEER_LOST: Ending("peer_lost", "it lost another rank of its replica and is not the culprit"),
    EXIT_RESUME_FAILED: Ending("resume_failed", "the checkpoint to resume from could not be loaded"),
    75: Ending("temporary", "it could not set up, read its checkpoint's storage or catch up; a fresh start may"),
    EXIT_DO_NOT_REQUEUE: Ending("do_not_requeue", "the job's configuration is wrong and a restart cannot help"),
    201: Ending("gpu_driver", "its launcher met an error of the GPU driver"),
    202: Ending("pod_residue", "its launcher found what an earlier pod had left on the device"),
    247: Ending("out_of_memory", "OOM-killed: the node or its container ran out of memory"),
    -4: Ending("illegal_instruction", "SIGILL: an illegal instruction in native code"),
    -6: Ending("abort", "SIGABRT: its ranks disagree on a collective's size or type, or native code gave up"),
    -7: Ending("bus_error", "SIGBUS: a bus error, often shared memory that ran full"),
    -8: Ending("arithmetic", "SIGFPE: an arithmetic fault in native code"),
    -9: Ending("killed", "SIGKILL: killed from outside, by a person or the OOM killer"),
    -11: Ending("segfault", "SIGSEGV: a segmentation fault in native code"),
    -15: Ending("terminated", "SIGTERM: ended from outside"),
}
_UNKNOWN = Ending("unknown", "the code has no meaning known here")
_UNKNOWN_SIGNAL = Ending("signal", "a signal ended it")


def normal(code: int) -> int:
    """A signal told as 128 more than its number is its negative; any other code is itself."""
    return SHELL_SIGNALS - code if SHELL_SIGNALS < code <= SHELL_SIGNALS + LAST_SIGNAL else code


def ending(code: int) -> Ending:
    """Of an exit code, or of a signal as its negative or as 128 more than its number."""
    code = normal(code)
    return ENDINGS.get(code, _UNKNOWN_SIGNAL if code < 0 else _UNKNOWN)


def explain(code: int) -> str:
    """`ended with code 70: ...` or `ended by signal 11: ...`."""
    how = f"by signal {-code}" if code < 0 else f"with code {code}"
    return f"ended {how}: {ending(code).words}"


def code_of(signal: SignalFact) -> int | None:
    """Exit code, or signal as its negative; None: nobody saw the end."""
    return int(signal.value) if signal.evidence.get("told", True) else None


def cause_of(signal: SignalFact) -> str:
    """For machines: what the node knows of the end, else what its code means."""
    known, code = signal.evidence.get("cause"), code_of(signal)
    if isinstance(known, str) and known:
        return known
    return UNOBSERVED if code is None else ending(code).cause


def told(signal: SignalFact) -> str:
    """`ended with code 70: ...`, and what the node knows beyond that; or that nobody saw it, and the
    strongest hypothesis."""
    hint, code = signal.evidence.get("hint"), code_of(signal)
    if code is None:
        return f"ended unseen: {hint or 'exit not observed'}"
    return f"{explain(code)}; {hint}" if hint else explain(code)


def culprit(exits: Iterable[SignalFact]) -> SignalFact | None:
    """The exit that explains the others: one that says why before any other, and one that
    merely lost a peer last; among equals the first."""
    return min(exits, key=lambda s: (_depth(code_of(s)), s.seen_s, s.id), default=None)


def _depth(code: int | None) -> int:
    if code in (EXIT_DISAMBIGUATE, EXIT_FAILED_VALIDATION, EXIT_DO_NOT_REQUEUE):
        return 0
    return 2 if code == EXIT_PEER_LOST else 1
