"""Devices of many nodes are made once, and again when anything of theirs that a decision asks for has changed."""

from collections.abc import Callable

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from benchmarks.decide_rows import job_that_trains
from benchmarks.decide_worlds import Size
from controlplane.fleet.models import Device
from controlplane.jobs.models import Job, Rank
from controlplane.policy.snapshot import DeviceFact
from controlplane.recovery import load_devices
from controlplane.recovery.load_devices import devices_of
from controlplane.runtime.clock import now
from controlplane.runtime.lasting import Lasting
from controlplane.scheduling.models import SpareReservation

pytestmark = pytest.mark.django_db
ON_POSTGRES = connection.vendor == "postgresql"


@pytest.fixture(autouse=True)
def _process_that_has_read_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_devices, "_kept", Lasting(load_devices.MAX_DEVICES_KEPT))


def free() -> Device:
    """One that nothing runs on."""
    return Device.objects.exclude(pk__in=Rank.objects.values("device_id")).order_by("pk")[0]


def reserve() -> None:
    SpareReservation.objects.create(job=Job.objects.get(), device=free())


def add() -> None:
    first = Device.objects.order_by("pk")[0]
    first.pk, first.index = "dev_more", 99
    first.save(force_insert=True)


def of_first(**columns: object) -> Callable[[], None]:
    """Change the first device's row."""
    return lambda: Device.objects.filter(pk=Device.objects.order_by("pk")[0].pk).update(**columns) and None


CHANGES: dict[str, Callable[[], None]] = {
    "unhealthy": of_first(healthy=False),
    "gone": of_first(present=False),
    "at risk": of_first(risk=0.25),
    "to be reset": of_first(reset_wanted_at=now()),
    "another": of_first(uuid="GPU-other"),
    "larger": of_first(memory_bytes=2**40),
    "of another model": of_first(model="H200"),
    "elsewhere": of_first(index=77),
    "released": lambda: Rank.objects.filter(rank=0).update(released_at=now()) and None,
    "a spare": reserve,
    "one more": add,
    "one less": lambda: free().delete() and None,
}


def many() -> dict[str, list[DeviceFact]]:
    """As a job on many nodes reads them."""
    return {node_id: list(its) for node_id, its in devices_of(None).items()}


def rows() -> dict[str, list[DeviceFact]]:
    """As a job on few reads them, row by row."""
    found: dict[str, list[DeviceFact]] = {}
    for node_id in Device.objects.values_list("node_id", flat=True).distinct():
        found |= {node: list(its) for node, its in devices_of([node_id]).items()}
    return found


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_is_seen_by_the_next_load_and_so_is_that_it_is_undone(change: str) -> None:
    job_that_trains(Size(2, 16))
    before = many()
    assert before == rows()
    with transaction.atomic():
        CHANGES[change]()
        assert many() == rows() != before
        transaction.set_rollback(True)
    assert many() == before


def test_what_has_not_changed_is_not_read_again() -> None:
    job_that_trains(Size(2, 16))
    many()
    of_first(healthy=False)()
    with CaptureQueriesContext(connection) as queries:
        again = many()
    assert again == rows()
    asked = [query["sql"] for query in queries]
    read = [sql for sql in asked if '"uuid"' in sql and "SUM(" not in sql]
    if ON_POSTGRES:
        (one,) = read
        assert '"node_id" IN' in one, "of the one node whose device has changed"
    else:
        assert len(read) == 1


def test_a_change_between_the_sums_and_the_rows_is_not_kept_under_the_old_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    if not ON_POSTGRES:
        pytest.skip("SQLite reads rows")
    job_that_trains(Size(2, 16))
    genuine = load_devices._keys

    def changed_meanwhile(only: object) -> object:
        keys = genuine(only)  # type: ignore[arg-type]
        of_first(healthy=False)()
        return keys

    monkeypatch.setattr(load_devices, "_keys", changed_meanwhile)
    assert sum(not device.healthy for its in many().values() for device in its) == 1
    monkeypatch.undo()
    of_first(healthy=True)()
    assert all(device.healthy for its in many().values() for device in its)
    assert many() == rows()
