"""From an XID to a device that works again: barred, emptied, reset by a signed command, returned."""

import numpy as np
import pytest
from django.core.management import call_command

from controlplane.api import specs
from controlplane.dispatch.models import Command
from controlplane.fleet.models import Device, Node
from controlplane.jobs.models import Job
from controlplane.policy.placement import build_pool
from controlplane.protocol import frames
from controlplane.protocol.samples import DeviceSample, XidEvent
from controlplane.recovery import ingest
from controlplane.recovery.fleet_pass import reconcile_fleet
from controlplane.recovery.load_nodes import node_facts
from controlplane.recovery.models import Decision, Signal
from controlplane.recovery.reconcile import reconcile_job
from controlplane.recovery.sweep import expire_commands
from controlplane.sentinel.fleetmap import read_map
from controlplane.sentinel.heard import Heard
from controlplane.sentinel.history import History
from controlplane.sentinel.live_state import LiveState
from controlplane.sentinel.scan import Scanner
from controlplane.telemetry.selectors import node_series
from tests.integration.backend.builders import Fleet, commit_step, hello, live_ranks, make_fleet, run_job

pytestmark = pytest.mark.django_db(transaction=True)


def idle_node(job: object) -> str:
    busy = {row.node.name for row in live_ranks(job)}
    return next(name for name in ("n1", "n2", "n3", "n4") if name not in busy)


def xid(number: int, index: int = 0, detail: str = "") -> frames.XidSeen:
    return frames.XidSeen(XidEvent(index=index, xid=number, detail=detail))


def passes(job: object, times: int = 4) -> None:
    """Of the job, and of the fleet: a device under no living replica is the fleet's own affair."""
    for _ in range(times):
        reconcile_job(job.id)
        reconcile_fleet()


def device_of(name: str, index: int = 0) -> Device:
    return Device.objects.get(node__name=name, index=index)


def answer(fleet: Fleet, name: str, command: Command, state: str, detail: str = "") -> None:
    fleet.tell(name, frames.CommandAnswer(command.id, state, detail))


def idle_node_told(number: int) -> tuple[Fleet, Job, str]:
    """A device that no rank uses told of the code, and what follows of that was decided."""
    fleet = make_fleet(4)
    job = run_job(fleet)
    name = idle_node(job)
    fleet.tell(name, xid(number))
    passes(job)
    return fleet, job, name


def test_a_device_whose_code_asks_for_a_reset_is_reset_when_it_is_empty_and_works_again() -> None:
    fleet, job, name = idle_node_told(48)
    node, device = Node.objects.get(name=name), device_of(name)
    assert (node.state, device.healthy) == ("cordoned", False)
    command = Command.objects.get(kind="reset_device")
    assert command.body == {"kind": "reset_device", "device_index": 0, "uuid": device.uuid}
    assert command.signature
    passes(job)
    assert Command.objects.filter(kind="reset_device").count() == 1
    answer(fleet, name, command, "acknowledged")
    answer(fleet, name, command, "succeeded", "the driver has reset it")
    node.refresh_from_db()
    device.refresh_from_db()
    assert (node.state, device.healthy, device.health_reason, device.reset_wanted_at) == ("ready", True, "", None)
    assert Decision.objects.filter(rule="device_fault", choice="reset_device").count() == 1


def test_a_reset_that_fails_leaves_the_device_to_a_person() -> None:
    fleet, job, name = idle_node_told(154)
    answer(fleet, name, Command.objects.get(kind="reset_device"), "failed", "nvidia-smi ended with 3: In use")
    passes(job)
    assert Node.objects.get(name=name).state == "cordoned"
    assert "In use. A person must inspect it." in device_of(name).health_reason
    assert Command.objects.filter(kind="reset_device").count() == 1


def test_a_reset_that_nobody_answered_is_ordered_again() -> None:
    _, job, _ = idle_node_told(48)
    Command.objects.filter(kind="reset_device").update(due_at="2020-01-01T00:00:00Z")
    expire_commands()
    passes(job)
    states = list(Command.objects.filter(kind="reset_device").order_by("id").values_list("state", flat=True))
    assert states == ["expired", "queued"]


def test_a_device_under_a_rank_is_reset_only_after_its_rank_is_gone() -> None:
    fleet = make_fleet(4)
    job = run_job(fleet)
    row = live_ranks(job)[0]
    fleet.tell(row.node.name, xid(48, row.device.index))
    passes(job)
    device = device_of(row.node.name, row.device.index)
    assert not device.healthy
    assert device.reset_wanted_at is not None
    assert not Command.objects.filter(kind="reset_device").exists()
    for command in Command.objects.filter(kind="stop_ranks", node=row.node):
        answer(fleet, row.node.name, command, "succeeded")
    passes(job)
    assert Command.objects.get(kind="reset_device").node_id == row.node_id


