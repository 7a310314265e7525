"""An end that is told after its replica was ended: it belongs to the incident of that life, and may be its cause.

A rank that was killed takes longer to be gone than its peers take to notice, so that those are told first; one
that waits for a storage that stands still is gone when that moves again, and its replica was ended by what
others saw. Called by `recovery.commit` when it has raised the finding.
"""

from typing import Any

from controlplane.policy.exits import culprit
from controlplane.policy.titles import of_exit, short
from controlplane.recovery.incidents import publish_incident, slots_of
from controlplane.recovery.models import Decision, Incident, Signal
from controlplane.recovery.signals import fact_of, settle

LOOKED_AT = 100
SEEN_BY_OTHERS = ("outer_error", "rank_overdue")


def join(signal: Signal) -> None:
    """Put it beside what was found of the same life; the incident is named after it where it explains the rest."""
    same = Signal.objects.filter(
        kind="rank_exit", job_id=signal.job_id, replica=signal.replica, incarnation=signal.incarnation
    )
    told = list(
        same.exclude(pk=signal.pk).exclude(incident=None).select_related("incident", "node").order_by("seen_at")
    )
    incident = told[0].incident if told else _that_ended(signal)
    if incident is None:
        return
    inferred = not told and _names_it_by_others(incident, signal)
    Signal.objects.filter(pk=signal.pk).update(incident=incident)
    settle([signal], "its replica had been ended before this was reported")
    before = culprit(map(fact_of, told))
    after = culprit(map(fact_of, (*told, signal)))
    titles = {row.pk: short(of_exit(fact_of(row), row.node.name if row.node else "")) for row in (*told, signal)}
    if before is None and not inferred:
        return
    if after is None or (before is not None and (after.id == before.id or incident.title != titles[before.id])):
        return
    Incident.objects.filter(pk=incident.pk).update(title=titles[after.id])
    incident.title = titles[after.id]
    publish_incident(incident, "incident.renamed", f"Told later: {incident.title}.")


def _that_ended(signal: Signal) -> Incident | None:
    """The newest incident with a decision that ended this very life."""
    rows = Decision.objects.filter(job_id=signal.job_id).exclude(incident=None).order_by("-at", "-id")
    for row in rows.select_related("incident")[:LOOKED_AT]:
        if any(_ends(action, signal) for action in row.actions):
            return row.incident
    return None


def _ends(action: dict[str, Any], signal: Signal) -> bool:
    life = (action.get("replica"), action.get("incarnation"))
    return action["action"] == "stop_replica" and life == (signal.replica, signal.incarnation)


def _names_it_by_others(incident: Incident, signal: Signal) -> bool:
    """It is about this slot alone, and rests on what others saw of it: its own end explains that."""
    others = incident.signals.exclude(pk=signal.pk).exclude(kind__in=SEEN_BY_OTHERS)
    return slots_of(incident) == {signal.replica} and not others.exists()
