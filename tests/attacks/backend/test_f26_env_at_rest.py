"""F26, I11: who reads the database reads no value of a job's `env`, and who writes there moves none."""

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
import zstandard
from django.core.management import CommandError, call_command
from django.db import connection
from pytest_django.fixtures import Settings

from controlplane.access.models import AuditEntry
from controlplane.dispatch import services as dispatch
from controlplane.dispatch import statements
from controlplane.dispatch.models import Command
from controlplane.jobs import environment
from controlplane.jobs.models import Job
from controlplane.jobs.services import submit_job
from controlplane.protocol.commands import StartRanks
from controlplane.protocol.signing import decode_statement
from controlplane.protocol.spec import Metadata
from controlplane.protocol.spec_lint import lint
from controlplane.recovery.answers import after_expiry
from controlplane.recovery.models import Decision, Signal
from controlplane.recovery.reconcile import reconcile_job
from controlplane.recovery.snapshots import raw_of, raw_packed
from controlplane.runtime import at_rest
from controlplane.runtime.clock import now
from tests.integration.backend.builders import Fleet, make_fleet
from tests.integration.backend.conftest import job_spec

pytestmark = pytest.mark.django_db
VALUE = "s3cret-0f-the-j0b"
ENV = {"API_KEY": VALUE, "EMPTY": ""}
OTHER_KEY = "another secret key, which is long enough for whoever looks at its length"


@pytest.fixture
def fleet() -> Fleet:
    return make_fleet(8)


def submitted(name: str, **changes: object) -> Job:
    spec = msgspec.structs.replace(job_spec(**changes), metadata=Metadata(name=name))
    return submit_job(spec, owner="ada", actor="ada")


def started(name: str = "job") -> Job:
    """A job whose ranks have been ordered."""
    job = submitted(name, env=ENV)
    reconcile_job(job.id)
    assert starts(job)
    return job


def starts(job: Job) -> list[Command]:
    return list(Command.objects.filter(job=job, kind="start_ranks").select_related("node"))


def told(command: Command) -> dict[str, str]:
    """The environment in the order as its node gets it."""
    sent = statements.signed(command)
    assert sent.signature, "it goes unsigned: no agent takes it"
    body = decode_statement(sent.statement).body
    assert isinstance(body, StartRanks)
    return dict(body.launch.env)


def dump() -> Iterator[tuple[str, str]]:
    """(table.column, text) of all that the database holds."""
    for table in connection.introspection.table_names():
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {connection.ops.quote_name(table)}")
            names = [column[0] for column in cursor.description]
            for row in cursor.fetchall():
                for name, value in zip(names, row, strict=True):
                    yield f"{table}.{name}", plain(value)


def plain(value: object) -> str:
    """A column as somebody reads it who knows how it is packed."""
    if not isinstance(value, memoryview | bytes):
        return str(value)
    packed = bytes(value)
    for frame in (packed, packed[1:]):
        with contextlib.suppress(zstandard.ZstdError):
            return zstandard.decompress(frame).decode("latin-1")
    return packed.decode("latin-1")


def test_a_dump_of_the_database_has_no_value_of_a_jobs_env_and_its_nodes_get_them_all(fleet: Fleet) -> None:
    job = started()
    assert [where for where, text in dump() if VALUE in text] == []
    assert [told(order) for order in starts(job)] == [ENV] * len(starts(job))
    assert environment.with_values(job)["spec"]["env"] == ENV
    assert all(statements.is_genuine(order) for order in starts(job))


def test_a_value_moved_to_another_job_or_name_opens_nowhere(fleet: Fleet) -> None:
    hers, his = submitted("hers", env=ENV), submitted("his", env={"API_KEY": "mine", "MINE": "x"})
    stolen = hers.spec["spec"]["env"]["API_KEY"]
    for name in ("API_KEY", "MINE"):
        his.refresh_from_db()
        his.spec["spec"]["env"][name] = stolen
        his.save(update_fields=["spec"])
        reconcile_job(his.id)
        assert starts(his) == []
        assert environment.with_values(his)["spec"]["env"] == dict.fromkeys(his.spec["spec"]["env"], "***")
    hers.spec["spec"]["env"]["EMPTY"] = stolen
    hers.save(update_fields=["spec"])
    reconcile_job(hers.id)
    assert starts(hers) == []


def test_a_sealed_order_that_was_altered_or_moved_goes_unsigned(fleet: Fleet) -> None:
    first, second, *_ = starts(started())
    whole = bytes(first.statement)
    assert VALUE.encode() not in whole
    for altered in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:20], bytes(second.statement)):
        first.statement = altered
        assert statements.signed(first).signature == b""
        assert not statements.is_genuine(first)
    first.statement = whole
    first.body["launch"]["env"]["LD_PRELOAD"] = ""
    assert statements.signed(first).signature == b""


def test_a_spec_whose_value_looks_sealed_is_refused() -> None:
    spec = msgspec.to_builtins(job_spec(env={"API_KEY": at_rest.seal_text("x", "job/other/env/API_KEY")}))
    (fault,) = [fault for fault in lint(spec).faults if fault.pointer == "/spec/env/API_KEY"]
    assert "rests sealed" in fault.message


def test_after_a_change_of_the_secret_key_the_old_one_opens_until_all_is_sealed_anew(
    fleet: Fleet, settings: Settings
) -> None:
    job, before = started(), settings.SECRET_KEY
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = OTHER_KEY, [before]
    assert [told(order) for order in starts(job)] == [ENV] * len(starts(job))
    call_command("reseal")
    settings.SECRET_KEY_FALLBACKS = []
    job.refresh_from_db()
    assert environment.opened(job) == ENV
    assert [told(order) for order in starts(job)] == [ENV] * len(starts(job))
    assert [where for where, text in dump() if VALUE in text] == []


