"""A policy beside the live one: compared with what was recorded, priced, promoted over a bar, and falling back.

Decisions are those that simulated worlds made (`recorded`): three times a node stands still for a while.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from controlplane.access.models import AuditEntry
from controlplane.policies import selectors, services, shadows
from controlplane.policies.models import RunRole, RunState, ShadowDecision, ShadowRun
from controlplane.policies.services import Edit
from controlplane.policies.whose import FLEETS
from controlplane.policy.config import PolicyConfig
from controlplane.policy.document import DEFAULT, Ground, config_of
from controlplane.policy.shadow import Agreement, Bar, PricedBy, below, matrix_of
from controlplane.protocol.ledger import CauseKind, TimeClass
from controlplane.protocol.rest.policy import ReplayCase
from controlplane.recovery import ledger_pass, ledger_view, shadow_view, shadowing
from controlplane.recovery.models import Decision, Incident
from controlplane.recovery.replay import replay
from controlplane.runtime.clock import ago, now, now_s
from controlplane.runtime.errors import Conflict, Invalid
from controlplane.runtime.models import Event
from controlplane.sentinel import tasks
from controlplane.simulator.continued import carried_on
from tests.integration.backend.recorded import keep, stills

pytestmark = pytest.mark.django_db(transaction=True)
SHORT = {"lease_s": 3}
ONE_ACT = {"max_acts": 1}
BAR = Bar(min_decisions=5, min_days=0.0)
Step = Callable[[], bool]


def continued(case: ReplayCase, own: PolicyConfig, other: PolicyConfig, step: Step) -> tuple[float, float] | str:
    """The simulator, with as many worlds as a test has time for."""
    found = carried_on(case, own, other, seeds=2)
    return found if isinstance(found, str) else (found.change_gpu_s, found.spread_gpu_s or 0.0)


def by(change_gpu_s: float) -> shadowing.CarryOn:
    """A simulator that always comes to this."""
    return lambda case, own, other, step: (change_gpu_s, 0.0)


def start(document: dict[str, Any], bar: Bar = BAR) -> ShadowRun:
    return shadows.start(document, bar, ground=Ground(), actor="user:ada", reason="a test", after="")


def promote(run: ShadowRun, *, parent: int = 0) -> ShadowRun:
    refused = below(shadowing.score(run), shadows.bar_of(run))
    edit = Edit(parent=parent, reason="it is better", actor="user:ada")
    return shadows.promote(run, edit, ground=Ground(), below=refused, after="")


def priced(run: ShadowRun, carry_on: shadowing.CarryOn = continued) -> ShadowRun:
    shadowing.compare(run)
    while shadowing.price_one(run, carry_on, lambda: True):
        pass
    return run


def test_a_lease_that_is_far_too_short_is_caught_by_the_dry_run_and_by_the_shadow() -> None:
    keep(stills(0), name="sim")
    page = replay(since_s=3600.0, candidate=selectors.candidate(FLEETS, SHORT))
    assert [each for each in page.differs if isinstance(each.case, ReplayCase)], "the dry run continues some"
    run = priced(start(SHORT))
    score = shadowing.score(run)
    assert score.change_gpu_s > 0.0 and score.continued > 0
    with pytest.raises(Conflict, match=r"below the bar: .*it would have wasted") as refused:
        promote(run)
    assert refused.value.errors and selectors.of_fleet() == DEFAULT


def test_a_cap_of_one_act_is_caught_as_it_would_hold_where_the_live_policy_acted() -> None:
    keep(stills(0, strikes_s=(120.0, 150.0)), name="sim")
    page = replay(since_s=3600.0, candidate=selectors.candidate(FLEETS, ONE_ACT))
    held = [each for each in page.differs if each.change and each.change.after and each.change.after.choice == "hold"]
    assert held, "the dry run says what would be held"
    run = priced(start(ONE_ACT))
    assert sum(row[Agreement.HOLDS] for row in matrix_of(shadowing.verdicts_of(run)).values()) > 0
    with pytest.raises(Conflict, match="have no price"):
        promote(run)


def test_a_policy_that_decides_alike_is_alike_everywhere_and_passes() -> None:
    keep(stills(0), name="sim")
    run = priced(start({"stop_grace_s": 11}))
    score = shadowing.score(run)
    assert (score.decisions, score.differing, score.change_gpu_s) == (Decision.objects.count(), 0, 0.0)
    watch = promote(run)
    assert (watch.role, watch.live_number, watch.document) == (RunRole.WATCH, 1, {})
    assert selectors.of_fleet().stop_grace_s == 11.0
    assert ShadowRun.objects.get(pk=run.pk).state == RunState.PROMOTED


def test_what_is_compared_again_changes_nothing_and_what_comes_later_is_added() -> None:
    keep(stills(0), name="sim")
    run = start(SHORT)
    shadowing.compare(run)
    known = list(ShadowDecision.objects.order_by("pk").values())
    assert known and run.after == Decision.objects.order_by("-pk").values_list("pk", flat=True)[0]
    shadowing.compare(run)
    ShadowRun.objects.update(after="")
    run.refresh_from_db()
    shadowing.compare(run)
    assert list(ShadowDecision.objects.order_by("pk").values()) == known
    keep(stills(0), name="other", age_s=700.0)
    shadowing.compare(run)
    assert ShadowDecision.objects.count() > len(known)


def test_a_decision_of_a_moment_ago_waits_until_no_earlier_one_can_come() -> None:
    keep(stills(0), name="sim", age_s=1.0)
    run = start(SHORT)
    shadowing.compare(run)
    assert ShadowDecision.objects.count() < Decision.objects.count()


def test_one_runs_at_a_time_and_it_has_to_differ() -> None:
    with pytest.raises(Conflict, match="nothing to compare"):
        start({})
    with pytest.raises(Invalid):
        start({"leese_s": 3})
    first = start(SHORT)
    with pytest.raises(Conflict, match="runs already"):
        start(ONE_ACT)
    shadows.stop(first, actor="user:ada", reason="enough")
    with pytest.raises(Conflict, match="does not run"):
        shadows.stop(first, actor="user:ada", reason="enough")
    assert start(ONE_ACT).pk != first.pk
    assert AuditEntry.objects.filter(action__startswith="policy.shadow.").count() == 3


def test_what_was_compared_with_another_policy_is_not_promoted() -> None:
    keep(stills(0), name="sim")
    run = priced(start({"stop_grace_s": 11}))
    services.put(FLEETS, {"max_acts": 9}, Edit(parent=0, reason="a test", actor="user:bob"), Ground())
    with pytest.raises(Conflict, match="not in force any more"):
        promote(run, parent=1)


def promoted() -> ShadowRun:
    """Version 1 is in force, and the defaults watch it; its decisions follow."""
    watch = promote(priced(start({"lease_s": 11}), by(-1.0)))
    keep(stills(0, lease_s=11.0), name="after", config=config_of({"lease_s": 11}), age_s=800.0)
    return watch


def test_a_promoted_policy_that_does_worse_falls_back_by_itself_with_the_reason() -> None:
    keep(stills(0), name="sim")
    watch = priced(promoted(), by(-500.0))
    shadowing.hold_to_bar(watch)
    assert selectors.of_fleet() == DEFAULT
    version = selectors.newest("fleet")
    assert version is not None
    assert (version.number, version.restores, version.who) == (2, 0, shadows.BY_ITSELF)
    assert "would have wasted" in version.reason
    ended = ShadowRun.objects.get(pk=watch.pk)
    assert (ended.state, shadows.running()) == (RunState.FELL_BACK, None) and ended.ended_why
    assert AuditEntry.objects.filter(action="policy.shadow.fall_back").count() == 1
    assert Event.objects.filter(kind="policy.shadow", sentence__contains="fell back").exists()


def test_a_promoted_policy_that_does_better_stays_and_its_watch_ends() -> None:
    keep(stills(0), name="sim")
    watch = priced(promoted(), by(+500.0))
    shadowing.hold_to_bar(watch)
    assert selectors.of_fleet().lease_s == 11.0
    assert ShadowRun.objects.get(pk=watch.pk).state == RunState.KEPT


def test_a_watch_ends_where_somebody_changed_the_policy_meanwhile() -> None:
    keep(stills(0), name="sim")
    watch = promoted()
    services.put(FLEETS, {"max_acts": 9}, Edit(parent=1, reason="a test", actor="user:bob"), Ground())
    shadowing.hold_to_bar(watch)
    assert ShadowRun.objects.get(pk=watch.pk).state == RunState.SUPERSEDED
    assert selectors.of_fleet().max_acts == 9, "nothing was brought back"


def test_a_case_that_comes_to_no_figure_has_the_reason() -> None:
    keep(stills(0), name="sim")
    run = priced(start(SHORT), lambda case, own, other, step: "never trains on")
    rows = ShadowDecision.objects.exclude(agreement=Agreement.ALIKE)
    assert rows and {(row.priced_by, row.change_gpu_s, row.why) for row in rows if row.rule == "leave_out"} == {
        (PricedBy.NOTHING, None, "never trains on")
    }
    assert shadowing.score(run).unpriced > 0


def test_what_really_happened_is_the_ledgers_word_once_it_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    keep(stills(0), name="sim")
    Incident.objects.update(recovered_at=ago(100.0))
    run = priced(start(SHORT), by(1.0))
    incident = Incident.objects.order_by("opened_at").first()
    assert incident is not None
    cause = type("Cause", (), {"kind": CauseKind.INCIDENT, "id": incident.id})
    other = type("Cause", (), {"kind": CauseKind.JOB, "id": incident.job_id})
    amounts = [(TimeClass.STALL, cause, 7.0), (TimeClass.LOST_WORK, cause, 5.0), (TimeClass.PRODUCTIVE, cause, 90.0)]
    amounts += [(TimeClass.STALL, other, 1000.0)]
    found = type("Account", (), {"amounts": {type("Key", (), {"of": of, "cause": c}): v for of, c, v in amounts}})
    monkeypatch.setattr(ledger_view, "judged", lambda *_: found)
    mark = type("Mark", (), {"judged_s": now_s() - 3600.0})
    monkeypatch.setattr(ledger_pass, "mark", lambda: mark)
    shadowing.observe(run)
    assert shadowing.score(run).live_gpu_s == 0.0, "the ledger has not come so far"
    mark.judged_s = now_s() + shadowing.AFTER_S
    shadowing.observe(run)
    assert shadowing.score(run).live_gpu_s == 12.0
    shown = {row["live_gpu_s"] for row in shadow_view.shadow(run)["newest"] if row["incident_id"] == incident.id}
    assert shown == {12.0}


def test_the_task_does_nothing_where_nothing_runs_and_all_of_it_where_something_does() -> None:
    tasks.shadow()
    keep(stills(0), name="sim")
    start({"stop_grace_s": 11})
    tasks.shadow()
    assert ShadowDecision.objects.count() == Decision.objects.count()


def test_what_was_compared_long_ago_is_forgotten_and_its_run_is_not() -> None:
    keep(stills(0), name="sim")
    run = priced(start(SHORT), by(1.0))
    shadows.forget(10.0)
    assert ShadowDecision.objects.exists(), "it runs"
    shadows.stop(run, actor="user:ada", reason="enough")
    ShadowRun.objects.update(ended_at=now() - timedelta(seconds=11))
    shadows.forget(10.0)
    assert not ShadowDecision.objects.exists() and ShadowRun.objects.count() == 1
