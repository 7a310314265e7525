"""Errors of the trainer; each names the exit code its process ends with.

TrainerError                anything that ends this rank
|- EvictedError             9   no member any more; nothing is written
|- LeaveUnsaved             14  SIGTERM while waiting for others, and they did not come
|- ConfigInvalid            93  a fault of the job, not of the node: do not requeue
|  `- DataInvalid           93  its data is absent, damaged, too short or of another vocabulary
|- ResumeFailed             74  the checkpoint is corrupt or cannot be loaded; try the one before
|- StorageAway              75  the checkpoint cannot be read, which says nothing of it; retry helps
|- SetupFailed              75  the inner world or the store could not be reached; retry helps
|- InnerPeerLost            71  another rank of my replica is gone; the replica restarts
|- MembershipViolated       70  a view or install contradicts what this rank holds
|- CatchUpFailed            75  backlog full or snapshot refused; a fresh incarnation helps
|- TooManyAbandoned            75  too many abandoned exchanges; a fresh incarnation helps
|- NumericsSuspect          16  my own result is refused, twice alike; ask other hardware
`- ValidationFailed         17  refused twice and not alike: this device cannot compute
ExchangeAbandoned               internal: the view moved on under an operation
CheckpointFault                 a save or load went wrong; never ends training by itself
"""

from trainer.exits import ExitCode


class TrainerError(RuntimeError):
    """Base. `exit_code` is what the process ends with when nobody handles it."""

    exit_code = ExitCode.INTERNAL


class EvictedError(TrainerError):
    """The newest view does not name this incarnation."""

    exit_code = ExitCode.EVICTED


class LeaveUnsaved(TrainerError):
    """There is no step boundary to leave at."""

    exit_code = ExitCode.LEFT


class ConfigInvalid(TrainerError):
    """The text says which field and how to mend it."""

    exit_code = ExitCode.DO_NOT_REQUEUE


class DataInvalid(ConfigInvalid):
    """The text says which file, what is wrong with it and how to mend it."""


class ResumeFailed(TrainerError):
    """Found before a single step was trained on it."""

    exit_code = ExitCode.RESUME_FAILED


class StorageAway(TrainerError):
    """Nothing can be said of the checkpoint to resume from; it stays what it was."""

    exit_code = ExitCode.TEMPORARY


class SetupFailed(TrainerError):
    """The world could not be built in time."""

    exit_code = ExitCode.TEMPORARY


class InnerPeerLost(TrainerError):
    """A collective inside the replica failed."""

    exit_code = ExitCode.INNER_PEER_LOST


class MembershipViolated(TrainerError):
    """An order that cannot be followed without losing or doubling work."""

    exit_code = ExitCode.INTERNAL


class CatchUpFailed(TrainerError):
    """This incarnation cannot catch up any more."""

    exit_code = ExitCode.TEMPORARY


class TooManyAbandoned(TrainerError):
    """More abandoned operations than memory should hold."""

    exit_code = ExitCode.TEMPORARY


class NumericsSuspect(TrainerError):
    """Not finite, computed here, before any exchange."""

    exit_code = ExitCode.NUMERICS_SUSPECT


class ValidationFailed(TrainerError):
    """The same step gave two different refused results here."""

    exit_code = ExitCode.VALIDATION_FAILED


class ExchangeAbandoned(Exception):
    """A newer view arrived, or a peer's socket closed; the operation is in the graveyard."""


class CheckpointFault(RuntimeError):
    """Reported as `failed`; training goes on."""
