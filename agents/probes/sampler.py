"""Asks the driver in time, and is never held up by it.

`InlineSampler` for drivers that cannot block; `ProcessSampler` keeps a driver that can in
a child process, kills the child when it misses its deadline, and starts another, rarely.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import msgspec

from agents.core.health import NvLinks
from agents.errors import ProbeError
from agents.probes.base import Probe
from agents.probes.plausible import plausible
from agents.probes.reset import smi_reset
from agents.probes.worker_line import WorkerLine
from controlplane.protocol.commands import InjectDeviceFault
from controlplane.protocol.samples import DeviceInfo, DeviceSample, XidEvent

OnSamples = Callable[[tuple[DeviceSample, ...]], None]
OnXid = Callable[[XidEvent], None]

_START_DEADLINE_S = 20.0
_ANSWER_DEADLINE_S = 5.0
_RESTART_FIRST_S, _RESTART_MAX_S = 1.0, 60.0
_MAX_LINE_BYTES = 1024 * 1024


class Sampler(Protocol):
    """What the runtime uses."""

    delay_s: float

    @property
    def devices(self) -> tuple[DeviceInfo, ...]:
        """As the driver lists them now; empty before `start` and if it does not work."""
        ...

    @property
    def nvlinks(self) -> tuple[NvLinks, ...]:
        """As the driver last told; empty while it tells nothing. Never waits for it."""
        ...

    async def start(self) -> None:
        """`devices` is known afterwards."""
        ...

    def ask(self, now_s: float, busy: frozenset[int]) -> None:
        """Samples follow through the callback: now, within `delay_s`, or never."""
        ...

    def inject(self, fault: InjectDeviceFault) -> None:
        """Raises ProbeError."""
        ...

    async def reset(self, device_index: int) -> None:
        """Reset a device that nothing uses. Raises ProbeError."""
        ...

    def close(self) -> None:
        """End."""
        ...


class InlineSampler:
    """For a driver that answers in microseconds."""

    delay_s = 0.0

    def __init__(self, probe: Probe, on_samples: OnSamples, on_xid: OnXid) -> None:
        assert not probe.capabilities.may_block, "a driver that may block belongs in a process of its own"
        self._probe = probe
        self._on_samples = on_samples
        self._on_xid = on_xid

    @property
    def devices(self) -> tuple[DeviceInfo, ...]:
        """As the driver lists them now."""
        return plausible(self._probe.devices())

    @property
    def nvlinks(self) -> tuple[NvLinks, ...]:
        """As they are now."""
        return self._probe.nvlinks()

    async def start(self) -> None:
        """Nothing to wait for."""

    def ask(self, now_s: float, busy: frozenset[int]) -> None:
        """Answers before it returns."""
        self._on_samples(plausible(self._probe.sample(now_s, busy)))
        self._tell_xids()

    def inject(self, fault: InjectDeviceFault) -> None:
        """An injected XID is told at once, as a driver's event would be."""
        self._probe.inject(fault.device_index, fault.fault, fault.value)
        self._tell_xids()

    async def reset(self, device_index: int) -> None:
        """The driver does it itself."""
        self._probe.reset(device_index)

    def close(self) -> None:
        """Let go of the driver."""
        self._probe.close()

    def _tell_xids(self) -> None:
        for xid in plausible(self._probe.xids()):
            self._on_xid(xid)


