"""Projects, and who is what in them: rows that the queue, the rights of the API and the page read.

Written by `access.projects` alone. A job names its project in `spec.metadata.project` (`jobs.Job.project`, the same
name). A project is never deleted or renamed: its jobs, their audit rows and their ledger go on naming it.
"""

from django.core.validators import RegexValidator
from django.db import models

from controlplane.access.models import Scope

DEFAULT = "default"
"""The project of every job that names none; made by migration."""
MAX_GPUS = 1_000_000
MAX_WEIGHT = 1000
MAX_PRIORITY = 1000
NAME_PATTERN = r"^[a-z]([a-z0-9-]{0,61}[a-z0-9])?\Z"
NAME_FIX = "use 1 to 63 of a-z, 0-9 and '-', starting with a letter and not ending with '-'"


class Visibility(models.TextChoices):
    """Who reads a project without being a member of it. Administrators of the fleet read all of them."""

    PRIVATE = "private", "members alone"
    VISIBLE = "visible", "every signed-in account reads it"
    OPEN = "open", "every account may do in it what its scope says"


class Role(models.TextChoices):
    """What a member may do in a project; each includes the ones before it."""

    VIEWER = "viewer"
    SUBMITTER = "submitter"
    OPERATOR = "operator"
    ADMIN = "admin"


SCOPE_OF = {
    Role.VIEWER: Scope.READ,
    Role.SUBMITTER: Scope.SUBMIT,
    Role.OPERATOR: Scope.OPERATE,
    Role.ADMIN: Scope.ADMIN,
}
"""An operation needs a scope; a role in the job's project gives it for that project."""


class Project(models.Model):
    """`quota_gpus`: devices that are the project's own (None: it has no limit). Of what other projects leave unused it
    takes at most `borrow_limit_gpus` more (None: as many as are free); of its own, others may use at most
    `lend_limit_gpus` while it does not (None: all). `weight`: its part of what is lent, against the weights of other
    projects. No job of it is submitted with a higher priority than `max_priority`."""

    name = models.CharField(primary_key=True, max_length=63, validators=[RegexValidator(NAME_PATTERN, NAME_FIX)])
    description = models.CharField(max_length=200, blank=True, default="")
    quota_gpus = models.PositiveIntegerField(null=True)
    borrow_limit_gpus = models.PositiveIntegerField(null=True)
    lend_limit_gpus = models.PositiveIntegerField(null=True)
    weight = models.PositiveIntegerField(default=1)
    max_priority = models.PositiveIntegerField(default=MAX_PRIORITY)
    visibility = models.CharField(max_length=16, choices=Visibility.choices, default=Visibility.PRIVATE)
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.CharField(max_length=120, blank=True, default="")

    class Meta:
        constraints = [
            models.CheckConstraint(condition=models.Q(weight__gte=1), name="project_weight_positive"),
            models.CheckConstraint(condition=models.Q(max_priority__lte=MAX_PRIORITY), name="project_max_priority"),
        ]


class Membership(models.Model):
    """What one account is in one project."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="memberships")
    account = models.ForeignKey("auth.User", on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=16, choices=Role.choices)
    since = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "account"], name="membership_once")]
