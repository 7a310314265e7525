"""Bills of months that are over, as they were closed. Written once by `recovery.bills`, and never changed."""

from django.db import models


class Bill(models.Model):
    """What `project` pays for `month` (YYYY-MM, UTC). `terms` and `entries`: `policy.ledger.bill` as JSON, the entries
    as [job, name, class, incident, charged, gpu_s]; `currency` is its price's. The ledger knew nothing from before
    `known_since_s` (Unix). `project` "": the month is closed for all of them, and has no entries."""

    project = models.CharField(max_length=63, blank=True)
    month = models.CharField(max_length=7)
    closed_at = models.DateTimeField()
    terms = models.JSONField()
    currency = models.CharField(max_length=3)
    entries = models.JSONField()
    known_since_s = models.FloatField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["month", "project"], name="bill_closed_once")]
