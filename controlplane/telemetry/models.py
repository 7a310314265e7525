"""Device history in packed chunks."""

from django.db import models

from controlplane.fleet.models import Node


class TelemetryChunk(models.Model):
    """Of one node up to ten minutes of samples, or what waited for the database (two hours at most): quantised, delta,
    zstd (codec names it)."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="chunks")
    t0 = models.DateTimeField(db_index=True)
    t1 = models.DateTimeField()
    codec = models.CharField(max_length=24)
    samples = models.IntegerField()
    payload = models.BinaryField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["node", "t0"], name="chunk_once")]
