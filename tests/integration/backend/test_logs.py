"""The traceback is one click from the incident, and each life of a rank has its own log."""

import pytest

from controlplane.jobs import selectors as jobs
from controlplane.jobs.models import Job, Rank
from controlplane.protocol import frames, rest
from controlplane.recovery import selectors
from controlplane.recovery.models import Incident
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime.errors import NotFound
from tests.integration.backend.builders import Fleet, live_ranks, make_fleet, ref_of, run_job

pytestmark = pytest.mark.django_db(transaction=True)
ROOT = 'Traceback (most recent call last):\n  File "train.py", line 7, in main\nValueError: sample 17 is empty\n'
CASCADE = "Traceback (most recent call last):\nRuntimeError: Connection closed by peer [127.0.0.1]:4410\n"


def crash(fleet: Fleet, rank: Rank, text: str, *, code: int = 1) -> None:
    fleet.tell(rank.node.name, frames.RankExited(ref_of(rank), code, None, False, text, None))


def crashed(fleet: Fleet) -> tuple[Job, list[Rank]]:
    """Both ranks of replica 1 ended: rank 0 lost its peer, whose own error is told second."""
    job = run_job(fleet)
    ranks = [row for row in live_ranks(job) if row.replica.index == 1]
    crash(fleet, ranks[0], CASCADE)
    crash(fleet, ranks[1], "".join(f"step {n}\n" for n in range(100)) + ROOT)
    reconcile_job(job.id)
    return job, ranks


def test_the_incident_holds_the_log_of_the_rank_that_failed_first_and_says_who_followed() -> None:
    job, ranks = crashed(make_fleet())
    detail = selectors.incident_detail(Incident.objects.get(job=job).id)
    first = detail["first_failure"]
    assert (first["replica"], first["rank"], first["node_name"]) == (1, ranks[1].rank, ranks[1].node.name)
    assert (first["error"], first["root"], first["followed"]) == ("ValueError: sample 17 is empty", True, 1)
    assert first["log"].endswith("ValueError: sample 17 is empty")
    assert first["truncated"]
    assert first["incarnation"] == ranks[1].replica.incarnation
    assert set(rest.IncidentDetail.__struct_fields__) >= set(detail), "everything shown has a type"


def test_each_life_of_a_rank_has_its_own_log_and_the_answer_says_whose_it_is() -> None:
    job, ranks = crashed(make_fleet())
    old = ranks[1].replica.incarnation
    newer = Rank.objects.filter(replica__index=1, replica__incarnation__gt=old, rank=ranks[1].rank).first()
    assert newer is not None, "the replica has a new life"
    life = newer.replica.incarnation

    def log(incarnation: int | None = None) -> dict[str, object]:
        rank = jobs.log_rank(job, replica=1, rank=ranks[1].rank, incarnation=incarnation)
        return selectors.log_of(job.id, rank, tail=2)

    assert (log(old)["source"], log(old)["incarnation"]) == ("exit", old)
    assert str(log(old)["text"]).endswith("ValueError: sample 17 is empty")
    assert (log(life)["source"], log(life)["text"], log(life)["incarnation"]) == ("none", "", life)
    assert (log()["source"], log()["incarnation"]) == ("exit", old), "nothing named: the newest that was kept"
    with pytest.raises(NotFound, match="in incarnation 99"):
        log(99)


def test_a_living_ranks_log_is_what_a_look_read_last() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    rank = live_ranks(job)[0]
    for text, method in (("step 1", "file"), ("step 2\nstep 3", "file"), ("the process is gone", "none")):
        fleet.tell(rank.node.name, frames.StacksCollected(ref_of(rank), text, method, "", "log"))
    found = jobs.log_rank(job, replica=rank.replica.index, rank=rank.rank, incarnation=rank.replica.incarnation)
    told = selectors.log_of(job.id, found, tail=10)
    assert (told["source"], told["text"], told["truncated"]) == ("live", "step 2\nstep 3", False)
    assert told["at"] is not None


def test_stacks_are_told_in_groups_and_what_came_too_late_is_said() -> None:
    fleet = make_fleet()
    job, _ = crashed(fleet)
    incident = Incident.objects.get(job=job)
    assert selectors.incident_detail(incident.id)["stack_groups"] is None
    stack = '  File "/site-packages/torch/distributed/distributed_c10d.py", line 2 in all_reduce\n'
    survivors = [row for row in live_ranks(job) if row.replica.index == 0]
    for rank, text, method in ((survivors[0], stack, "faulthandler"), (survivors[1], "the process is gone", "none")):
        fleet.tell(rank.node.name, frames.StacksCollected(ref_of(rank), text, method, "", "stacks"))
    told = selectors.incident_detail(incident.id)["stack_groups"]
    assert told["sentence"] == "1 in all_reduce, 1 without a stack"
    assert (told["ranks"], told["late"]) == (2, 1)
    assert told["note"] == "Taken from 1 of 2 ranks while they lived; for 1 it was too late: not taken."
