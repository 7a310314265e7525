"""Storing policy documents: the only writer of this app's rows.

A version is appended, with who, when, why and what it replaced; who did not know the newest one is refused, so that two
editors never overwrite each other. Every change is audited, published, and makes the jobs that it concerns due.
"""

from dataclasses import dataclass

from django.db import IntegrityError, transaction

from controlplane.access.audit import audit
from controlplane.jobs.models import Job
from controlplane.jobs.services import wake_job_later, wake_live_jobs
from controlplane.policies import selectors
from controlplane.policies.models import FLEET, PolicyContent, PolicyVersion
from controlplane.policy.config import PolicyConfig
from controlplane.policy.document import Document, Ground, changes, checked, plain
from controlplane.runtime import events
from controlplane.runtime.clock import now
from controlplane.runtime.errors import Conflict, Invalid


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """`parent`: the newest version that its author knows, 0 for the defaults. `restores`: the version that is brought
    back; None: it is a new document."""

    parent: int
    reason: str
    actor: str
    restores: int | None = None


def put(job: Job | None, document: object, edit: Edit, ground: Ground) -> PolicyVersion:
    """Make it the policy of the job (None: of the fleet). Raises Invalid with every fault, Conflict where another
    version came since, or nothing would change."""
    stored = plain(accepted(job, document, ground))
    scope = job.pk if job is not None else FLEET
    with events.unit_of_work():
        newest = selectors.newest(scope)
        number = newest.number if newest is not None else 0
        if number != edit.parent:
            raise Conflict(f"version {number} is the newest, not {edit.parent}: read it, and decide again")
        if stored == (newest.document if newest is not None else {}):
            raise Conflict("the policy says that already; nothing was stored")
        before = selectors.of_job(scope) if job is not None else selectors.of_fleet()
        after = selectors.config_in(job, stored)
        keep(after)
        row = PolicyVersion(
            scope=scope,
            job=job,
            number=number + 1,
            parent=number,
            restores=edit.restores,
            document=stored,
            version=after.version,
            at=now(),
            who=edit.actor,
            reason=edit.reason,
        )
        try:
            with transaction.atomic():
                row.save(force_insert=True)
        except IntegrityError as error:
            raise Conflict(f"somebody else stored version {number + 1}: read it, and decide again") from error
        _report(row, before, after)
    return row


def rollback(job: Job | None, to: int, edit: Edit) -> PolicyVersion:
    """Bring an earlier version back, as a new one; 0: the defaults. What was measured since does not stop it. Raises
    as `put`, and NotFound."""
    document = selectors.document(job.pk if job is not None else FLEET, to)
    back = Edit(parent=edit.parent, reason=edit.reason, actor=edit.actor, restores=to)
    return put(job, document, back, Ground())


def accepted(job: Job | None, document: object, ground: Ground) -> Document:
    """The document. Raises Invalid with every fault."""
    faults = checked(document, ground, selectors.of_fleet() if job is not None else None)
    if faults or not isinstance(document, dict):
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        errors = [{"pointer": fault.pointer, "message": fault.message, "fix": fault.fix} for fault in faults]
        raise Invalid(f"{count}; the policy is as it was.", errors=errors)
    return document


def keep(config: PolicyConfig) -> None:
    """So that a decision's version leads to the policy that made it; once for each policy."""
    row = PolicyContent(version=config.version, content=config.content)
    PolicyContent.objects.bulk_create([row], ignore_conflicts=True)


def _report(row: PolicyVersion, before: PolicyConfig, after: PolicyConfig) -> None:
    """To the audit log, to pages, and to the jobs that are decided by it from now on."""
    found = changes(before, after)
    whose = f"the policy of {row.job.name}" if row.job is not None else "the fleet's policy"
    done = f"brought back version {row.restores} of" if row.restores is not None else "changed"
    named = ", ".join(change.field for change in found[:5]) or "nothing that is in force"
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    sentence = f"{row.who} {done} {whose}, version {row.number} now: {named}{more}. {row.reason}"
    events.publish(
        "policy.changed",
        sentence,
        job_id=row.job_id or "",
        entity="policy",
        entity_id=row.scope,
        data={"scope": row.scope, "number": row.number, "version": row.version},
    )
    audit(
        row.who,
        "policy.put" if row.restores is None else "policy.rollback",
        row.scope,
        reason=row.reason,
        data={"number": row.number, "parent": row.parent, "restores": row.restores, "version": row.version},
        before={change.field: change.before for change in found},
        after={change.field: change.after for change in found},
    )
    if row.job_id is not None:
        wake_job_later(row.job_id)
    else:
        transaction.on_commit(wake_live_jobs, robust=True)
