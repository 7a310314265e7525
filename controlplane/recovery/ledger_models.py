"""Rows of the GPU-second ledger (`policy.ledger`, ADR 0043): spans, never a row a second.

Moments are Unix seconds by the server's present clock (`recovery.clock_set` moves them with it); `until_s` None: it
goes on."""

from django.db import models

from controlplane.fleet.models import Node
from controlplane.jobs.models import Job, Replica


class LedgerMark(models.Model):
    """Up to where the ledger is built: the event `seq`, the moment `judged_s`. Nothing is known from before
    `began_s`. Its row lock makes passes follow one another."""

    name = models.CharField(primary_key=True, max_length=8)
    seq = models.BigIntegerField(default=0)
    began_s = models.FloatField(null=True)
    judged_s = models.FloatField(default=0.0)


class LedgerRun(models.Model):
    """A run of a job's time (`policy.ledger.runs.Grown`). `judged`: its cause is known; `restated_at`: when
    it was last changed after it had been shown."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="ledger_runs")
    attempt = models.IntegerField()
    since_epoch = models.BigIntegerField()
    epoch = models.BigIntegerField()
    from_s = models.FloatField()
    until_s = models.FloatField()
    kind = models.CharField(max_length=16)
    since = models.BigIntegerField()
    done = models.BigIntegerField()
    lost = models.BigIntegerField(default=0)
    saved_s = models.FloatField(default=0.0)
    cause_kind = models.CharField(max_length=16, blank=True, default="")
    cause_id = models.CharField(max_length=200, blank=True, default="")
    lost_cause_kind = models.CharField(max_length=16, blank=True, default="")
    lost_cause_id = models.CharField(max_length=200, blank=True, default="")
    preempted = models.BooleanField(default=False)
    judged = models.BooleanField(default=False)
    restated_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            models.Index(fields=["job", "until_s"], name="ledger_runs_of_job"),
            models.Index(fields=["until_s"], name="ledger_runs_by_moment"),
            models.Index(fields=["job"], condition=models.Q(judged=False), name="ledger_runs_unjudged"),
        ]


class LedgerHold(models.Model):
    """So many devices of a node are held by a replica's incarnation."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="ledger_holds")
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="ledger_holds")
    replica = models.ForeignKey(Replica, on_delete=models.CASCADE, related_name="ledger_holds")
    from_s = models.FloatField()
    until_s = models.FloatField(null=True)
    devices = models.IntegerField()

    class Meta:
        indexes = [
            models.Index(fields=["job", "from_s"], name="ledger_holds_of_job"),
            models.Index(fields=["until_s"], name="ledger_holds_by_moment"),
        ]


class LedgerTurn(models.Model):
    """From that moment on the replica has the role (`policy.ledger.facts.Role`)."""

    replica = models.ForeignKey(Replica, on_delete=models.CASCADE, related_name="ledger_turns")
    from_s = models.FloatField()
    role = models.CharField(max_length=12)


class LedgerStanding(models.Model):
    """What a node's devices were good for, whoever held them (`policy.ledger.facts.Standing`)."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="ledger_standings")
    from_s = models.FloatField()
    until_s = models.FloatField(null=True)
    devices = models.IntegerField()
    down = models.IntegerField(default=0)
    cordoned = models.IntegerField(default=0)
    spare = models.IntegerField(default=0)
    unseen = models.IntegerField(default=0)
    cause_kind = models.CharField(max_length=16, blank=True, default="")
    cause_id = models.CharField(max_length=200, blank=True, default="")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["node"], condition=models.Q(until_s=None), name="one_standing_goes_on")
        ]
        indexes = [models.Index(fields=["until_s"], name="ledger_standings_by_moment")]
