"""Rows of jobs that yielded and continued (`recovery.resumptions`, ADR 0042)."""

from datetime import datetime

from django.db import models

from controlplane.jobs.models import Job


class Resumption(models.Model):
    """Attempt `yielded` of the job was preempted; attempt `resumed` (None: none has trained yet) continues from it
    since `recovered_at`. `began` and `ended`: where the job was then (`recovery.course`); `certificate` that nothing
    was lost and nothing trained otherwise, as an incident's (`recovery.certificate`), judged next at
    `certificate_due_at`."""

    id = models.CharField(primary_key=True, max_length=32)
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="resumptions")
    yielded = models.IntegerField()
    opened_at = models.DateTimeField()
    began = models.JSONField()
    resumed = models.IntegerField(null=True)
    recovered_at = models.DateTimeField(null=True)
    ended = models.JSONField(null=True)
    certificate = models.JSONField(null=True)
    certificate_due_at = models.DateTimeField(null=True, db_index=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "yielded"], name="resumption_once")]

    @property
    def ended_at(self) -> datetime | None:
        """When training continued; None: not yet."""
        return self.recovered_at
