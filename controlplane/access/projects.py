"""Projects: made, changed, joined and left. The only writer of their rows; each change is an audit row.

Whether somebody may do it is asked by the API before (`access.rights`): an administrator of the fleet makes projects
and sets quotas, an administrator of a project says who is in it.
"""

import re
from collections.abc import Mapping
from typing import Any

from django.contrib.auth import get_user_model
from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from controlplane.access.actors import in_words
from controlplane.access.audit import audit
from controlplane.access.project_models import (
    MAX_GPUS,
    MAX_PRIORITY,
    MAX_WEIGHT,
    NAME_FIX,
    NAME_PATTERN,
    Membership,
    Project,
    Role,
    Visibility,
)
from controlplane.runtime.errors import Conflict, Invalid, NotFound
from controlplane.runtime.locks import lock_row

SETTINGS = (
    "description", "quota_gpus", "borrow_limit_gpus", "lend_limit_gpus", "weight", "max_priority", "visibility",
)  # fmt: skip
MAX_PROJECTS = 10_000
MAX_MEMBERS = 10_000
_RANGES = {
    "quota_gpus": (0, MAX_GPUS),
    "borrow_limit_gpus": (0, MAX_GPUS),
    "lend_limit_gpus": (0, MAX_GPUS),
    "weight": (1, MAX_WEIGHT),
    "max_priority": (0, MAX_PRIORITY),
}


def all_projects() -> QuerySet[Project]:
    """By name. What the queue plans with: `quota_gpus`, `borrow_limit_gpus`, `lend_limit_gpus`, `weight`."""
    return Project.objects.order_by("name")


def project(name: str) -> Project:
    """Raises NotFound."""
    row = Project.objects.filter(pk=name).first()
    if row is None:
        raise NotFound(f"no project {name!r}")
    return row


def members(row: Project) -> QuerySet[Membership]:
    """By the names of the accounts."""
    return row.memberships.select_related("account").order_by("account__username")


@transaction.atomic
def create(name: str, settings: Mapping[str, Any], *, reason: str, actor: str, request_id: str = "") -> Project:
    """A project with these of its `SETTINGS`. Raises Invalid, Conflict where the name is taken."""
    if not re.match(NAME_PATTERN, name):
        message = f"{name!r} is no name of a project"
        raise Invalid(message, errors=[{"pointer": "/name", "message": message, "fix": NAME_FIX}])
    row = Project(name=name, created_by=in_words(actor))
    _set(row, settings)
    if Project.objects.count() >= MAX_PROJECTS:
        raise Conflict(f"there are {MAX_PROJECTS} projects, and no more can be made")
    try:
        with transaction.atomic():
            row.save(force_insert=True)
    except IntegrityError as error:
        raise Conflict(f"there is a project {name!r} already; change it with `holdfast project set {name}`") from error
    audit(actor, "project.create", name, reason=reason, request_id=request_id, after=settings_of(row))
    return row


@transaction.atomic
def change(name: str, settings: Mapping[str, Any], *, reason: str, actor: str, request_id: str = "") -> Project:
    """Give these of its `SETTINGS` other values. Jobs that are submitted already keep their priority. Raises Invalid,
    NotFound."""
    row = _locked(name)
    before = settings_of(row)
    _set(row, settings)
    row.save()
    audit(actor, "project.set", name, reason=reason, request_id=request_id, before=before, after=settings_of(row))
    return row


@transaction.atomic
def set_member(name: str, account: str, role: str, *, reason: str, actor: str, request_id: str = "") -> Membership:
    """From now on the account is this in the project. Raises NotFound, Conflict where there are too many members."""
    row, user = _locked(name), _account(account)
    found = Membership.objects.filter(project=row, account=user).first()
    if found is None and row.memberships.count() >= MAX_MEMBERS:
        raise Conflict(f"the project {name} has {MAX_MEMBERS} members, and takes no more")
    before = None if found is None else found.role
    member = found or Membership(project=row, account=user)
    member.role = Role(role)
    member.save()
    audit(
        actor, "project.set_member", name, reason=reason, request_id=request_id,
        before={"account": account, "role": before}, after={"account": account, "role": member.role},
    )  # fmt: skip
    return member


