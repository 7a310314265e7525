"""Commands: written in the transaction that decides, delivered from here, at least once."""

from django.db import models

from controlplane.fleet.models import Node
from controlplane.jobs.models import Job
from controlplane.protocol.states import CommandState


class SharedBody(models.Model):
    """What the same command to many nodes says, once: `body` as JSON, `packed` as it stands in their statements."""

    id = models.CharField(primary_key=True, max_length=32)
    body = models.JSONField()
    packed = models.BinaryField()
    created_at = models.DateTimeField()


class Command(models.Model):
    """An outbox row. `body` is protocol.commands.Body as JSON; `statement` the whole command as
    it was signed (`signature`, by the key `key_id`), which is what travels; where it carries an
    environment it rests sealed, and `body` has the names alone; where `shared` says it for many nodes,
    `body` is empty and `statement` is without it (`dispatch.statements`); `due_at` when it
    expires (swept); `send_due_at` when it must be sent again if unanswered (swept)."""

    id = models.CharField(primary_key=True, max_length=32)
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="commands")
    job = models.ForeignKey(Job, null=True, on_delete=models.CASCADE, related_name="commands", db_index=False)
    decision_id = models.CharField(max_length=32, blank=True, db_index=True)
    attempt = models.IntegerField(default=0)
    epoch = models.BigIntegerField(default=0)
    kind = models.CharField(max_length=32)
    body = models.JSONField()
    # Without an index or a check at the foot of each row: of the shared body its commands are never asked by it,
    # and `forget_finished` alone deletes one, when it is older than all of them.
    shared = models.ForeignKey(
        SharedBody, null=True, on_delete=models.DO_NOTHING, related_name="+", db_index=False, db_constraint=False
    )
    statement = models.BinaryField(default=bytes)
    signature = models.BinaryField(default=bytes)
    key_id = models.CharField(max_length=16, blank=True)
    ttl_s = models.FloatField(default=60.0)
    state = models.CharField(max_length=16, default=CommandState.QUEUED, choices=[(s, s) for s in CommandState])
    deliveries = models.IntegerField(default=0)
    created_at = models.DateTimeField()
    delivered_at = models.DateTimeField(null=True)
    acknowledged_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    due_at = models.DateTimeField(db_index=True)
    send_due_at = models.DateTimeField(null=True, db_index=True)
    detail = models.TextField(blank=True)
    data = models.TextField(blank=True)

    class Meta:
        # A job's commands are asked for by kind: of a large one there are tens of thousands.
        indexes = [models.Index(fields=["job", "kind", "state"], name="command_of_job")]


class Unmade(models.Model):
    """The same command to some of many nodes, decided and not each node's own yet (`dispatch.broadcasts`): what
    `shared` says to each of `nodes`, with the columns of the commands that it becomes. `signature`, by the key
    `key_id`: that it was decided so. Gone once its commands are made."""

    id = models.CharField(primary_key=True, max_length=32)
    job = models.ForeignKey(Job, null=True, on_delete=models.CASCADE, related_name="+")
    decision_id = models.CharField(max_length=32, blank=True)
    attempt = models.IntegerField(default=0)
    epoch = models.BigIntegerField(default=0)
    kind = models.CharField(max_length=32)
    ttl_s = models.FloatField(default=60.0)
    created_at = models.DateTimeField()
    due_at = models.DateTimeField()
    shared = models.ForeignKey(
        SharedBody, on_delete=models.DO_NOTHING, related_name="+", db_index=False, db_constraint=False
    )
    nodes = models.JSONField()
    number = models.IntegerField()
    key_id = models.CharField(max_length=16)
    signature = models.BinaryField()
