"""The disruption budget over rows: acts are counted as they are carried out, the fleet's pass opens a breaker, which
holds what is not proved until a person closes it, and a closing is where counting begins again."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.access.models import AuditEntry
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job
from controlplane.policies import selectors, services
from controlplane.policies.services import Edit
from controlplane.policies.whose import FLEETS
from controlplane.policy.disruption import is_held
from controlplane.policy.disruption_counts import Act as Done
from controlplane.policy.disruption_counts import ActKind
from controlplane.policy.document import Ground
from controlplane.protocol import frames
from controlplane.protocol.states import Phase, Section
from controlplane.recovery import breaker_rows, disruption, fleet_pass, gauges, health_gate
from controlplane.recovery.disruption_models import Act, Breaker
from controlplane.recovery.load import load_snapshot
from controlplane.recovery.models import Decision, Signal
from controlplane.recovery.present_breakers import breaker_summaries, breaker_summary
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime.clock import ago
from controlplane.runtime.errors import Conflict, NotFound
from controlplane.runtime.models import Event
from tests.integration.backend.builders import Fleet, live_ranks, make_fleet, ref_of, run_job

pytestmark = pytest.mark.django_db
EVICT = Done(kind=ActKind.EVICT, segments=("rack-1", "rack-2"))


def policy(**fields: object) -> None:
    services.put(FLEETS, fields, Edit(parent=0, reason="a test", actor="user:ada"), Ground())


def held(job: Job, *node_ids: str) -> bool:
    return is_held(load_snapshot(Job.objects.get(pk=job.pk)), selectors.of_fleet(), node_ids)


@pytest.fixture
def job() -> Job:
    return run_job(make_fleet(4))


def test_an_act_in_two_failure_domains_counts_once_in_the_fleet_and_once_in_each(job: Job) -> None:
    breaker_rows.note((EVICT, Done(kind=ActKind.CORDON)), "dec_1")
    fact = disruption.counted()
    assert fact.acts == {"cordon": 1, "evict": 1}
    assert fact.of_segments == {"rack-1": {"evict": 1}, "rack-2": {"evict": 1}}
    Act.objects.update(at=ago(3700.0))
    assert disruption.counted().acts == {}, "an hour later nothing of it"
    assert (breaker_rows.forget(7200.0), breaker_rows.forget(3600.0), Act.objects.count()) == (0, 3, 0)


def test_a_cap_that_is_met_opens_one_breaker_which_stays_until_a_person_closes_it(job: Job) -> None:
    policy(max_evictions=2, max_evictions_of_segment=2)
    breaker_rows.note((EVICT, EVICT), "dec_1")
    assert held(job), "before anybody has opened one: the cap is met"
    fleet_pass.reconcile_fleet()
    fleet_pass.reconcile_fleet()
    row = Breaker.objects.get(segment="")
    assert (row.code, row.closed_at) == ("evict", None) and "max_evictions" in row.reason
    assert {each.segment for each in Breaker.objects.all()} == {"", "rack-1", "rack-2"}
    assert Decision.objects.get(pk=row.decision_id).evidence["acts_evict"] == 2
    assert Event.objects.filter(kind="breaker.opened").count() == 3
    Act.objects.update(at=ago(7200.0))
    fleet_pass.reconcile_fleet()
    assert held(job), "the acts are long over, and nobody has looked"
    assert gauges.breaker()[gauges.OPEN] == 1.0

    with pytest.raises(NotFound):
        breaker_rows.close("brk_none", actor="user:ada", reason="r")
    for each in Breaker.objects.all():
        breaker_rows.close(each.id, actor="user:ada", reason="the switch was replaced")
    assert not held(job) and gauges.breaker()[gauges.OPEN] == 0.0
    assert AuditEntry.objects.filter(action="breaker.close", actor="user:ada").count() == 3
    with pytest.raises(Conflict, match="user:ada closed it already"):
        breaker_rows.close(row.id, actor="user:bo", reason="r")


def test_the_same_acts_do_not_open_it_again_and_new_ones_do(job: Job) -> None:
    policy(max_evictions=2, max_evictions_of_segment=2)
    breaker_rows.note((EVICT, EVICT), "dec_1")
    fleet_pass.reconcile_fleet()
    for each in Breaker.objects.all():
        breaker_rows.close(each.id, actor="user:ada", reason="r")
    fleet_pass.reconcile_fleet()
    assert not Breaker.objects.filter(closed_at=None).exists() and not held(job)
    breaker_rows.note((Done(kind=ActKind.EVICT), Done(kind=ActKind.EVICT)), "dec_2")
    fleet_pass.reconcile_fleet()
    assert Breaker.objects.filter(closed_at=None).count() == 1 and held(job)


def test_a_failure_domains_breaker_holds_what_touches_it_and_nothing_else(job: Job) -> None:
    policy(max_cordons_of_segment=1)
    first, second = Node.objects.order_by("name")[:2]
    Node.objects.filter(pk=first.pk).update(segment="rack-1")
    Node.objects.filter(pk=second.pk).update(segment="rack-2")
    breaker_rows.note((Done(kind=ActKind.CORDON, segments=("rack-1",)),), "dec_1")
    fleet_pass.reconcile_fleet()
    assert list(Breaker.objects.values_list("segment", "code")) == [("rack-1", "cordon")]
    assert held(job, first.id) and not held(job, second.id) and not held(job)


def test_what_waits_for_a_breaker_is_what_it_holds_also_from_before_it_was_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health_gate, "is_blind", lambda: False)
    fleet = make_fleet(4)
    job = run_job(fleet)
    policy(max_evictions=1, max_evictions_of_segment=1)
    breaker_rows.note((Done(kind=ActKind.EVICT, segments=("rack-9",)),), "dec_1")
    rank = live_ranks(job)[0]
    late = frames.RankOverdue(ref_of(rank), Section.STEP, Phase.COMPUTE, 1, 70.0, 60.0, 0.0)
    fleet.tell(rank.node.name, late)
    reconcile_job(job.id)
    (held_one,) = Decision.objects.filter(choice="hold")
    assert held_one.evidence["held_by"] == "evict"
    fleet_pass.reconcile_fleet()
    shown = {row.segment: breaker_summary(row) for row in Breaker.objects.all()}
    assert {name: (one["held_jobs"], one["held_gpus"]) for name, one in shown.items()} == {
        "": (1, len(live_ranks(job))),
        "rack-9": (0, 0),
    }


def test_a_failure_domain_that_is_named_like_a_number_is_found_and_each_job_is_read_once(
    job: Job, django_assert_num_queries: Callable[[int], AbstractContextManager[CaptureQueriesContext]]
) -> None:
    fields: dict[str, Any] = {
        "job": job, "rule": "replica_failure", "choice": "hold", "policy_version": "1", "snapshot": b"",
        "at": ago(10.0), "reason_code": "r", "sentence": "s",
    }  # fmt: skip
    for number, segment in enumerate(("12", "12", "12", "true", "rack-1", "", "other")):
        Decision.objects.create(id=f"dec_{number}", key=f"k{number}", evidence={"segment": segment}, **fields)
    Decision.objects.create(id="dec_old", key="old", evidence={"segment": "13"}, **(fields | {"at": ago(9000.0)}))
    rows = []
    for segment, closed_s in (("12", None), ("true", None), ("rack-1", None), ("", None), ("13", None), ("12", 20.0)):
        closed_at = None if closed_s is None else ago(closed_s)
        rows.append(
            Breaker.objects.create(
                id=f"brk_{len(rows)}",
                code="evict",
                segment=segment,
                reason="r",
                opened_at=ago(60.0),
                closed_at=closed_at,
            )
        )
    with django_assert_num_queries(2) as asked:
        shown = breaker_summaries(rows)
    assert [each["held_jobs"] for each in shown] == [1, 1, 1, 1, 0, 0]
    with connection.cursor() as cursor:
        cursor.execute(asked.captured_queries[0]["sql"])
        assert len(cursor.fetchall()) == 4, "of three decisions in one place one row"


def silent(job: Job, fleet: Fleet) -> None:
    for name, node in fleet.nodes.items():
        Signal.objects.create(
            id=f"sig_{name}", key=f"node_silent:{name}", kind="node_silent", job=job, node=node, value=3.0,
            threshold=2.0, seen_at=ago(1.0),
        )  # fmt: skip


def test_what_a_correlated_failure_opened_stands_while_its_findings_do_and_closes_by_itself_with_them() -> None:
    fleet = make_fleet(4)
    job = run_job(fleet)
    policy(correlated_min_devices=1)
    silent(job, fleet)
    fleet_pass.reconcile_fleet()
    assert Breaker.objects.get().code == "correlated"
    Signal.objects.update(seen_at=ago(90.0))
    Breaker.objects.update(opened_at=ago(89.0))
    fleet_pass.reconcile_fleet()
    assert held(job), "a minute later they are as silent as before"
    Signal.objects.update(settled_at=ago(0.0))
    fleet_pass.reconcile_fleet()
    row = Breaker.objects.get()
    assert row.closed_by == "policy" and not held(job)


def test_closing_it_lets_automation_act_on_the_findings_that_opened_it() -> None:
    fleet = make_fleet(4)
    job = run_job(fleet)
    policy(correlated_min_devices=1)
    silent(job, fleet)
    fleet_pass.reconcile_fleet()
    assert held(job)
    breaker_rows.close(Breaker.objects.get().id, actor="user:ada", reason="they burnt")
    fleet_pass.reconcile_fleet()
    assert not held(job) and not Breaker.objects.filter(closed_at=None).exists()


def test_who_comes_second_under_the_lock_is_refused_what_the_first_has_used_up(job: Job) -> None:
    policy(max_evictions=1, max_evictions_of_segment=1)
    decision = fleet_pass.plan.Decision(
        rule="replica_failure", choice="evict", reason_code="hang", sentence="s", key="k", actions=(), acts=(EVICT,)
    )
    assert disruption.guarded([decision])
    disruption.check(decision, selectors.of_fleet())
    breaker_rows.note(decision.acts, "dec_1")
    with pytest.raises(Conflict, match="max_evictions"):
        disruption.check(decision, selectors.of_fleet())
    proved = fleet_pass.plan.Decision(
        rule="replica_failure", choice="evict", reason_code="exited", sentence="s", key="k", actions=(),
        acts=(Done(kind=ActKind.EVICT, proved=True),),
    )  # fmt: skip
    assert not disruption.guarded([proved])
    disruption.check(proved, selectors.of_fleet())
    assert timedelta(0) <= Act.objects.latest("id").at - ago(60.0)


def test_the_cap_of_a_minute_is_counted_again_under_the_lock_too(job: Job) -> None:
    policy(max_acts=1)
    decision = fleet_pass.plan.Decision(
        rule="replica_failure", choice="evict", reason_code="hang", sentence="s", key="k", actions=(), acts=(EVICT,)
    )
    disruption.check(decision, selectors.of_fleet())
    Decision.objects.create(
        job=job, rule="replica_failure", choice="evict", reason_code="hang", sentence="s", key="other", applied=True,
        at=ago(1.0), policy_version="", snapshot=b"",
    )  # fmt: skip
    with pytest.raises(Conflict, match="max_acts"):
        disruption.check(decision, selectors.of_fleet())
    save = fleet_pass.plan.Decision(
        rule="device_risk", choice="save", reason_code="risk", sentence="s", key="k", actions=(),
        acts=(Done(kind=ActKind.SAVE),),
    )  # fmt: skip
    disruption.check(save, selectors.of_fleet())
