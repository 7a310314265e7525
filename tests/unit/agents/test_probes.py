"""The same contract for every driver; the physics of the simulated one."""

import asyncio
import os
import signal
import subprocess
import sys
import time

import msgspec
import pytest

from agents.core.health import NvLinks
from agents.errors import ProbeError
from agents.probes.sampler import ProcessSampler
from agents.probes.simulated import SimulatedProbe
from agents.probes.worker_line import WorkerLine
from controlplane.protocol.samples import DeviceSample, XidEvent

NOBODY: frozenset[int] = frozenset()


def nvml():
    try:
        from agents.probes.nvml import NvmlProbe

        return NvmlProbe()
    except (ProbeError, ImportError) as error:
        pytest.skip(f"NO NVIDIA DEVICE HERE, THE NVML DRIVER IS UNTESTED: {error}")


def simulated(seed=0):
    return SimulatedProbe(count=3, node_name="node-1", seed=seed)


@pytest.fixture(params=[simulated, nvml], ids=["simulated", "nvml"])
def probe(request):
    driver = request.param()
    yield driver
    driver.close()


def test_samples_follow_the_devices_by_index(probe):
    infos, samples = probe.devices(), probe.sample(1.0, NOBODY)
    assert [info.index for info in infos] == [sample.index for sample in samples] == list(range(len(infos)))
    assert len({info.uuid for info in infos}) == len(infos)
    assert {links.device_index for links in probe.nvlinks()} <= {info.index for info in infos}
    assert all(not set(links.active) & set(links.inactive) for links in probe.nvlinks())


def test_readings_are_absent_or_plausible(probe):
    for sample in probe.sample(1.0, NOBODY):
        for ratio in (sample.utilization_ratio, sample.memory_utilization_ratio):
            assert ratio is None or 0.0 <= ratio <= 1.0
        assert sample.temperature_c is None or 0.0 < sample.temperature_c < 130.0
        assert sample.power_w is None or 0.0 < sample.power_w < 2000.0
        for count in (sample.ecc_corrected_total, sample.ecc_uncorrected_total, sample.pcie_replay_total):
            assert count is None or 0 <= count < 1 << 48


def test_capabilities_agree_with_the_readings(probe):
    sample = probe.sample(1.0, NOBODY)[0]
    assert probe.capabilities.ecc or sample.ecc_corrected_total is None
    assert probe.capabilities.row_remap or sample.row_remap_pending is None
    assert probe.capabilities.nvlink or (sample.nvlink_error_total, probe.nvlinks()) == (None, ())


def test_faults_are_refused_where_they_cannot_be_injected(probe):
    if probe.capabilities.faults:
        with pytest.raises(ProbeError):
            probe.inject(99, "ecc", 0.0)
    else:
        with pytest.raises(ProbeError):
            probe.inject(0, "ecc", 0.0)


def after(probe, seconds, busy=NOBODY, begin_s=0.0):
    """The last sample of each device after sampling once a second."""
    samples = probe.sample(begin_s, busy)
    for second in range(1, seconds + 1):
        samples = probe.sample(begin_s + second, busy)
    return samples


def test_the_same_seed_and_times_give_the_same_readings():
    assert after(simulated(3), 20, frozenset({1})) == after(simulated(3), 20, frozenset({1}))
    assert after(simulated(3), 20) != after(simulated(4), 20)


def test_a_busy_device_is_used_draws_power_and_warms_up():
    idle, busy, _ = after(simulated(), 120, frozenset({1}))
    assert busy.utilization_ratio > 0.9 > 0.1 > idle.utilization_ratio
    assert busy.power_w > 500 > 100 > idle.power_w
    assert 60 < busy.temperature_c < 87 and idle.temperature_c < 40


def test_the_sampling_rate_changes_nothing_of_the_physics():
    slow, fast = simulated(), simulated()
    slow.sample(0.0, NOBODY), fast.sample(0.0, NOBODY)
    for tenth in range(1, 1201):
        fine = fast.sample(tenth / 10, frozenset({0}))
    assert abs(fine[0].temperature_c - after(slow, 120, frozenset({0}))[0].temperature_c) < 2.0


def test_overheating_is_hot_slows_down_and_heals():
    probe = simulated()
    probe.inject(0, "overheat", 98.0)
    hot = after(probe, 30, frozenset({0}))[0]
    assert hot.temperature_c > 95 and "hw_thermal_slowdown" in hot.throttle_reasons
    probe.inject(0, "heal", 0.0)
    assert after(probe, 200, frozenset({0}), begin_s=31.0)[0].throttle_reasons == ()


def test_memory_errors_count_and_ask_for_a_remap():
    probe = simulated()
    probe.inject(1, "ecc", 2.0)
    sample = probe.sample(1.0, NOBODY)[1]
    assert (sample.ecc_uncorrected_total, sample.row_remap_pending) == (2, True)


def test_xid_79_takes_the_device_off_the_bus_and_is_told_once():
    probe = simulated()
    probe.inject(2, "off_bus", 0.0)
    assert [(xid.index, xid.xid) for xid in probe.xids()] == [(2, 79)]
    assert probe.xids() == ()
    gone = probe.sample(1.0, NOBODY)[2]
    assert not gone.present and gone.temperature_c is None


