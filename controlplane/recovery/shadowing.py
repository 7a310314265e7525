"""The shadow's work, beside the live path: compare what was recorded, price it, and hold a promoted policy to its bar.

Called by a periodic task, never by a pass. Each step takes what the one before left as rows, is bounded by a number
and by `BUDGET_S`, and does nothing twice: rows are unique by decision, prices are compare-and-set. It reads the journal
as a dry run does (`recovery.replay`). Who simulates is given, since the simulator lies above this package.
"""

import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from controlplane.policies import selectors as policies
from controlplane.policies import shadows
from controlplane.policies.models import FLEET, RunRole, RunState, ShadowDecision, ShadowRun
from controlplane.policies.selectors import Candidate
from controlplane.policies.whose import FLEETS
from controlplane.policy.config import PolicyConfig
from controlplane.policy.plan import stored_key
from controlplane.policy.shadow import (
    Agreement,
    PricedBy,
    Verdict,
    agreement_of,
    dropped,
    expected_gpu_s,
    score_of,
    watched_enough,
)
from controlplane.protocol.ids import make_id
from controlplane.protocol.ledger import CauseKind, TimeClass
from controlplane.protocol.rest.policy import ReplayCase
from controlplane.protocol.rest.shadow import ShadowScore
from controlplane.recovery import ledger_pass, ledger_view
from controlplane.recovery.ledger_load import Scope
from controlplane.recovery.models import Incident
from controlplane.recovery.replay import Differs, Page, Row, replay
from controlplane.runtime.clock import now, now_s
from controlplane.runtime.errors import Conflict

BUDGET_S = 5.0
A_PASS = 200
"""Decisions compared at a time."""
SETTLED_S = 10.0
"""By then every transaction that took an earlier id has ended, so that none is passed over."""
DAY_S = 86_400.0
BEFORE_S = 6 * 3600.0
"""Work that a restart lost was trained at most so long before its incident opened."""
AFTER_S = 600.0
"""What an incident leaves behind is counted for so long after training is back."""
LOSSES = frozenset({TimeClass.DEGRADED, TimeClass.STALL, TimeClass.RECOVERY, TimeClass.LOST_WORK, TimeClass.DOWN})

FOLLOWS = "it follows from a decision of its incident that was continued"

CarryOn = Callable[[ReplayCase, PolicyConfig, PolicyConfig, Callable[[], bool]], "tuple[float, float] | str"]
"""GPU-seconds that the other policy wastes more in the case, with the deviation; or why that cannot be told."""


def newest_id() -> str:
    """Of the decision behind which a run begins that is started now."""
    return make_id("dec", int(now_s() * 1000.0), bytes(10))


def work(carry_on: CarryOn) -> None:
    """One turn of the task."""
    run = shadows.running()
    if run is None:
        return
    until_s = time.monotonic() + BUDGET_S
    compare(run)
    observe(run)
    while time.monotonic() < until_s and price_one(run, carry_on, lambda: time.monotonic() < until_s):
        pass
    if run.role == RunRole.WATCH:
        # Another worker was first, or somebody changes the policy now: the next turn sees what came of it.
        with suppress(Conflict):
            hold_to_bar(run)


def compare(run: ShadowRun) -> None:
    """Decide what was recorded since by the run's document, and keep a row of each."""
    settled = make_id("dec", int((now_s() - SETTLED_S) * 1000.0), bytes(10))
    page = replay(since_s=DAY_S, after=run.after, before=settled, limit=A_PASS, candidate=_candidate(run))
    shadows.add(run, _rows(run, page), after=page.last or run.after)
    run.refresh_from_db(fields=["after"])


def _candidate(run: ShadowRun) -> Candidate:
    return policies.candidate(FLEETS, run.document)


def _rows(run: ShadowRun, page: Page) -> list[ShadowDecision]:
    differing = {each.decision_id: each for each in page.differs if each.change and each.change.before is not None}
    added = [each for each in page.differs if each.change and each.change.before is None]
    by_id = {row["id"]: row for row in page.rows}
    found = [_row(run, row, differing.get(row["id"])) for row in page.rows]
    return found + [_row(run, by_id[each.decision_id], each) for each in added]


def _row(run: ShadowRun, row: Row, differs: Differs | None) -> ShadowDecision:
    change = differs.change if differs is not None else None
    named = change.before or change.after if change is not None else None
    rule = named.rule if named is not None else row["rule"]
    agreement = agreement_of(change, rule=rule)
    kept = ShadowDecision(
        run=run,
        decision_id=row["id"],
        key=stored_key(named.key) if named is not None else row["key"],
        job_id=row["job_id"] or "",
        incident_id=row["incident_id"] or "",
        at=row["at"],
        rule=rule,
        agreement=agreement,
        live_choice=change.before.choice if change and change.before else row["choice"] if change is None else "",
        other_choice=change.after.choice if change and change.after else row["choice"] if change is None else "",
        own=differs.own if differs is not None else "",
        other=differs.other if differs is not None else "",
    )
    if agreement is Agreement.ALIKE:
        kept.priced_by, kept.change_gpu_s = PricedBy.ALIKE, 0.0
    elif differs is not None and isinstance(differs.case, ReplayCase):
        kept.case = msgspec.to_builtins(differs.case)
    else:
        _expect(kept, expected_gpu_s(change, agreement), str(differs.case) if differs is not None else "")
    return kept


