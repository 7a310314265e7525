"""Exit codes of a rank. 16, 17 and 93 keep the meaning they have elsewhere in the field."""

from enum import IntEnum

from controlplane.protocol.states import EXIT_PEER_LOST


class ExitCode(IntEnum):
    """What the end of a rank says; the agent passes it on, the policy classifies it."""

    DONE = 0
    """All steps are committed."""
    EVICTED = 9
    """No member any more; nothing was written."""
    LEFT = 14
    """Left on order (or on SIGTERM while waiting for others) without saving."""
    SAVED_AND_LEFT = 15
    """Left on SIGTERM or on order at a step boundary; the state is saved, or alive in the replicas that stay."""
    NUMERICS_SUSPECT = 16
    """A result computed here is refused: run the same step on other hardware."""
    VALIDATION_FAILED = 17
    """The same step gave two different refused results here: this device cannot compute."""
    INTERNAL = 70
    """A bug or an injected exception; the traceback is in the log."""
    INNER_PEER_LOST = EXIT_PEER_LOST
    """Another rank of this replica went away first; not the culprit."""
    RESUME_FAILED = 74
    """The checkpoint to resume from is corrupt or cannot be loaded: try the one before."""
    TEMPORARY = 75
    """Could not set up, read the storage of its checkpoint or catch up; a fresh incarnation may."""
    DO_NOT_REQUEUE = 93
    """The job's configuration is wrong; restarting cannot help."""
