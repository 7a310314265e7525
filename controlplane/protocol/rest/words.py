"""Words that an answer may hold, as the OpenAPI document lists them.

In Python they are plain text: a client reads a newer server's new word, and shows it.
"""

from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta

from controlplane.protocol import ledger, states


def _one_of(words: type[StrEnum], *more: str) -> Any:
    return Meta(extra_json_schema={"enum": [*(word.value for word in words), *more]})


JobState = Annotated[str, _one_of(states.JobState)]
AttemptState = Annotated[str, _one_of(states.AttemptState)]
ReplicaState = Annotated[str, _one_of(states.ReplicaState)]
RankState = Annotated[str, _one_of(states.RankState)]
NodeState = Annotated[str, _one_of(states.NodeState)]
EndSource = Annotated[str, _one_of(states.EndSource)]
CommandState = Annotated[str, _one_of(states.CommandState)]
CheckpointState = Annotated[str, _one_of(states.CheckpointState)]
IncidentState = Annotated[str, _one_of(states.IncidentState)]
IncidentOutcome = Annotated[str, _one_of(states.IncidentOutcome, "")]
EttrBasis = Annotated[str, _one_of(states.EttrBasis)]
RequestKind = Annotated[str, _one_of(states.RequestKind)]
RequestState = Annotated[str, _one_of(states.RequestState)]
Verdict = Annotated[str, _one_of(states.Verdict)]
TimeClass = Annotated[str, _one_of(ledger.TimeClass)]
CauseKind = Annotated[str, _one_of(ledger.CauseKind)]
CertificateState = Annotated[str, Meta(extra_json_schema={"enum": ["pending", "green", "red", "incomplete"]})]
LetterState = Annotated[str, Meta(extra_json_schema={"enum": ["waiting", "replayed", "discarded"]})]
Capabilities = dict[str, str]
"""Acts, each by the verb of its order; "" where the state of the object allows it, else why not."""
Scalars = dict[str, str | int | float | bool | None]
