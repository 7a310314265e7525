"""Looks at the node every minute and before each start; see `core.health` for the verdict.

Called by the runtime. The reading happens in a thread; one that does not come back in time
is itself a fault of storage, and no second one is begun while it hangs.
"""

import asyncio
import time
from collections.abc import Callable

from agents.config import Config
from agents.core.effects import CheckNode
from agents.core.events import Event, NodeRead
from agents.core.health import Needs, NvLinks, Readings, judge
from agents.probes import node_checks
from agents.probes.sampler import Sampler
from controlplane.protocol.frames import NodeCheck

EVERY_S = 60.0
DEADLINE_S = 15.0
LATE = (NodeCheck("storage", f"no answer within {DEADLINE_S:.0f} s: a file system hangs; unmount or repair it"),)


class Examiner:
    """One for the node."""

    def __init__(self, config: Config, sampler: Sampler, dispatch: Callable[[Event], None]) -> None:
        self._config = config
        self._sampler = sampler
        self._dispatch = dispatch
        self._needs = Needs(
            driver_major=config.min_driver, free_bytes=config.min_free_mib << 20, nvlinks=config.min_nvlinks
        )
        self._connected: frozenset[int] = frozenset()
        self._reading: asyncio.Future[Readings] | None = None
        self._one_at_a_time = asyncio.Lock()

    async def examine_for_ever(self) -> None:
        """The node, again and again."""
        while True:
            await self.look()
            await asyncio.sleep(EVERY_S)

    async def look(self) -> None:
        """The node, once."""
        self._dispatch(NodeRead(now_s=time.monotonic(), failed=await self._node()))

    async def examine(self, wish: CheckNode) -> None:
        """The node and what one launch needs of it."""
        failed = await self._node()
        mine = await self._judged(node_checks.read_launch, wish.launch, self._sampler.devices)
        event = NodeRead(now_s=time.monotonic(), failed=failed, launch_failed=mine, command_id=wish.command_id)
        self._dispatch(event)

    async def _node(self) -> tuple[NodeCheck, ...]:
        nvlinks = self._sampler.nvlinks
        self._connected |= {device.device_index for device in nvlinks if device.active}
        return await self._judged(self._read_node, nvlinks)

    def _read_node(self, nvlinks: tuple[NvLinks, ...]) -> Readings:
        return node_checks.read_node(
            name=self._config.name,
            devices=self._sampler.devices,
            paths=self._config.check_paths,
            interfaces=self._config.check_links,
            checker=self._config.check_socket,
            nvlinks=nvlinks,
            connected=self._connected,
        )

    async def _judged(self, read: Callable[..., Readings], *arguments: object) -> tuple[NodeCheck, ...]:
        async with self._one_at_a_time:
            if self._reading is not None and not self._reading.done():
                # It missed its deadline and hangs still.
                return LATE
            self._reading = asyncio.ensure_future(asyncio.to_thread(read, *arguments))
            done, _ = await asyncio.wait({self._reading}, timeout=DEADLINE_S)
            return judge(self._reading.result(), self._needs) if done else LATE