def test_a_degraded_device_is_given_no_new_work_and_its_neighbour_is() -> None:
    fleet = make_fleet(4)
    job = run_job(fleet)
    name = idle_node(job)
    fleet.tell(name, xid(63, 1))
    passes(job)
    assert Node.objects.get(name=name).state == "degraded"
    offered = dict(build_pool(node_facts(job), job_id=job.id).nodes)
    assert offered[Node.objects.get(name=name).id] == (0,)
    assert not device_of(name, 1).healthy


def test_the_same_contained_error_twice_on_a_device_is_no_programs_fault() -> None:
    fleet, job, name = idle_node_told(94)
    assert device_of(name).healthy
    fleet.tell(name, xid(94))
    passes(job)
    assert not device_of(name).healthy
    assert Signal.objects.filter(kind="xid").order_by("seen_at").last().evidence["repeats"] == 2


def test_what_comes_again_on_another_link_of_a_device_has_not_come_again() -> None:
    fleet = make_fleet(4)
    job = run_job(fleet)
    name = idle_node(job)
    found = []
    for link in (3, 5, 3):
        detail = f"NVLink: fatal error detected on link {link}(0x10, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"
        fleet.tell(name, xid(74, detail=detail))
        evidence = Signal.objects.filter(kind="xid").order_by("seen_at").last().evidence
        found.append((evidence["link"], evidence["repeats"]))
    assert found == [(3, 1), (5, 1), (3, 2)]


def test_one_programs_code_on_many_devices_accuses_none() -> None:
    fleet = make_fleet(4)
    job = run_job(fleet)
    for _ in range(4):
        for name in ("n1", "n2", "n3", "n4"):
            fleet.tell(name, xid(31))
    passes(job)
    assert Device.objects.filter(healthy=False).count() == 0


def samples(node_id: str, seconds: range, **at: dict[str, object]) -> list[Heard]:
    found = []
    for second in seconds:
        fields: dict[str, object] = {"ecc_corrected_total": 40 if second > 20 else 0, "ecc_uncorrected_total": 0}
        fields |= {"temperature_c": 61.0} | (at["late"] if second > 25 else {})
        frame = frames.AgentFrame(
            seq=second + 1,
            uptime_s=float(second),
            devices=(DeviceSample(index=0, **fields),),  # type: ignore[arg-type]
        )
        found.append(Heard(node_id=node_id, session_id="s", at_s=1.7e9 + second, frame=frame))
    return found


def test_ecc_errors_are_walked_from_the_sample_to_what_the_page_shows() -> None:
    fleet = make_fleet(4)
    job = run_job(fleet)
    commit_step(fleet, job, 3)
    name = idle_node(job)
    node_id = Node.objects.get(name=name).id
    live_state, scanner, history = LiveState(), Scanner(), History(60.0)
    where = read_map()
    live_state.expect(where.nodes, where.devices, where.placed, where.error_s)
    taken = live_state.take(samples(node_id, range(60), late={"ecc_uncorrected_total": 2}))
    history.take(taken, live_state)
    scanner.scan(live_state, where, 1.7e9 + 60, blind=True)
    # 1. The signal: uncorrectable errors alone, with the device's readings of that moment.
    raised = Signal.objects.get(kind="device_reading")
    assert (raised.evidence["reading"], raised.value, raised.threshold) == ("ecc_uncorrected", 2.0, 1.0)
    assert (raised.evidence["ecc_corrected_total"], raised.evidence["ecc_uncorrected_total"]) == (40, 2)
    # 2. The decision, with both in its evidence, and the reset.
    passes(job)
    decision = Decision.objects.get(rule="device_fault", choice="reset")
    assert (decision.evidence["ecc_uncorrected_total"], decision.evidence["ecc_corrected_total"]) == (2, 40)
    assert Command.objects.filter(kind="reset_device").exists()
    # 3. The score: the error of its ten seconds, then its history.
    assert live_state.parts_of(node_id, 0)["errors"] == pytest.approx(0.125)
    # 4. The page: two lines in the history, not their sum.
    assert history.force(known={node_id}) == 1
    series = node_series(node_id, since_s=1.7e9, until_s=1.7e9 + 60)["devices"][0]
    assert (series["ecc_corrected_total"][-1], series["ecc_uncorrected_total"][-1]) == (40.0, 2.0)
    assert np.nanmax(series["risk"][-1]) == pytest.approx(live_state.risk_of(node_id, 0), abs=1e-3)


