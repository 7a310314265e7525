"""The event log, and what we know of our own processes."""

from django.db import models


class EventStream(models.Model):
    """Newest sequence number of a stream: "all", or a job's id. Its row lock orders commits.
    "forgotten": that of the newest event which was removed."""

    name = models.CharField(primary_key=True, max_length=40)
    seq = models.BigIntegerField(default=0)


class Event(models.Model):
    """Something that happened, immutable. `seq` is global, gap-free and in commit order (from
    `events.kept_from` on); `job_seq` is gap-free per job. `entity`, `entity_id`, `patch`: the new summary of what
    changed, for the browser's reducer (snapshot + events == fresh snapshot)."""

    seq = models.BigIntegerField(unique=True)
    at = models.DateTimeField()
    kind = models.CharField(max_length=60)
    sentence = models.TextField(blank=True)
    job_id = models.CharField(max_length=32, blank=True)
    job_seq = models.BigIntegerField(null=True)
    node_id = models.CharField(max_length=32, blank=True)
    entity = models.CharField(max_length=24, blank=True)
    entity_id = models.CharField(max_length=64, blank=True)
    patch = models.JSONField(null=True)
    data = models.JSONField(default=dict)

    class Meta:
        # The newest of a job or a node are read from the end of their own, none of them sorted.
        indexes = [
            models.Index(fields=["job_id", "seq"], name="event_of_job"),
            models.Index(fields=["node_id", "seq"], name="event_of_node"),
        ]


class ProcessBeat(models.Model):
    """Liveness of web, sentinel, worker and beat processes. `canary_at`: last end-to-end
    task (worker). `term` fences the sentinel's leadership."""

    name = models.CharField(primary_key=True, max_length=60)
    role = models.CharField(max_length=20)
    pid = models.IntegerField()
    started_at = models.DateTimeField()
    beat_at = models.DateTimeField()
    term = models.BigIntegerField(default=0)
    detail = models.JSONField(default=dict)


class ClockStep(models.Model):
    """The server's clock was set by `step_s`, to `set_at` at the earliest. `boot`, `up_s`: the boot of the
    machine that saw it, and seconds since then. `older`: ids by kind of rows that count within a window and
    stand, by the clock before it was set back, where the present one comes by again, and of what was under way
    then (`runtime.windows`)."""

    set_at = models.DateTimeField()
    step_s = models.FloatField()
    boot = models.CharField(max_length=40, blank=True)
    up_s = models.FloatField(default=0.0)
    older = models.JSONField(default=dict)


class FrameCounter(models.Model):
    """Refused and dropped input, by node and reason (malformed, duplicate, gap, stale...)."""

    node_name = models.CharField(max_length=100)
    reason = models.CharField(max_length=40)
    count = models.BigIntegerField(default=0)
    last_at = models.DateTimeField()
    last_detail = models.TextField(blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["node_name", "reason"], name="frame_counter_once")]
