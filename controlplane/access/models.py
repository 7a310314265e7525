"""Credentials are stored as SHA-256 only and shown once."""

from django.conf import settings
from django.db import models

from controlplane.access.append_only import AppendOnly, AppendOnlyQuerySet


class Scope(models.TextChoices):
    """What a token may do; each includes the ones before it."""

    READ = "read"
    SUBMIT = "submit"
    OPERATE = "operate"
    ADMIN = "admin"


class ApiToken(models.Model):
    """`holdfast_<scope>_<random>`; used by CLI and SDK. `project`: good in that project alone; "": wherever its
    account is."""

    id = models.CharField(primary_key=True, max_length=32)
    name = models.CharField(max_length=100)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)
    # The token that made this one; None: a signed-in person or the console did.
    parent = models.ForeignKey("self", null=True, on_delete=models.CASCADE, related_name="children")
    scope = models.CharField(max_length=16, choices=Scope.choices)
    project = models.CharField(max_length=63, blank=True, default="", db_default="")
    sha256 = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True)
    last_used_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)


class JoinToken(models.Model):
    """Lets `uses_left` agents enrol until `expires_at`; accepted nowhere else. Bound to what is not
    empty of `name`, `name_pattern`, `pool` and `cidr` (networks, separated by commas). `takeover`: the
    node of that name may be given another key. `hold`: nodes that enrol with it wait for an
    administrator."""

    id = models.CharField(primary_key=True, max_length=32)
    sha256 = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    uses_left = models.IntegerField(default=1)
    name = models.CharField(max_length=100, blank=True, default="")
    name_pattern = models.CharField(max_length=100, blank=True, default="", db_default="")
    pool = models.CharField(max_length=63, blank=True, default="")
    cidr = models.CharField(max_length=500, blank=True, default="")
    takeover = models.BooleanField(default=False)
    hold = models.BooleanField(default=False, db_default=False)
    created_by = models.CharField(max_length=120, blank=True, default="")
    revoked_at = models.DateTimeField(null=True)


class OneTimePassword(models.Model):
    """A password that logs `user` in once, until `expires_at`."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)
    sha256 = models.CharField(max_length=64, unique=True)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True)


class SignInGate(models.Model):
    """What is remembered about sign-ins of one name, one address, or one pair of them.

    `key` is a SHA-256 of the kind and of what was typed, so that a name typed into the wrong
    field (a password) rests nowhere. `failures` since `last_at` was last quiet; no attempt is
    looked at before `closed_until`. `known_until`: from here the name has signed in before."""

    key = models.CharField(primary_key=True, max_length=64)
    failures = models.IntegerField(default=0)
    last_at = models.DateTimeField(db_index=True)
    closed_until = models.DateTimeField(null=True)
    known_until = models.DateTimeField(null=True)


class AuditEntry(AppendOnly, models.Model):
    """One act or refusal of a person, token, agent or automation. Append-only. `seq`, `prev_hash`
    and `hash` are empty until the row is sealed into the chain, within seconds (`access.sealing`)."""

    at = models.DateTimeField()
    actor = models.CharField(max_length=120)
    action = models.CharField(max_length=80)
    subject = models.CharField(max_length=120)
    reason = models.TextField(blank=True)
    request_id = models.CharField(max_length=64, blank=True)
    origin = models.CharField(max_length=64, blank=True, default="")
    decision_id = models.CharField(max_length=32, blank=True, default="")
    data = models.JSONField(default=dict)
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    mac = models.CharField(max_length=64, default="")
    seq = models.BigIntegerField(null=True, unique=True)
    prev_hash = models.CharField(max_length=64, blank=True, default="")
    hash = models.CharField(max_length=64, blank=True, default="")

    objects = AppendOnlyQuerySet.as_manager()
    raw: models.Manager["AuditEntry"] = models.Manager()
    """For sealing and pruning alone."""

    class Meta:
        indexes = [models.Index(fields=["id"], condition=models.Q(seq=None), name="audit_unsealed")]


class AuditAnchor(AppendOnly, models.Model):
    """The chain up to `seq` was exported and removed; `hash` is that of its last row."""

    at = models.DateTimeField()
    seq = models.BigIntegerField(unique=True)
    hash = models.CharField(max_length=64)
    mac = models.CharField(max_length=64)

    objects = AppendOnlyQuerySet.as_manager()


class AuditVerdict(AppendOnly, models.Model):
    """What a walk along the chain found (`access.verdicts`): `rows` read up to `seq`, whose hash is `hash`; `broken`
    faults, and the first of them in words."""

    at = models.DateTimeField()
    rows = models.BigIntegerField()
    seq = models.BigIntegerField()
    hash = models.CharField(max_length=64)
    broken = models.BigIntegerField()
    first_fault = models.TextField(blank=True)
    mac = models.CharField(max_length=64)

    objects = AppendOnlyQuerySet.as_manager()


class IdempotencyKey(models.Model):
    """The stored answer of a keyed POST; same key and body is replayed for 24 h."""

    principal = models.CharField(max_length=120)
    key = models.CharField(max_length=200)
    body_sha256 = models.CharField(max_length=64)
    status = models.IntegerField(null=True)
    answer = models.TextField(blank=True)
    location = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["principal", "key"], name="idempotency_key_once")]
