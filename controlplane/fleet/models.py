"""Observed columns are written by ingest alone, `state` by services alone."""

from django.db import models
from django.db.models import Q

from controlplane.protocol.frames import PROTOCOL_MIN
from controlplane.protocol.states import EndSource, NodeState


class Node(models.Model):
    """A machine with an agent. `last_event_seq` of `journal_id` is the newest event
    applied; `connected` and `session_id` describe the live agent socket. `segment`: what its
    agent last named as its NVLink domain or network block, "" for nothing; `pool`: what its join
    token bound it to, which then is its segment.

    Identity (`fleet.identity`): `public_key` (Ed25519, base64url; "" none yet known) and for an
    overlap the one before; `session_counter` the largest a session has shown; `doubt` why it may
    be two machines, "" for no doubt; until `hold_until` a session that pushed out a live one gets
    no starts; `challenger` is who came while another session was live, asked since `asked_at`.
    `revision` of the protocol that its agent spoke last; orders say nothing newer.
    `held`: it enrolled with a token that holds, and gets no work until an administrator confirms it.
    `gap_since`: its events do not follow what was applied; `deaf`: so long that it takes no work;
    `before_deaf`: state and reason to go back to, where that alone has quarantined it; None otherwise."""

    id = models.CharField(primary_key=True, max_length=32)
    name = models.CharField(max_length=100, unique=True)
    state = models.CharField(max_length=16, default=NodeState.READY, choices=[(s, s) for s in NodeState])
    state_reason = models.TextField(blank=True)
    state_since = models.DateTimeField(auto_now_add=True)
    public_key = models.CharField(max_length=64, unique=True, null=True)
    key_since = models.DateTimeField(null=True)
    old_public_key = models.CharField(max_length=64, blank=True, default="")
    old_key_until = models.DateTimeField(null=True)
    key_wanted_at = models.DateTimeField(null=True)
    machine_id = models.CharField(max_length=64, blank=True, default="")
    session_counter = models.BigIntegerField(default=0)
    doubt = models.TextField(blank=True, default="")
    hold_until = models.DateTimeField(null=True)
    challenger = models.JSONField(null=True)
    asked_at = models.DateTimeField(null=True)
    held = models.BooleanField(default=False, db_default=False)
    join_token_id = models.CharField(max_length=32, blank=True, default="")
    pool = models.CharField(max_length=63, blank=True, default="")
    gap_since = models.DateTimeField(null=True)
    deaf = models.BooleanField(default=False)
    before_deaf = models.JSONField(null=True)
    revoked_at = models.DateTimeField(null=True)
    removed_at = models.DateTimeField(null=True)
    connected = models.BooleanField(default=False)
    session_id = models.CharField(max_length=40, blank=True)
    connected_at = models.DateTimeField(null=True)
    disconnected_at = models.DateTimeField(null=True)
    boot_id = models.CharField(max_length=64, blank=True)
    journal_id = models.CharField(max_length=64, blank=True)
    last_event_seq = models.BigIntegerField(default=0)
    agent_version = models.CharField(max_length=40, blank=True)
    revision = models.PositiveSmallIntegerField(default=PROTOCOL_MIN)
    segment = models.CharField(max_length=63, blank=True, default="")
    created_at = models.DateTimeField(auto_now_add=True)


class KnownEnd(models.Model):
    """When a node is known to leave (`fleet.ends` writes it). By a `spot` notice of its provider, one at a time, which
    its agent read in the boot `boot_id`; or by a `window` that `who` set, over at `back_at`. `over_at`: since when it
    does not hold any more, as it was withdrawn, cancelled, or the machine came back; None: it does."""

    id = models.CharField(primary_key=True, max_length=32)
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="ends")
    source = models.CharField(max_length=8, choices=[(s, s) for s in EndSource])
    leaves_at = models.DateTimeField()
    back_at = models.DateTimeField(null=True)
    reason = models.TextField()
    who = models.CharField(max_length=200)
    said_at = models.DateTimeField()
    boot_id = models.CharField(max_length=64, blank=True, default="")
    over_at = models.DateTimeField(null=True)
    over_by = models.TextField(blank=True, default="")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["node"], condition=Q(source=EndSource.SPOT, over_at=None), name="one_notice_of_a_node"
            )
        ]
        # Few hold at a time, and each load asks for them.
        indexes = [models.Index(fields=["leaves_at"], condition=Q(over_at=None), name="known_end_holds")]


class Reservation(models.Model):
    """`nodes` are `project`'s own from `starts_at` until `ends_at`, as `who` has set (`fleet.reservations` writes it).
    `over_at`: since when it was cancelled; None: it holds. A node is reserved once at a time."""

    id = models.CharField(primary_key=True, max_length=32)
    project = models.CharField(max_length=63)
    nodes = models.ManyToManyField(Node, related_name="reservations")
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    reason = models.TextField()
    who = models.CharField(max_length=200)
    said_at = models.DateTimeField()
    over_at = models.DateTimeField(null=True)
    over_by = models.TextField(blank=True, default="")

    class Meta:
        # Few hold at a time, and each load asks for them.
        indexes = [models.Index(fields=["ends_at"], condition=Q(over_at=None), name="reservation_holds")]


class NodeLife(models.Model):
    """One journal of one boot that spoke with a node's key. Boot ids never come back after another
    one: a life that does is a second machine. `barred`: it was told to stay away."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="lives")
    boot_id = models.CharField(max_length=64)
    journal_id = models.CharField(max_length=64)
    machine_id = models.CharField(max_length=64, blank=True)
    counter = models.BigIntegerField(default=0)
    last_event_seq = models.BigIntegerField(default=0)
    barred = models.BooleanField(default=False)
    first_seen_at = models.DateTimeField(auto_now_add=True)
    last_seen_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["node", "boot_id", "journal_id"], name="node_life_once")]


NOT_WELL = Q(present=False) | Q(healthy=False) | Q(risk__isnull=False)
"""Few of a fleet's devices are away, barred, or have a score that crossed a border."""


class Device(models.Model):
    """A GPU. `risk` is the newest score (0..1) that crossed a border, not a series.
    `reset_wanted_at`: since when it waits, empty or not, for a reset to be ordered. `uuid_since`: when it took
    the place of another one; None: it is the first there."""

    id = models.CharField(primary_key=True, max_length=32)
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="devices")
    index = models.IntegerField()
    uuid = models.CharField(max_length=80)
    uuid_since = models.DateTimeField(null=True)
    model = models.CharField(max_length=80)
    memory_bytes = models.BigIntegerField(null=True)
    driver = models.CharField(max_length=16)
    present = models.BooleanField(default=True)
    healthy = models.BooleanField(default=True)
    health_reason = models.TextField(blank=True)
    risk = models.FloatField(null=True)
    reset_wanted_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["node", "index"], name="device_slot_once")]
        # Few of a fleet's devices wait for a reset, and each load asks for them; who counts all of a fleet reads those
        # alone that are not as nearly all are.
        indexes = [
            models.Index(fields=["node"], condition=Q(reset_wanted_at__isnull=False), name="device_reset_wanted"),
            models.Index(fields=["node"], condition=NOT_WELL, name="device_not_well"),
        ]
