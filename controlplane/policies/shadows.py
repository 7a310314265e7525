"""Documents that run beside the live policy: the only writer of their rows.

One runs at a time. It acts on nothing: a promotion appends a version as any change does (`services.put`), and the
document before it runs on as its watch; what falls back is brought back as by a person (`services.rollback`).
"""

from collections.abc import Iterable, Mapping
from datetime import timedelta

import msgspec
from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from controlplane.access.actors import in_words
from controlplane.access.audit import audit
from controlplane.policies import selectors, services
from controlplane.policies.models import FLEET, RunRole, RunState, ShadowDecision, ShadowRun
from controlplane.policies.services import Edit
from controlplane.policies.whose import FLEETS
from controlplane.policy.document import Ground, config_of, plain
from controlplane.policy.shadow import Bar
from controlplane.runtime import events
from controlplane.runtime.clock import now
from controlplane.runtime.errors import Conflict, NotFound

BY_ITSELF = "policy:watch"


def running() -> ShadowRun | None:
    """The one that runs now."""
    return ShadowRun.objects.filter(state=RunState.RUNNING).first()


def newest() -> ShadowRun | None:
    """The one that runs, else the one that ended last."""
    return running() or ShadowRun.objects.order_by("-pk").first()


def one(run_id: int) -> ShadowRun:
    """Raises NotFound."""
    found = ShadowRun.objects.filter(pk=run_id).first()
    if found is None:
        raise NotFound(f"there is no shadow {run_id}")
    return found


def runs() -> QuerySet[ShadowRun]:
    """Newest first."""
    return ShadowRun.objects.order_by("-pk")


def bar_of(run: ShadowRun) -> Bar:
    """What it has to reach."""
    return msgspec.convert(run.bar, Bar)


def start(document: object, bar: Bar, *, ground: Ground, actor: str, reason: str, after: str) -> ShadowRun:
    """Let the document decide beside the live policy, from the decision behind the id `after` on. Raises Invalid with
    every fault, and Conflict where one runs already or it would decide as the live policy does."""
    stored = plain(services.accepted(FLEETS, document, ground))
    config = config_of(stored)
    live = selectors.newest(FLEET)
    if config == selectors.of_fleet():
        raise Conflict("this document puts in force what is in force; there is nothing to compare")
    with events.unit_of_work():
        services.keep(config)
        run = _begin(RunRole.CANDIDATE, stored, bar, actor, reason, live.number if live is not None else 0, after)
        _report(run, actor, f"{run.who} lets a policy run beside the live one, as shadow {run.pk}. {reason}", "start")
    return run


def stop(run: ShadowRun, *, actor: str, reason: str) -> ShadowRun:
    """End it; the live policy is as it was. Raises Conflict where it has ended."""
    with events.unit_of_work():
        _end(run, RunState.STOPPED, f"stopped by {in_words(actor)}: {reason}")
        _report(run, actor, f"{in_words(actor)} stopped shadow {run.pk}. {reason}", "stop", reason=reason)
    return run


def promote(run: ShadowRun, edit: Edit, *, ground: Ground, below: tuple[str, ...], after: str) -> ShadowRun:
    """Make its document the policy, and let the one before it watch. Raises Conflict below the bar, with the reasons,
    and where the live policy has changed since the run began."""
    if run.state != RunState.RUNNING or run.role != RunRole.CANDIDATE:
        raise Conflict(f"shadow {run.pk} is no candidate that runs: it is a {run.role} that is {run.state}")
    if below:
        errors = [{"pointer": "/run", "message": reason, "fix": ""} for reason in below]
        raise Conflict(f"below the bar: {'; '.join(below)}", errors=errors)
    live = selectors.newest(FLEET)
    if (live.number if live is not None else 0) != run.live_number:
        raise Conflict(
            f"it was compared with version {run.live_number}, which is not in force any more: start it again"
        )
    before = selectors.document(FLEET, run.live_number)
    with events.unit_of_work():
        row = services.put(FLEETS, run.document, edit, ground)
        _end(run, RunState.PROMOTED, f"promoted by {row.who} as version {row.number}: {edit.reason}")
        bar, why = bar_of(run), f"watches version {row.number}, which shadow {run.pk} became"
        watch = _begin(RunRole.WATCH, before, bar, edit.actor, why, row.number, after)
        sentence = (
            f"{row.who} promoted shadow {run.pk}: version {row.number} is in force, and the one before it watches."
        )
        _report(run, edit.actor, sentence, "promote", reason=edit.reason)
    return watch


