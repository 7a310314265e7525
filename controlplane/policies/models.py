"""Versions of policy documents, and every policy that a decision was made by. Rows are written once."""

from django.db import models

from controlplane.access.append_only import AppendOnly, AppendOnlyQuerySet
from controlplane.access.project_models import Project
from controlplane.jobs.models import Job

FLEET, PROJECT, JOB = "fleet", "project", "job"
"""From the widest to the narrowest. `FLEET` is the scope that is no project's and no job's."""


def scope_of_project(name: str) -> str:
    """As versions name it, so that no project takes the place of the fleet or of a job."""
    return f"{PROJECT}:{name}"


class PolicyVersion(AppendOnly, models.Model):
    """One version of the document of a scope: `FLEET`, `scope_of_project` or a job's id. `number` counts from 1 in its
    scope, `parent` is the one that it replaced (0: the defaults). `document`: the fields that somebody set
    (`policy.document`); `version`: the hash of the whole policy that it made when it was stored; `restores`: the
    version that was brought back."""

    scope = models.CharField(max_length=80)
    project = models.ForeignKey(Project, null=True, on_delete=models.PROTECT, related_name="policy_versions")
    job = models.ForeignKey(Job, null=True, on_delete=models.CASCADE, related_name="policy_versions")
    number = models.IntegerField()
    parent = models.IntegerField()
    restores = models.IntegerField(null=True)
    document = models.JSONField(default=dict)
    version = models.CharField(max_length=64)
    at = models.DateTimeField()
    who = models.CharField(max_length=200)
    reason = models.TextField()

    objects = AppendOnlyQuerySet.as_manager()

    class Meta:
        constraints = (models.UniqueConstraint(fields=["scope", "number"], name="policy_number_once"),)


class PolicyContent(AppendOnly, models.Model):
    """A whole policy (`PolicyConfig.content`) by the hash that decisions carry."""

    version = models.CharField(primary_key=True, max_length=64)
    content = models.TextField()
    since = models.DateTimeField(auto_now_add=True)

    objects = AppendOnlyQuerySet.as_manager()


class RunRole(models.TextChoices):
    """What a document runs beside the live policy for: to be promoted, or as the one before a promoted one."""

    CANDIDATE = "candidate"
    WATCH = "watch"


class RunState(models.TextChoices):
    """RUNNING, or how it ended: PROMOTED, STOPPED by a person, FELL_BACK to it, KEPT: the promoted one stays,
    SUPERSEDED: somebody changed the policy meanwhile."""

    RUNNING = "running"
    PROMOTED = "promoted"
    STOPPED = "stopped"
    FELL_BACK = "fell_back"
    KEPT = "kept"
    SUPERSEDED = "superseded"


class ShadowRun(models.Model):
    """A document of the fleet that is decided by beside the live policy, without acting. `live_number`: the version in
    force when it began; `after`: the id of the newest decision that was compared; `bar`: `policy.shadow.Bar`."""

    role = models.CharField(max_length=12, choices=RunRole.choices)
    state = models.CharField(max_length=12, choices=RunState.choices, default=RunState.RUNNING)
    document = models.JSONField(default=dict)
    version = models.CharField(max_length=64)
    live_number = models.IntegerField()
    bar = models.JSONField(default=dict)
    after = models.CharField(max_length=32, default="")
    who = models.CharField(max_length=200)
    reason = models.TextField()
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    ended_why = models.TextField(blank=True, default="")

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=["state"], condition=models.Q(state="running"), name="one_shadow_runs"),
        )


class ShadowDecision(models.Model):
    """One recorded decision beside what the run's document decides (`policy.shadow.Verdict`). `key` of the decision
    that it is about; `case` while both are to be continued in the simulator, `own` and `other` the versions that it
    is continued by. `why` it has no price."""

    run = models.ForeignKey(ShadowRun, on_delete=models.CASCADE, related_name="decisions")
    decision_id = models.CharField(max_length=32)
    key = models.CharField(max_length=200)
    job_id = models.CharField(max_length=32, blank=True, default="")
    incident_id = models.CharField(max_length=32, blank=True, default="")
    at = models.DateTimeField()
    rule = models.CharField(max_length=60)
    agreement = models.CharField(max_length=12)
    live_choice = models.CharField(max_length=60, blank=True, default="")
    other_choice = models.CharField(max_length=60, blank=True, default="")
    case = models.JSONField(null=True)
    own = models.CharField(max_length=64, blank=True, default="")
    other = models.CharField(max_length=64, blank=True, default="")
    priced_by = models.CharField(max_length=12, blank=True, default="")
    live_gpu_s = models.FloatField(null=True)
    change_gpu_s = models.FloatField(null=True)
    spread_gpu_s = models.FloatField(default=0.0)
    why = models.TextField(blank=True, default="")

    class Meta:
        constraints = (models.UniqueConstraint(fields=["run", "decision_id", "key"], name="shadowed_once"),)