@transaction.atomic
def remove_member(name: str, account: str, *, reason: str, actor: str, request_id: str = "") -> None:
    """The account is no member any more; its open streams lose the project within seconds. Raises NotFound."""
    row = _locked(name)
    member = row.memberships.filter(account__username=account).first()
    if member is None:
        raise NotFound(f"{account!r} is no member of the project {name}")
    audit(
        actor, "project.remove_member", name, reason=reason, request_id=request_id,
        before={"account": account, "role": member.role}, after={"account": account, "role": None},
    )  # fmt: skip
    member.delete()


def settings_of(row: Project) -> dict[str, Any]:
    """Its `SETTINGS` by name."""
    return {name: getattr(row, name) for name in SETTINGS}


def check_priority(name: str, priority: int) -> None:
    """Whether a job of this priority may be submitted to the project. Raises Invalid with the reason where there is no
    such project or the priority is above its maximum."""
    most = Project.objects.filter(pk=name).values_list("max_priority", flat=True).first()
    if most is None:
        raise Invalid(f"no project {name!r}", errors=[unknown_project(name)])
    if priority > most:
        message = f"priority {priority} is above the maximum of the project {name}, which is {most}"
        fix = f"name a priority of {most} or less in spec.scheduling.priority, or ask an administrator to raise it"
        raise Invalid(message, errors=[{"pointer": "/spec/scheduling/priority", "message": message, "fix": fix}])


def unknown_project(name: str, pointer: str = "/metadata/project") -> dict[str, str]:
    """The fault of a name that is no project, or none that whoever asks may know of."""
    fix = "`holdfast project ls` names those that you see; an administrator makes one with `holdfast project create`"
    return {"pointer": pointer, "message": f"no project {name!r}", "fix": fix}


def _locked(name: str) -> Project:
    row = lock_row(Project, name)
    if row is None:
        raise NotFound(f"no project {name!r}")
    return row


def _account(name: str) -> Any:
    user = get_user_model().objects.filter(username=name, is_active=True).first()
    if user is None:
        raise NotFound(f"no account {name!r}")
    return user


def _set(row: Project, settings: Mapping[str, Any]) -> None:
    """Raises Invalid for what is no setting, or beyond its range."""
    for name, value in settings.items():
        message, fix = _fault(name, value)
        if message:
            raise Invalid(message, errors=[{"pointer": f"/{name}", "message": message, "fix": fix}])
        setattr(row, name, value)
    if row.quota_gpus is not None and row.lend_limit_gpus is not None and row.lend_limit_gpus > row.quota_gpus:
        message = f"it lends {row.lend_limit_gpus} of a quota of {row.quota_gpus} GPUs"
        fix = f"name at most {row.quota_gpus}, or null to lend all that it does not use"
        raise Invalid(message, errors=[{"pointer": "/lend_limit_gpus", "message": message, "fix": fix}])


def _fault(name: str, value: Any) -> tuple[str, str]:
    """(what is wrong with the value of a setting, how to mend it); ("", "") for nothing."""
    if name not in SETTINGS:
        return f"{name!r} is no setting of a project", f"use {', '.join(SETTINGS)}"
    if name == "visibility":
        return ("", "") if value in Visibility.values else (f"{value!r} is none", f"use {', '.join(Visibility.values)}")
    if name in _RANGES:
        low, high = _RANGES[name]
        if value is None and name.endswith("_gpus"):
            return "", ""
        fits = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        return ("", "") if fits else (f"{name} is {value!r}", f"use a whole number from {low} to {high}")
    return "", ""
