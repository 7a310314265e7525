"""Most of a job is late in one place at once: tell the common cause, end nobody for it. Of a few, `leave_out` tells.

`failures` leaves these hangs out for as long, so no other rule speaks of them.
"""

from controlplane.policy.common import Common
from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import attempt_live
from controlplane.policy.failures import common_stalls
from controlplane.policy.plan import Decision
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol.states import Section

RULE = "common_stall"


def rule(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """One decision a stall."""
    if not attempt_live(snapshot) or snapshot.job.finished or snapshot.job.cancel_requested:
        return ()
    return tuple(_tell(snapshot, found) for found in common_stalls(snapshot, config) if found.told and not found.few)


def _tell(snapshot: JobSnapshot, found: Common) -> Decision:
    saving = found.section == Section.CHECKPOINTING
    where = "saving" if saving else found.section.replace("_", " ") or "one place"
    cause = (
        "the storage that they save to has stalled, as far as can be seen: look at it"
        if saving
        else "what they share (network, storage, the program) is the likelier cause than each of them"
    )
    end = "their replica is replaced" if found.savers else "the job restarts from its checkpoint"
    left_s = found.until_s - found.since_s
    lasts = f"{left_s / 60.0:.0f} min {end}"
    if found.scarce:
        least = snapshot.job.spec.resources.min_replicas
        lasts = (
            f"{left_s:.0f} s they are ended as hangs (without them fewer than {least} replicas would be left to train)"
        )
    title = f"{found.late} of {found.of} {found.unit} are late in {where} at once"
    return Decision(
        rule=RULE,
        choice="hold",
        reason_code="storage_stall" if saving else "common_stall",
        title=title,
        sentence=f"{title}: {cause}. Nothing is ended for it; if it lasts {lasts}.",
        key=f"common_stall:{found.section}:{found.since_s:.0f}",
        actions=(),
        evidence={"section": found.section, "late": found.late, "of": found.of, "unit": found.unit},
        signal_ids=tuple(signal for failure in found.failures for signal in failure.signal_ids),
    )