def _expect(row: ShadowDecision, change_gpu_s: float | None, why: str) -> None:
    row.change_gpu_s, row.why, row.case = change_gpu_s, why, None
    row.priced_by = PricedBy.NOTHING if change_gpu_s is None else PricedBy.EXPECTED


def price_one(run: ShadowRun, carry_on: CarryOn, step: Callable[[], bool]) -> bool:
    """Continue the oldest difference that waits for it. False: none does, or there was no time."""
    row = ShadowDecision.objects.filter(run=run, case__isnull=False, priced_by="").order_by("pk").first()
    if row is None or not step():
        return False
    same = ShadowDecision.objects.filter(run=run, incident_id=row.incident_id, priced_by=PricedBy.CONTINUED)
    if row.incident_id and same.exists():
        shadows.price(row, {"why": FOLLOWS})
        return True
    own, other = policies.by_version(row.own), policies.by_version(row.other) or _own_of(run, row)
    found: tuple[float, float] | str = "a policy that it is continued by is not kept"
    if own is not None and other is not None:
        found = carry_on(msgspec.convert(row.case, ReplayCase), own, other, step)
    values: dict[str, object]
    if isinstance(found, str):
        values = {"why": found}
    else:
        values = {"change_gpu_s": found[0], "spread_gpu_s": found[1], "priced_by": PricedBy.CONTINUED}
    shadows.price(row, values)
    return True


def _own_of(run: ShadowRun, row: ShadowDecision) -> PolicyConfig | None:
    """The candidate as a job's own document narrows it is kept nowhere."""
    config = _candidate(run)(row.job_id or None)
    return config if config.version == row.other else None


def observe(run: ShadowRun) -> None:
    """What the incidents really cost, from the ledger, once they are over and the ledger has come so far."""
    mark = ledger_pass.mark()
    open_rows = ShadowDecision.objects.filter(run=run, live_gpu_s__isnull=True).exclude(incident_id="")
    ids = open_rows.values_list("incident_id", flat=True).distinct()[:A_PASS]
    ended = [each for each in Incident.objects.filter(pk__in=list(ids)) if each.ended_at is not None]
    for incident in ended:
        until_s = (incident.ended_at or now()).timestamp() + AFTER_S
        if mark is not None and mark.judged_s >= until_s:
            shadows.observe(run, incident.id, cost_gpu_s(incident, until_s))


def cost_gpu_s(incident: Incident, until_s: float) -> float:
    """GPU-seconds of its job that the ledger puts down to it."""
    scope = Scope(job=incident.job_id or "")
    account = ledger_view.judged(scope, incident.opened_at.timestamp() - BEFORE_S, until_s)
    return sum(
        amount
        for key, amount in account.amounts.items()
        if key.of in LOSSES and (key.cause.kind, key.cause.id) == (CauseKind.INCIDENT, incident.id)
    )


def verdicts_of(run: ShadowRun) -> list[Verdict]:
    """All that was compared, oldest first; what waits for a price has none yet."""
    columns = ("rule", "agreement", "priced_by", "incident_id", "live_gpu_s", "change_gpu_s", "spread_gpu_s")
    rows = ShadowDecision.objects.filter(run=run).order_by("decision_id", "pk").values_list(*columns)
    return [
        Verdict(
            rule=rule,
            agreement=Agreement(agreement),
            by=PricedBy(by),
            incident=incident,
            live_gpu_s=live,
            change_gpu_s=change,
            spread_gpu_s=spread,
        )
        for rule, agreement, by, incident, live, change, spread in rows.iterator()
    ]


def days_of(run: ShadowRun) -> float:
    """How long it has run."""
    return ((run.ended_at or now()) - run.started_at).total_seconds() / DAY_S


def score(run: ShadowRun) -> ShadowScore:
    """Of all that was compared."""
    return score_of(verdicts_of(run), days=days_of(run))


def hold_to_bar(run: ShadowRun) -> None:
    """A watch: fall back where the one before was better, end where enough was seen or somebody has changed it."""
    live = policies.newest(FLEET)
    if live is None or live.number != run.live_number:
        shadows.finish(run, RunState.SUPERSEDED, f"version {run.live_number} is not in force any more")
        return
    found, bar = score(run), shadows.bar_of(run)
    if why := dropped(found, bar):
        shadows.fall_back(run, why)
    elif watched_enough(found, bar):
        shadows.finish(
            run, RunState.KEPT, f"version {run.live_number} stays: {found.decisions} decisions were compared"
        )