async def test_a_hanging_driver_process_is_killed_and_replaced(monkeypatch):
    """SIGSTOP is a driver that hangs: no heartbeat waits for it."""
    from agents.probes import sampler as module

    monkeypatch.setattr(module, "_ANSWER_DEADLINE_S", 0.2)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], stdin=subprocess.PIPE)
    notes = []
    sampler = module.ProcessSampler(lambda samples: None, lambda xid: None, lambda text, **f: notes.append((text, f)))

    class Child:
        pid, returncode, stdin = child.pid, None, child.stdin

    sampler._child = Child()
    sampler._known.set()
    os.kill(child.pid, signal.SIGSTOP)
    began_s = time.monotonic()
    sampler.ask(began_s, NOBODY)
    sampler.ask(began_s + 0.1, NOBODY)
    assert sampler.pid == child.pid
    sampler.ask(began_s + 0.3, NOBODY)
    assert sampler.pid is None
    assert child.wait(5) == -signal.SIGKILL
    assert notes[0][1]["why"] == "no answer in time"


async def test_a_driver_process_that_hangs_as_it_starts_again_is_replaced_once_it_is_gone(monkeypatch):
    from agents.probes import sampler as module

    started, start = [], asyncio.create_subprocess_exec
    monkeypatch.setattr(module, "_START_DEADLINE_S", 0.1)
    monkeypatch.setattr(module, "_RESTART_FIRST_S", 0.05)

    async def silent(*_, **pipes):
        started.append(await start(sys.executable, "-c", "import time; time.sleep(60)", **pipes))
        return started[-1]

    monkeypatch.setattr(module.asyncio, "create_subprocess_exec", silent)
    sampler = module.ProcessSampler(lambda samples: None, lambda xid: None, lambda *_, **__: None)

    async def asked_for(seconds):
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            sampler.ask(time.monotonic(), NOBODY)
            await asyncio.sleep(0.01)

    until_s = time.monotonic() + 20.0
    while len(started) < 3:
        assert time.monotonic() < until_s, "it waits for ever for one that hangs"
        await asked_for(0.05)
    sampler.close()
    await asyncio.gather(*(child.wait() for child in started))

    class InTheDriver:
        """A child that even SIGKILL does not end for now."""

        pid, returncode = subprocess.Popen(["true"]).pid, None

    stuck, before = InTheDriver(), len(started)
    sampler._child, sampler._launched_s = stuck, time.monotonic()
    sampler._known.clear()
    await asked_for(0.5)
    assert sampler.pid is None and len(started) == before
    stuck.returncode = -signal.SIGKILL
    sampler._restart_at_s = 0.0
    await asked_for(0.05)
    assert len(started) == before + 1
    sampler.close()
    await started[-1].wait()


async def test_nvlinks_come_with_the_samples_of_the_driver_process_and_go_with_it():
    links = (NvLinks(device_index=0, active=(0, 2), inactive=(1,)),)
    sampler = ProcessSampler(lambda samples: None, lambda xid: None, lambda text, **fields: None)
    line = msgspec.json.encode(WorkerLine(samples=(DeviceSample(index=0),), nvlinks=links))
    sampler._take(msgspec.json.decode(line, type=WorkerLine))
    assert sampler.nvlinks == links
    sampler._take(WorkerLine(xids=(XidEvent(index=0, xid=13),)))
    assert sampler.nvlinks == links, "a line without samples says nothing about them"
    sampler._kill("no answer in time")
    assert sampler.nvlinks == ()


async def test_without_a_driver_the_agent_has_no_devices_and_goes_on():
    notes = []
    sampler = ProcessSampler(lambda samples: None, lambda xid: None, lambda text, **f: notes.append(text))
    await sampler.start()
    if sampler.devices:
        pytest.skip("a device is here")
    assert "probe" in notes
    sampler.close()


def test_an_injected_error_of_an_nvlink_names_its_link(probe):
    for value, number, link in ((74.05, 74, ", link 5(0x0,"), (145.11, 145, " Link 11 (0x"), (79.0, 79, "XID 79")):
        probe.inject(0, "xid", value)
        (seen,) = probe.xids()
        assert seen.xid == number
        assert link in seen.detail


def test_an_xid_is_said_before_the_readings_over_which_the_driver_hangs(monkeypatch):
    from agents.probes import worker as module

    class Hangs(Exception):
        pass

    class Probe:
        def __init__(self, *, reported_up_to):
            self.reported_up_to = reported_up_to + 5

        def devices(self):
            return ()

        def xids(self):
            return (XidEvent(index=0, xid=79),)

        def sample(self, now_s, busy):
            raise Hangs

    said = []
    monkeypatch.setattr(module, "NvmlProbe", Probe)
    monkeypatch.setattr(module, "_say", said.append)
    monkeypatch.setattr(module.select, "select", lambda *_: ([0], [], []))
    monkeypatch.setattr(module.os, "read", lambda *_: b"?")
    with pytest.raises(Hangs):
        module.main(["12"])
    assert [(line.xids[0].xid, line.reported_up_to) for line in said if line.xids] == [(79, 17)]


async def test_the_driver_process_that_follows_is_told_how_far_the_one_before_had_come(monkeypatch):
    heard, started = [], []
    sampler = ProcessSampler(lambda samples: None, heard.append, lambda *_, **__: None)

    async def start(*words, **_):
        started.append(words[3:])
        raise OSError

    monkeypatch.setattr("agents.probes.sampler.asyncio.create_subprocess_exec", start)
    await sampler._launch()
    sampler._take(WorkerLine(xids=(XidEvent(index=0, xid=79),), reported_up_to=41))
    sampler._take(WorkerLine(samples=()))
    await sampler._launch()
    assert [xid.xid for xid in heard] == [79]
    assert started == [(), ("41",)]


def test_a_driver_that_does_not_answer_says_nothing_about_throttling(monkeypatch):
    from agents.probes import nvml as probe

    monkeypatch.setattr(probe, "_ask", lambda *_: None)
    assert probe._throttle_reasons(object()) is None
    monkeypatch.setattr(probe, "_ask", lambda *_: 0)
    assert probe._throttle_reasons(object()) == ()
