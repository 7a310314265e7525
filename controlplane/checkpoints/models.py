"""Checkpoints on the trust ladder; `path` is the directory of one checkpoint."""

from django.db import models

from controlplane.jobs.models import Job
from controlplane.protocol.states import CheckpointState


class Checkpoint(models.Model):
    """`kind`: scheduled, emergency, manual, preemption, or local (on the nodes' own disks; its
    `path` is then `local:<directory>`, and `holders[r]` are the ids of the nodes that hold
    shard r). `layout` as protocol Parallelism. `verify_due_at`: when to look at it next.
    `doubt`: why its ranks could not load it, until what is there was read back. `written_on`: the node
    whose rank said that it began, then that it is complete. `round_at`: since when somebody is sought who
    reads it back; `reader`: the order to the node that does now, heard of last at `heard_at`. `read_s`: the longest
    that the server's own machine took to read it, seconds. `suspect_step`: step of a save that was trained from it
    and whose numbers went bad; 0: none."""

    id = models.CharField(primary_key=True, max_length=32)
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="checkpoints")
    attempt = models.IntegerField()
    step = models.BigIntegerField()
    epoch = models.BigIntegerField()
    path = models.TextField()
    kind = models.CharField(max_length=16)
    state = models.CharField(max_length=16, default=CheckpointState.WRITING, choices=[(s, s) for s in CheckpointState])
    state_reason = models.TextField(blank=True)
    layout = models.JSONField(default=dict)
    bytes = models.BigIntegerField(default=0)
    holders = models.JSONField(default=list)
    digest = models.CharField(max_length=128, blank=True)
    blocking_s = models.FloatField(null=True)
    total_s = models.FloatField(null=True)
    read_s = models.FloatField(null=True)
    started_at = models.DateTimeField()
    committed_at = models.DateTimeField(null=True)
    verify_due_at = models.DateTimeField(null=True, db_index=True)
    suspect_step = models.BigIntegerField(default=0, db_default=0)
    doubt = models.TextField(blank=True, default="")
    written_on = models.CharField(max_length=32, blank=True, default="")
    round_at = models.DateTimeField(null=True)
    reader = models.CharField(max_length=32, blank=True, default="", db_index=True)
    heard_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "path"], name="checkpoint_path_once")]
