"""How a job's time in an allocation came out: the exit code of the batch script, and its last sentence. Pure."""

from controlplane.cli.exits import Exit
from controlplane.policy.facts import TERMINAL_JOB


def verdict(state: str, *, committed_step: int, checkpoint_step: int | None, reason: str) -> tuple[Exit, str]:
    """For the job as it was when the last agent had left; `Exit.TIMEOUT`: the allocation ended first."""
    if state == "succeeded":
        return Exit.OK, f"The job is done: {committed_step} steps."
    if state in TERMINAL_JOB:
        return Exit.NEGATIVE, f"The job {'has failed' if state == 'failed' else 'was cancelled'}: {reason}"
    if checkpoint_step is None:
        saved = "nothing is saved" if committed_step else "no step was trained"
    else:
        saved = f"the newest checkpoint is of step {checkpoint_step}"
    return Exit.TIMEOUT, f"The allocation ended before the job: {committed_step} steps were trained, {saved}."
