"""Facts of engines and intents to them (ADR 0063). Facts are written by `record` alone, intents by `intents`."""

from django.db import models
from django.db.models import Q

from controlplane.engines.engine import OPEN, IntentKind, IntentState
from controlplane.fleet.models import Node


class EnginePoll(models.Model):
    """How an engine was last looked at. `answered_at`: its last whole answer; `error`: why the newest look was none, ""
    where it was; `failures`: such looks in a row; nobody looks before `due_at`."""

    engine = models.CharField(primary_key=True, max_length=16)
    answered_at = models.DateTimeField(null=True)
    error = models.TextField(blank=True, default="")
    error_at = models.DateTimeField(null=True)
    failures = models.PositiveIntegerField(default=0)
    due_at = models.DateTimeField()


class EngineNode(models.Model):
    """What an engine believes of a node: `name`, its name there; `states`, the words of its state with + between them;
    `reason` (None: it cannot be read), which `reason_by` set at `reason_at`. `piloted`: it has been in a pilot."""

    node = models.OneToOneField(Node, on_delete=models.CASCADE, primary_key=True, related_name="believed")
    engine = models.CharField(max_length=16)
    name = models.CharField(max_length=63)
    states = models.CharField(max_length=200)
    reason = models.TextField(null=True)
    reason_by = models.CharField(max_length=64, blank=True, default="")
    reason_at = models.DateTimeField(null=True)
    piloted = models.BooleanField(default=False)
    seen_at = models.DateTimeField()


class PoolElement(models.Model):
    """An element of an array of pilots that the engine lists, or that is not known to be gone. `starts_at`: when it
    started, which with `job` names the allocation, or is expected to; `ends_at`: its time limit; `grace_s`: from its
    notice to its end. `missed`: so many whole answers in a row did not list it."""

    engine = models.CharField(max_length=16)
    pool = models.CharField(max_length=10)
    index = models.PositiveIntegerField()
    job = models.CharField(max_length=10)
    state = models.CharField(max_length=32)
    reason = models.TextField(blank=True, default="")
    owner = models.CharField(max_length=64, blank=True, default="")
    node_name = models.CharField(max_length=63, blank=True, default="")
    node = models.ForeignKey(Node, on_delete=models.SET_NULL, null=True, related_name="pilots")
    starts_at = models.DateTimeField(null=True)
    ends_at = models.DateTimeField(null=True)
    grace_s = models.PositiveIntegerField(null=True)
    missed = models.PositiveSmallIntegerField(default=0)
    seen_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["engine", "pool", "index"], name="pool_element_once")]


class Intent(models.Model):
    """What Holdfast wants of an engine: of a `node`, or of a `pool`, which is to have `size` at a time. `who`: the
    policy, or a person. Asked for again from `due_at` on, `tries` times so far; `detail`: what came of the last."""

    id = models.CharField(primary_key=True, max_length=32)
    engine = models.CharField(max_length=16)
    kind = models.CharField(max_length=16, choices=[(s, s) for s in IntentKind])
    node = models.ForeignKey(Node, on_delete=models.CASCADE, null=True, related_name="intents")
    pool = models.CharField(max_length=10, blank=True, default="")
    size = models.PositiveIntegerField(null=True)
    reason = models.TextField()
    who = models.CharField(max_length=200)
    state = models.CharField(max_length=8, choices=[(s, s) for s in IntentState], default=IntentState.WANTED)
    tries = models.PositiveIntegerField(default=0)
    detail = models.TextField(blank=True, default="")
    made_at = models.DateTimeField()
    due_at = models.DateTimeField()
    done_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["engine", "node"], condition=Q(state__in=OPEN, node__isnull=False), name="one_intent_of_a_node"
            ),
            models.UniqueConstraint(
                fields=["engine", "pool"], condition=Q(state__in=OPEN) & ~Q(pool=""), name="one_intent_of_a_pool"
            ),
        ]
        # Few are open at a time, and each look asks for them.
        indexes = [models.Index(fields=["due_at"], condition=Q(state__in=OPEN), name="intent_open")]