def hot(node_id: str, seconds: range, memory_c: float, core_c: float | None = None) -> list[Heard]:
    """A device whose memory (and core) is so hot in each of these seconds."""
    return [
        Heard(
            node_id=node_id, session_id="s", at_s=1.7e9 + second,
            frame=frames.AgentFrame(
                seq=second + 1, uptime_s=float(second),
                devices=(DeviceSample(index=0, memory_temperature_c=memory_c, temperature_c=core_c),),
            ),
        )
        for second in seconds
    ]  # fmt: skip


@pytest.mark.parametrize("restarted", [False, True])
def test_a_device_that_a_state_kept_away_returns_when_the_state_ends(restarted: bool) -> None:
    fleet = make_fleet(4)
    job = run_job(fleet)
    name = idle_node(job)
    node_id = Node.objects.get(name=name).id

    def watch(live_state: LiveState, scanner: Scanner, heard: list[Heard]) -> None:
        where = read_map()
        live_state.expect(where.nodes, where.devices, where.placed, where.error_s)
        live_state.take(heard)
        scanner.scan(live_state, where, heard[-1].at_s, blind=True)

    live_state, scanner = LiveState(), Scanner()
    watch(live_state, scanner, hot(node_id, range(70), 99.0))
    passes(job)
    assert (device_of(name).healthy, Node.objects.get(name=name).state) == (False, "degraded")
    if restarted:
        # Ended while no sentinel ran: the next one never saw it.
        live_state, scanner = LiveState(), Scanner()
    watch(live_state, scanner, hot(node_id, range(70, 75), 60.0))
    assert (device_of(name).healthy, Node.objects.get(name=name).state) == (True, "ready")


@pytest.mark.parametrize("told_by", ["samples", "hello"])
@pytest.mark.parametrize("under_a_rank", [False, True])
def test_a_device_that_fell_off_the_bus_brings_its_node_back_with_it(told_by: str, under_a_rank: bool) -> None:
    fleet = make_fleet(4)
    job = run_job(fleet)
    name = live_ranks(job)[0].node.name if under_a_rank else idle_node(job)
    node_id = Node.objects.get(name=name).id
    fleet.tell(name, xid(79), frames.DeviceLost(0, device_of(name).uuid))
    passes(job)
    assert (device_of(name).healthy, Node.objects.get(name=name).state) == (False, "cordoned")
    if told_by == "hello":
        ingest.open_session(node_id, f"web.{name}", hello(name, boot="again"))
    else:
        where, live_state = read_map(), LiveState()
        live_state.expect(where.nodes, where.devices, where.placed, where.error_s)
        heard = hot(node_id, range(5), 60.0, 50.0)
        live_state.take(heard)
        Scanner().scan(live_state, where, heard[-1].at_s, blind=True)
    passes(job)
    assert (device_of(name).healthy, Node.objects.get(name=name).state) == (True, "ready")
    assert not Signal.objects.filter(kind="device_lost", settled_at=None).exists()
    if not under_a_rank:
        assert node_id in dict(build_pool(node_facts(job), job_id=job.id).nodes)


def test_a_device_that_waits_for_a_reset_does_not_return_because_it_has_cooled() -> None:
    _, _, name = idle_node_told(48)
    where, live_state, scanner = read_map(), LiveState(), Scanner()
    live_state.expect(where.nodes, where.devices, where.placed, where.error_s)
    live_state.take(hot(Node.objects.get(name=name).id, range(5), 60.0))
    scanner.scan(live_state, where, 1.7e9 + 5, blind=True)
    assert (device_of(name).healthy, Node.objects.get(name=name).state) == (False, "cordoned")


@pytest.mark.parametrize(
    ("told", "reachable"), [({"reachable_risk": 0.6}, 0.6), ({"reachable_risk": None}, 1.0), (None, 1.0)]
)
def test_a_submit_is_judged_by_what_the_sentinel_says_the_fleet_can_reach(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, float] | None, reachable: float
) -> None:
    monkeypatch.setattr("controlplane.runtime.bus.read_live", lambda name: told if name == "fleet" else None)
    assert specs.reachable_risk() == reachable


def test_no_model_lacks_its_migration() -> None:
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)
