"""Observed columns are written by ingest alone, `state` by services alone."""

from django.db import models

from controlplane.protocol.states import NodeState


class Node(models.Model):
    """A machine with an agent. `last_event_seq` of `journal_id` is the newest event
    applied; `connected` and `session_id` describe the live agent socket. `segment`: what its
    agent last named as its NVLink domain or network block, "" for nothing."""

    id = models.CharField(primary_key=True, max_length=32)
    name = models.CharField(max_length=100, unique=True)
    state = models.CharField(max_length=16, default=NodeState.READY, choices=[(s, s) for s in NodeState])
    state_reason = models.TextField(blank=True)
    state_since = models.DateTimeField(auto_now_add=True)
    credential_sha256 = models.CharField(max_length=64, unique=True)
    revoked_at = models.DateTimeField(null=True)
    connected = models.BooleanField(default=False)
    session_id = models.CharField(max_length=40, blank=True)
    connected_at = models.DateTimeField(null=True)
    disconnected_at = models.DateTimeField(null=True)
    boot_id = models.CharField(max_length=64, blank=True)
    journal_id = models.CharField(max_length=64, blank=True)
    last_event_seq = models.BigIntegerField(default=0)
    agent_version = models.CharField(max_length=40, blank=True)
    segment = models.CharField(max_length=63, blank=True, default="")
    created_at = models.DateTimeField(auto_now_add=True)


class Device(models.Model):
    """A GPU. `risk` is the newest score (0..1) that crossed a border, not a series."""

    id = models.CharField(primary_key=True, max_length=32)
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="devices")
    index = models.IntegerField()
    uuid = models.CharField(max_length=80)
    model = models.CharField(max_length=80)
    memory_bytes = models.BigIntegerField(null=True)
    driver = models.CharField(max_length=16)
    present = models.BooleanField(default=True)
    healthy = models.BooleanField(default=True)
    health_reason = models.TextField(blank=True)
    risk = models.FloatField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["node", "index"], name="device_slot_once")]
