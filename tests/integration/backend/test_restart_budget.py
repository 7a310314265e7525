"""The restart ledger in rows: every restart is an entry, and a spent budget starts nothing."""

import msgspec
import pytest

from controlplane.protocol import frames, rest
from controlplane.protocol import spec as specs
from controlplane.recovery import ledger
from controlplane.recovery.reconcile import reconcile_job
from tests.integration.backend.builders import kill_rank, live_ranks, make_fleet, ref_of, run_job

pytestmark = pytest.mark.django_db


def test_every_restart_is_an_entry_of_the_ledger_and_the_page_shows_what_is_left() -> None:
    fleet = make_fleet()
    budget = specs.Budget(max_restarts=2, restarts_per_window=2)
    job = run_job(fleet, resiliency=specs.Resiliency(budget=budget))
    for _ in range(3):
        row = next(row for row in live_ranks(job) if row.replica.contributing)
        kill_rank(fleet, row)
        reconcile_job(job.id)
    told = msgspec.convert(ledger.job_budget(job), rest.Budget)
    assert (told.restarts_total, told.max_restarts, told.restarts_in_window) == (2, 2, 2)
    assert sum(entry.charged for entry in told.entries) == 2
    assert told.entries[0].sentence
    job.refresh_from_db()
    assert job.state == "failed"
    assert "2 restarts are all its budget allows" in job.state_reason


def test_restarts_after_the_programs_own_end_have_a_limit_of_their_own() -> None:
    """Killed from outside it is started again; ended by an exception a second time it is not."""
    fleet = make_fleet()
    job = run_job(fleet, resiliency=specs.Resiliency(budget=specs.Budget(program_restarts_per_window=1)))
    for code, number in ((None, 9), (70, None)):
        row = next(row for row in live_ranks(job) if row.replica.contributing)
        fleet.tell(row.node.name, frames.RankExited(ref_of(row), code, number, False))
        reconcile_job(job.id)
    told = msgspec.convert(ledger.job_budget(job), rest.Budget)
    assert (told.program_in_window, told.program_restarts_per_window, told.restarts_in_window) == (1, 1, 2)
    assert [entry.program for entry in told.entries if entry.charged] == [True, False]
    assert told.restarts_in_attempt == sum(entry.rung in ("rank", "replica") for entry in told.entries if entry.charged)
    row = next(row for row in live_ranks(job) if row.replica.contributing)
    kill_rank(fleet, row)
    reconcile_job(job.id)
    job.refresh_from_db()
    assert job.state == "failed" and "the program is at fault" in job.state_reason