class ProcessSampler:
    """For NVML. While the child hangs or is gone there are simply no samples."""

    delay_s = 0.1

    def __init__(self, on_samples: OnSamples, on_xid: OnXid, note: Callable[..., None]) -> None:
        self._on_samples = on_samples
        self._on_xid = on_xid
        self._note = note
        self._child: asyncio.subprocess.Process | None = None
        self._killed: asyncio.subprocess.Process | None = None
        self._launched_s = 0.0
        self._reader: asyncio.Task[None] | None = None
        self._known: asyncio.Event = asyncio.Event()
        self._asked_s: float | None = None
        self._restart_at_s = 0.0
        self._restart_wait_s = _RESTART_FIRST_S
        self._starting = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._devices: tuple[DeviceInfo, ...] = ()
        self._nvlinks: tuple[NvLinks, ...] = ()
        self._reported_up_to: int | None = None

    @property
    def devices(self) -> tuple[DeviceInfo, ...]:
        """As the child last listed them."""
        return self._devices

    @property
    def nvlinks(self) -> tuple[NvLinks, ...]:
        """As of the newest samples; forgotten with the child that told them."""
        return self._nvlinks

    @property
    def pid(self) -> int | None:
        """The child's pid, None while there is none."""
        return self._child.pid if self._child is not None else None

    async def start(self) -> None:
        """Wait for the child's first line, but not for ever."""
        await self._launch()
        try:
            async with asyncio.timeout(_START_DEADLINE_S):
                await self._known.wait()
        except TimeoutError:
            self._kill("no answer at start")

    def ask(self, now_s: float, busy: frozenset[int]) -> None:
        """One question at a time; a late answer costs the child its life. One that hangs in the driver outlives even
        that: no other hangs beside it."""
        if self._child is None:
            gone = self._killed is None or self._killed.returncode is not None
            if gone and now_s >= self._restart_at_s and not self._starting:
                task = asyncio.get_running_loop().create_task(self._launch())
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            return
        if self._asked_s is not None:
            if now_s - self._asked_s > _ANSWER_DEADLINE_S:
                self._kill("no answer in time")
            return
        if not self._known.is_set():
            if now_s - self._launched_s > _START_DEADLINE_S:
                self._kill("no answer at start")
            return
        assert self._child.stdin is not None, "opened with a pipe"
        self._asked_s = now_s
        self._child.stdin.write(b"\n")

    def inject(self, fault: InjectDeviceFault) -> None:
        """Real devices are never harmed."""
        raise ProbeError("device faults can be injected on simulated devices only")

    async def reset(self, device_index: int) -> None:
        """No process may hold the device meanwhile: the child ends, and another is started after."""
        info = next((info for info in self._devices if info.index == device_index), None)
        if info is None or not info.pci_bus_id:
            raise ProbeError(f"device {device_index} is not known to the driver")
        self._starting = True
        try:
            await self._end_child()
            await smi_reset(info.pci_bus_id)
        finally:
            self._starting = False
            self._restart_at_s = 0.0

    def close(self) -> None:
        """The child ends with its stdin."""
        self._kill("")

    async def _end_child(self) -> None:
        child = self._child
        self._kill("")
        if child is not None:
            await child.wait()

    async def _launch(self) -> None:
        self._starting = True
        self._known.clear()
        self._asked_s, self._launched_s = None, time.monotonic()
        try:
            self._child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "agents.probes.worker",
                *([] if self._reported_up_to is None else [str(self._reported_up_to)]),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                limit=_MAX_LINE_BYTES,
            )
        except OSError as error:
            self._note("probe process not started", error=error)
            self._put_off()
            return
        finally:
            self._starting = False
        self._reader = asyncio.get_running_loop().create_task(self._read(self._child))

    async def _read(self, child: asyncio.subprocess.Process) -> None:
        assert child.stdout is not None, "opened with a pipe"
        try:
            while line := await child.stdout.readline():
                self._take(msgspec.json.decode(line, type=WorkerLine))
        except (ValueError, msgspec.DecodeError) as error:
            self._note("probe process said garbage", error=error)
        finally:
            self._known.set()
            if self._child is child:
                self._kill("probe process ended")
        await child.wait()

    def _take(self, line: WorkerLine) -> None:
        if line.error:
            self._note("probe", error=line.error)
        if line.devices:
            self._devices = line.devices
        self._known.set()
        for xid in line.xids:
            self._on_xid(xid)
        if line.reported_up_to is not None:
            self._reported_up_to = line.reported_up_to
        if line.samples is not None:
            self._asked_s = None
            self._restart_wait_s = _RESTART_FIRST_S
            self._nvlinks = line.nvlinks
            self._on_samples(line.samples)

    def _kill(self, why: str) -> None:
        child, self._child = self._child, None
        self._asked_s = None
        self._nvlinks = ()
        if child is not None and child.returncode is None:
            self._killed = child
            # It may have ended by itself a moment ago.
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
        if why:
            self._note("probe process killed", why=why)
            self._put_off()

    def _put_off(self) -> None:
        self._restart_at_s = time.monotonic() + self._restart_wait_s
        self._restart_wait_s = min(self._restart_wait_s * 2, _RESTART_MAX_S)
