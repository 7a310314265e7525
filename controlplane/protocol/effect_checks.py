"""What the schema of a job spec knows and nothing acts on is refused: no field is decoration."""

from collections.abc import Iterator

from controlplane.protocol.spec import JobSpec, RiskTrigger
from controlplane.protocol.spec_fault import Fault

_RISK = RiskTrigger()


def without_effect(document: JobSpec) -> Iterator[Fault]:
    """Fields that would be accepted and then read by nobody."""
    risk = document.spec.resiliency.risk
    if risk.window_samples != _RISK.window_samples:
        yield Fault(
            "/spec/resiliency/risk/window_samples",
            f"window_samples = {risk.window_samples} would change nothing: a score is of {_RISK.window_samples}",
            "leave it out",
        )
    if document.metadata.annotations:
        yield Fault(
            "/metadata/annotations", "nothing reads annotations", "use metadata.labels, by which jobs are listed"
        )
