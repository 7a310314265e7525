"""One sentence on why a job is in its state and what is expected next. Pure."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from controlplane.protocol.states import JobState

EXPECTED: Mapping[str, str] = MappingProxyType(
    {
        JobState.PENDING: "It starts when it is its turn and enough healthy devices are free.",
        JobState.STARTING: "It trains once every rank has joined and the first view is installed.",
        JobState.RUNNING: "It continues until its last step.",
        JobState.RECOVERING: "Training resumes at the interrupted step. No action needed.",
        JobState.PREEMPTED: "It continues from its newest checkpoint when it is its turn and there is room.",
        JobState.RESUMING: "It trains on once every rank has loaded its checkpoint and joined.",
        JobState.SUCCEEDED: "Nothing more is expected.",
        JobState.FAILED: "Nothing more happens by itself: read the last decision, then submit again.",
        JobState.CANCELLED: "Nothing more is expected.",
    }
)
UNDER_WAY = frozenset({JobState.RUNNING, JobState.RECOVERING})
ENDED = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})


def why(state: str, reason: str, *, cancel_requested: bool, held: str = "", unheard: Sequence[str] = ()) -> str:
    """`reason`: the last transition's, may be empty. `held`: the sentence of a decision that does nothing
    until something ends or a person acts. `unheard`: a sentence for each of its nodes that is not heard."""
    if cancel_requested and state not in ENDED:
        expected = "Its cancellation was asked for; its ranks are being stopped."
    elif held and state in UNDER_WAY:
        expected = held
    else:
        expected = EXPECTED[JobState(state)]
    # What the last transition said of a job that trains is not so while all of it is held up.
    because = "" if expected == held and state == JobState.RUNNING else reason.strip()
    if because and because[-1] not in ".!?":
        because += "."
    return " ".join(part for part in (because, *unheard, expected) if part)
