"""Which checkpoint may be resumed from: the trust ladder (U7)."""

from controlplane.policy.snapshot import CheckpointFact
from controlplane.protocol.states import CheckpointState

TRUSTED = frozenset(
    {
        CheckpointState.COMPLETE,
        CheckpointState.VERIFIED,
        CheckpointState.RESTORE_TESTED,
        CheckpointState.REPLICATED,
    }
)


def newest_trusted(checkpoints: tuple[CheckpointFact, ...]) -> CheckpointFact | None:
    """The trusted one with the highest step (the newer epoch on a tie); None: start from 0."""
    trusted = [fact for fact in checkpoints if fact.state in TRUSTED]
    return max(trusted, key=lambda fact: (fact.step, fact.epoch, fact.id), default=None)


def skipped_corrupt(checkpoints: tuple[CheckpointFact, ...]) -> tuple[CheckpointFact, ...]:
    """Corrupt ones that are newer than what is resumed from: worth telling people."""
    chosen = newest_trusted(checkpoints)
    floor = chosen.step if chosen else -1
    corrupt = [fact for fact in checkpoints if fact.state is CheckpointState.CORRUPT and fact.step > floor]
    return tuple(sorted(corrupt, key=lambda fact: (fact.step, fact.id)))
