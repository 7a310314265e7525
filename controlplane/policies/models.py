"""Versions of policy documents, and every policy that a decision was made by. Rows are written once."""

from django.db import models

from controlplane.access.append_only import AppendOnly, AppendOnlyQuerySet
from controlplane.jobs.models import Job

FLEET = "fleet"
"""The scope that is no job's."""


class PolicyVersion(AppendOnly, models.Model):
    """One version of the document of a scope: `FLEET` or a job's id. `number` counts from 1 in its scope, `parent` is
    the one that it replaced (0: the defaults). `document`: the fields that somebody set (`policy.document`); `version`:
    the hash of the whole policy that it made when it was stored; `restores`: the version that was brought back."""

    scope = models.CharField(max_length=32)
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
