"""Rows of the disruption budget (`policy.disruption`, ADR 0048): acts that were carried out, and breakers."""

from django.db import models
from django.db.models import Q

POLICY = "policy"
"""Who closes a breaker whose correlated failure is over; no person, so that nothing is counted from zero."""


class Act(models.Model):
    """One act in one place: an act that touches several failure domains has a row for each, of which `lead` marks
    one. `kind`: of `policy.disruption_counts.ActKind`; `segment` "" where none is named."""

    kind = models.CharField(max_length=12)
    segment = models.CharField(max_length=200, blank=True, default="")
    lead = models.BooleanField(default=True)
    proved = models.BooleanField(default=False)
    at = models.DateTimeField(db_index=True)
    decision_id = models.CharField(max_length=32)


class Breaker(models.Model):
    """Holds what automation does without positive proof, in the fleet or in one failure domain (`segment`), while
    `closed_at` is None. `code`: what tripped it; `reason`: a sentence; `decision_id`: of the decision that opened it,
    which has the evidence. `closed_by`: who closed it, and why."""

    id = models.CharField(primary_key=True, max_length=32)
    code = models.CharField(max_length=12)
    segment = models.CharField(max_length=200, blank=True, default="")
    reason = models.TextField()
    opened_at = models.DateTimeField()
    decision_id = models.CharField(max_length=32)
    closed_at = models.DateTimeField(null=True)
    closed_by = models.CharField(max_length=200, blank=True, default="")
    close_reason = models.TextField(blank=True, default="")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["segment"], condition=Q(closed_at=None), name="breaker_open_once")
        ]
        indexes = [models.Index(fields=["-opened_at"], name="breaker_newest")]