def test_a_job_whose_values_are_lost_does_not_start_says_why_and_holds_up_no_other(
    fleet: Fleet, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = submitted("lost", env=ENV)
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = OTHER_KEY, []
    reconcile_job(lost.id)
    assert starts(lost) == []
    assert "HOLDFAST_SECRET_KEY_FALLBACKS" in Decision.objects.filter(job=lost).latest("id").sentence
    assert told(starts(started("next"))[0]) == ENV
    with pytest.raises(SystemExit):
        call_command("reseal")
    assert "NOT OPENED: 1 rows" in capsys.readouterr().out


def test_what_an_older_release_left_open_is_delivered_as_it_is_and_sealed_by_the_command(fleet: Fleet) -> None:
    job = started()
    orders = starts(job)
    for order in orders:
        statement = decode_statement(statements.signed(order).statement)
        order.body = msgspec.to_builtins(statement.body)
        order.statement = statements.signed(order).statement
        order.save()
    job.spec = environment.with_env(job.spec, ENV)
    job.save()
    decision = Decision.objects.filter(job=job).latest("id")
    snapshot, _ = raw_of(bytes(decision.snapshot))
    snapshot["job"]["spec"]["env"] = ENV
    decision.snapshot = raw_packed(snapshot, 0)
    decision.save()
    assert {where for where, text in dump() if VALUE in text} == {
        "jobs_job.spec", "dispatch_command.body", "dispatch_command.statement", "recovery_decision.snapshot",
    }  # fmt: skip
    assert [told(order) for order in starts(job)] == [ENV] * len(orders)
    assert environment.opened(job) == ENV
    call_command("reseal")
    assert [where for where, text in dump() if VALUE in text] == []
    assert [told(order) for order in starts(job)] == [ENV] * len(orders)


def test_an_order_that_is_signed_again_as_the_clock_was_set_still_carries_them(fleet: Fleet) -> None:
    job = started()
    order = starts(job)[0]
    order.created_at += timedelta(hours=1)
    statements.sign_again(order)
    order.save()
    assert told(starts(job)[0]) == ENV
    assert decode_statement(statements.signed(order).statement).issued_at_s == order.created_at.timestamp()


def test_for_an_older_release_all_of_it_is_opened_again(fleet: Fleet) -> None:
    """As that wrote it: values in the spec, in the order's body and in what was signed."""
    job = started()
    call_command("reseal", "--open")
    job.refresh_from_db()
    assert job.spec["spec"]["env"] == ENV
    for order in starts(job):
        assert order.body["launch"]["env"] == ENV
        assert decode_statement(bytes(order.statement)).body == msgspec.convert(order.body, StartRanks)
    assert [told(order) for order in starts(job)] == [ENV] * len(starts(job))


def test_one_row_that_is_spoilt_ends_no_sealing_and_what_is_over_and_lost_is_no_fault(
    fleet: Fleet, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    spoilt, over = submitted("spoilt", env=ENV), submitted("over", env=ENV)
    Job.objects.filter(pk=spoilt.pk).update(spec={"none": 1})
    Job.objects.filter(pk=over.pk).update(state="cancelled")
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = OTHER_KEY, []
    good = started("good")
    call_command("reseal")
    said = capsys.readouterr().out
    assert f"the env of 1 jobs and of {len(starts(good))} starts" in said
    assert "left as they are: 1 rows" in said
    assert "lost, and no longer needed: 1 rows" in said


def test_who_lacks_the_key_sends_no_start_calls_it_no_forgery_and_concludes_nothing_from_it(
    fleet: Fleet, settings: Settings
) -> None:
    job = started()
    order = starts(job)[0]
    assert order in dispatch.deliverable([order.node_id])
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = OTHER_KEY, []
    assert order not in dispatch.deliverable([order.node_id])
    Command.objects.filter(pk=order.pk).update(due_at=order.created_at)
    for row in dispatch.expire_overdue():
        after_expiry(row, now())
    # Anybody who writes to the outbox could have made such a row, of a replica that trains.
    assert not Signal.objects.exists()
    assert not AuditEntry.objects.filter(action="command.signature_rejected").exists()


def test_rows_whose_key_is_gone_take_the_values_from_the_spec_and_no_other_names(
    fleet: Fleet, settings: Settings, tmp_path: Path
) -> None:
    """As a run of a Slurm allocation is continued in the next one."""
    job = submitted("left", env=ENV)
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = OTHER_KEY, []
    assert not environment.opens(job)
    file = tmp_path / "job.yaml"
    file.write_bytes(msgspec.json.encode(environment.with_env(job.spec, ENV)))
    call_command("adopt_job", job.id, str(file))
    job.refresh_from_db()
    assert environment.opened(job) == ENV and VALUE not in str(job.spec)
    for env in (ENV | {"MORE": "x"}, {}):
        file.write_bytes(msgspec.json.encode(environment.with_env(job.spec, env)))
        with pytest.raises(CommandError, match="other names"):
            call_command("adopt_job", job.id, str(file))
    file.write_bytes(b"metadata: {}")
    with pytest.raises(CommandError, match="no valid job spec"):
        call_command("adopt_job", job.id, str(file))
    job.refresh_from_db()
    assert environment.opened(job) == ENV, "what was refused changed nothing"
