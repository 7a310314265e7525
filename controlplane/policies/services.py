"""Storing policy documents: the only writer of this app's rows.

A version is appended, with who, when, why and what it replaced; who did not know the newest one is refused, so that two
editors never overwrite each other. Every change is audited, published, and makes the jobs that it concerns due.
"""

from dataclasses import dataclass
from functools import partial

from django.db import IntegrityError, transaction

from controlplane.access.actors import in_words
from controlplane.access.audit import audit
from controlplane.jobs.services import wake_job_later, wake_live_jobs
from controlplane.policies import selectors
from controlplane.policies.models import PolicyContent, PolicyVersion
from controlplane.policies.whose import Whose
from controlplane.policy.config import PolicyConfig
from controlplane.policy.document import Document, Ground, changes, checked, conflicts, plain
from controlplane.runtime import events
from controlplane.runtime.clock import now
from controlplane.runtime.errors import Conflict, Invalid
from controlplane.runtime.prepared import TEXT, Prepared

_KEPT: Prepared[str] = Prepared(
    lambda version: PolicyContent.objects.filter(version=version).values_list("version", flat=True), version=TEXT
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """`parent`: the newest version that its author knows, 0 for the defaults. `restores`: the version that is brought
    back; None: it is a new document."""

    parent: int
    reason: str
    actor: str
    restores: int | None = None


def put(whose: Whose, document: object, edit: Edit, ground: Ground) -> PolicyVersion:
    """Make it the policy of a scope. Raises Invalid with every fault, Conflict where another version came since, or
    nothing would change."""
    stored = plain(accepted(whose, document, ground, back=edit.restores is not None))
    with events.unit_of_work():
        newest = selectors.newest(whose.scope)
        number = newest.number if newest is not None else 0
        if number != edit.parent:
            raise Conflict(f"version {number} is the newest, not {edit.parent}: read it, and decide again")
        if stored == (newest.document if newest is not None else {}):
            raise Conflict("the policy says that already; nothing was stored")
        before = selectors.of(whose)
        after = selectors.config_in(whose, stored)
        keep(after)
        row = PolicyVersion(
            scope=whose.scope,
            project=whose.project,
            job=whose.job,
            number=number + 1,
            parent=number,
            restores=edit.restores,
            document=stored,
            version=after.version,
            at=now(),
            who=in_words(edit.actor),
            reason=edit.reason,
        )
        try:
            with transaction.atomic():
                row.save(force_insert=True)
        except IntegrityError as error:
            raise Conflict(f"somebody else stored version {number + 1}: read it, and decide again") from error
        _report(whose, row, before, after)
    return row


def rollback(whose: Whose, to: int, edit: Edit) -> PolicyVersion:
    """Bring an earlier version back, as a new one; 0: nothing is set. What was measured since does not stop it, nor
    what projects and jobs have set. Raises as `put`, and NotFound."""
    document = selectors.document(whose.scope, to)
    back = Edit(parent=edit.parent, reason=edit.reason, actor=edit.actor, restores=to)
    return put(whose, document, back, Ground())


def accepted(whose: Whose, document: object, ground: Ground, *, back: bool = False) -> Document:
    """The document. Raises Invalid with every fault. `back`: it was in force before, and narrower documents are not
    asked."""
    faults = checked(document, ground, selectors.above_of(whose))
    if not faults and not back and isinstance(document, dict):
        below = selectors.below(whose)
        faults = conflicts(selectors.of(whose), selectors.config_in(whose, document), below) if below else ()
    if faults or not isinstance(document, dict):
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        errors = [{"pointer": fault.pointer, "message": fault.message, "fix": fault.fix} for fault in faults]
        raise Invalid(f"{count}; the policy is as it was.", errors=errors)
    return document


def keep(config: PolicyConfig) -> None:
    """So that a decision's version leads to the policy that made it; once for each policy."""
    if _KEPT.first(version=config.version) is None:
        row = PolicyContent(version=config.version, content=config.content)
        PolicyContent.objects.bulk_create([row], ignore_conflicts=True)


def _report(whose: Whose, row: PolicyVersion, before: PolicyConfig, after: PolicyConfig) -> None:
    """To the audit log, to pages, and to the jobs that are decided by it from now on. What is told to pages without a
    job is read by everybody: a project's change is not."""
    found = changes(before, after)
    done = f"brought back version {row.restores} of" if row.restores is not None else "changed"
    named = ", ".join(change.field for change in found[:5]) or "nothing that is in force"
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    if whose.project is None:
        events.publish(
            "policy.changed",
            f"{row.who} {done} {whose.words}, version {row.number} now: {named}{more}. {row.reason}",
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
        transaction.on_commit(partial(wake_live_jobs, project=row.project_id), robust=True)