def fall_back(run: ShadowRun, why: str) -> None:
    """The promoted policy did worse than the one before it: that one is in force again, by itself."""
    to = selectors.version(FLEET, run.live_number).parent
    with events.unit_of_work():
        _end(run, RunState.FELL_BACK, why)
        services.rollback(
            FLEETS, to, Edit(parent=run.live_number, reason=f"it fell back by itself: {why}", actor=BY_ITSELF)
        )
        sentence = f"The policy fell back from version {run.live_number} to version {to} by itself: {why}."
        _report(run, BY_ITSELF, sentence, "fall_back")


def finish(run: ShadowRun, state: RunState, why: str) -> None:
    """A watch that has seen enough, or that has nothing to watch any more."""
    with events.unit_of_work():
        _end(run, state, why)
        _report(run, BY_ITSELF, f"Shadow {run.pk} ended: {why}.", "end")


def add(run: ShadowRun, rows: Iterable[ShadowDecision], *, after: str) -> None:
    """What was compared, and up to which decision; once, however often."""
    with transaction.atomic():
        ShadowDecision.objects.bulk_create(rows, ignore_conflicts=True)
        ShadowRun.objects.filter(pk=run.pk, after__lt=after).update(after=after)


def forget(older_s: float) -> int:
    """What runs that ended so long ago compared; their own rows stay."""
    before = now() - timedelta(seconds=older_s)
    return ShadowDecision.objects.filter(run__ended_at__lt=before).delete()[0]


def price(row: ShadowDecision, values: Mapping[str, object]) -> None:
    """What continuing it came to; once."""
    ShadowDecision.objects.filter(pk=row.pk, priced_by="", case__isnull=False).update(**values, case=None)


def observe(run: ShadowRun, incident_id: str, live_gpu_s: float) -> None:
    """What an incident really cost, beside each decision of it."""
    rows = ShadowDecision.objects.filter(run=run, incident_id=incident_id, live_gpu_s__isnull=True)
    rows.update(live_gpu_s=live_gpu_s)


def _begin(
    role: RunRole, document: object, bar: Bar, actor: str, reason: str, live_number: int, after: str
) -> ShadowRun:
    assert isinstance(document, dict), "checked before"
    run = ShadowRun(
        role=role,
        document=document,
        version=config_of(document).version,
        live_number=live_number,
        bar=msgspec.to_builtins(bar),
        after=after,
        who=in_words(actor),
        reason=reason,
        started_at=now(),
    )
    try:
        with transaction.atomic():
            run.save(force_insert=True)
    except IntegrityError as error:
        raise Conflict("a shadow runs already: stop it first") from error
    return run


def _end(run: ShadowRun, state: RunState, why: str) -> None:
    """Raises Conflict where it has ended."""
    at = now()
    moved = ShadowRun.objects.filter(pk=run.pk, state=RunState.RUNNING).update(state=state, ended_at=at, ended_why=why)
    if not moved:
        raise Conflict(f"shadow {run.pk} does not run any more")
    run.state, run.ended_at, run.ended_why = state, at, why


def _report(run: ShadowRun, actor: str, sentence: str, act: str, *, reason: str = "") -> None:
    """`reason`: a person's own; without one why the run ended, or was begun."""
    events.publish("policy.shadow", sentence, entity="policy", entity_id=FLEET, data={"shadow": run.pk})
    audit(actor, f"policy.shadow.{act}", FLEET, reason=reason or run.ended_why or run.reason, data={"shadow": run.pk})
