"""An end that is told after its replica was ended: it belongs to the incident of that life, and may be its cause.

A rank that was killed takes longer to be gone than its peers take to notice, so that those are told first.
Called by `recovery.facts` when it has raised the finding.
"""

from controlplane.policy.exits import culprit
from controlplane.policy.titles import of_exit, short
from controlplane.protocol.states import ReplicaState
from controlplane.recovery.incidents import publish_incident
from controlplane.recovery.models import Incident, Signal
from controlplane.recovery.signals import fact_of, settle

OVER = (ReplicaState.EVICTED, ReplicaState.ENDED)


def join(signal: Signal, replica_state: str) -> None:
    """Put it beside what was found of the same life; the incident is named after it where it explains the rest."""
    if replica_state not in OVER:
        return
    same = Signal.objects.filter(
        kind="rank_exit", job_id=signal.job_id, replica=signal.replica, incarnation=signal.incarnation
    )
    told = list(
        same.exclude(pk=signal.pk).exclude(incident=None).select_related("incident", "node").order_by("seen_at")
    )
    if not told:
        return
    incident = told[0].incident
    assert incident is not None, "asked for those that are in one"
    Signal.objects.filter(pk=signal.pk).update(incident=incident)
    settle([signal], "its replica had been ended before this was told")
    before = culprit(map(fact_of, told))
    after = culprit(map(fact_of, (*told, signal)))
    titles = {row.pk: short(of_exit(fact_of(row), row.node.name if row.node else "")) for row in (*told, signal)}
    if after is None or before is None or after.id == before.id or incident.title != titles[before.id]:
        return
    Incident.objects.filter(pk=incident.pk).update(title=titles[after.id])
    incident.title = titles[after.id]
    publish_incident(incident, "incident.renamed", f"Told later: {incident.title}.")
