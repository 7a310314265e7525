"""Checks the node every minute and before each start; see `core.health` for the verdict.

Called by the runtime. What is read in common is one subject, what one launch writes to is
another: each is read in a thread of its own, for a dead file system holds its reader for
ever. A reading that is late is a fault of storage, of its own subject alone, and no second
one of it is begun while it hangs. The threads are daemons: none holds up the agent's end.
"""

import asyncio
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from weakref import WeakValueDictionary

from agents.config import Config
from agents.core.effects import CheckNode
from agents.core.events import Event, NodeRead
from agents.core.health import MAX_DETAIL_CHARS, Needs, NvLinks, Readings, judge
from agents.core.policy import Policy
from agents.errors import LaunchError
from agents.log import note
from agents.probes import node_checks
from agents.probes.kernel_log import KernelLog
from agents.probes.libraries import Interpreters
from agents.probes.sampler import Sampler
from agents.ranks.launch import Standing
from controlplane.protocol.frames import NodeCheck

EVERY_S = 60.0
DEADLINE_S = 15.0


class Examiner:
    """One for the node. `standing` says as whom an owner's processes start, `policy` the rules of
    now; `deadline_s`: how long a reading may take."""

    def __init__(
        self,
        config: Config,
        sampler: Sampler,
        dispatch: Callable[[Event], None],
        *,
        standing: Callable[[str], Standing],
        policy: Callable[[], Policy],
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._standing = standing
        self._policy = policy
        self._config = config
        self._sampler = sampler
        self._dispatch = dispatch
        self._deadline_s = deadline_s
        self._needs = Needs(
            driver_major=config.min_driver, free_bytes=config.min_free_mib << 20, nvlinks=config.min_nvlinks
        )
        self._connected: frozenset[int] = frozenset()
        self._own = _Subject()
        self._kernel_log = KernelLog()
        self._interpreters = Interpreters()
        self._launches: WeakValueDictionary[tuple[str | None, ...], _Subject] = WeakValueDictionary()

    async def examine_for_ever(self) -> None:
        """The node, again and again."""
        while True:
            await self.check()
            await asyncio.sleep(EVERY_S)

    async def check(self) -> None:
        """The node, once."""
        self._dispatch(NodeRead(now_s=time.monotonic(), failed=await self._node()))

    async def examine(self, request: CheckNode) -> None:
        """The node and what one launch needs of it."""
        failed = await self._node()
        config = request.launch.config
        # Replicas of a job share their paths, so they share the wait for them too.
        paths = self._launches.setdefault((config.checkpoint_dir, config.checkpoint.local.dir), _Subject())
        try:
            read = partial(node_checks.read_launch, policy=self._policy(), node_id=request.node_id)
            standing = self._standing(request.launch.user)
            mine = await self._judged(paths, read, request.launch, self._sampler.devices, self._interpreters, standing)
        except LaunchError as error:
            mine = (NodeCheck("user", str(error)[:MAX_DETAIL_CHARS]),)
        event = NodeRead(now_s=time.monotonic(), failed=failed, launch_failed=mine, command_id=request.command_id)
        self._dispatch(event)

    async def _node(self) -> tuple[NodeCheck, ...]:
        nvlinks = self._sampler.nvlinks
        self._connected |= {device.device_index for device in nvlinks if device.active}
        return await self._judged(self._own, self._read_node, nvlinks)

    def _read_node(self, nvlinks: tuple[NvLinks, ...]) -> Readings:
        return node_checks.read_node(
            name=self._config.name,
            devices=self._sampler.devices,
            paths=self._config.check_paths,
            interfaces=self._config.check_links,
            checker=self._config.check_socket,
            nvlinks=nvlinks,
            connected=self._connected,
            nvswitch=self._kernel_log.fault(),
        )

    async def _judged(
        self, subject: "_Subject", read: Callable[..., Readings], *arguments: object
    ) -> tuple[NodeCheck, ...]:
        """A reading that breaks is an error of ours: noted, and no proof of a fault."""
        try:
            found = await subject.read(partial(read, *arguments), self._deadline_s)
            return self._late() if found is None else judge(found, self._needs)
        except Exception:
            note("internal error", on="node checks", trace=traceback.format_exc(limit=8))
            return ()

    def _late(self) -> tuple[NodeCheck, ...]:
        late = f"no answer within {self._deadline_s:g} s: a file system hangs; unmount or repair it"
        return (NodeCheck("storage", late),)


class _Subject:
    """What is read as one. It lives as long as somebody holds it, its own thread too."""

    def __init__(self) -> None:
        self._one_at_a_time = asyncio.Lock()
        self._answer: Future[Readings] | None = None

    async def read(self, read: Callable[[], Readings], deadline_s: float) -> Readings | None:
        """None: no answer in time, or still none to an earlier reading. Raises what `read` raises."""
        async with self._one_at_a_time:
            if self._answer is not None and not self._answer.done():
                return None
            self._answer = Future()
            # It cannot be called off: `done` is said by its thread alone.
            self._answer.set_running_or_notify_cancel()
            waiting = asyncio.wrap_future(self._answer)
            try:
                threading.Thread(target=self._run, args=(read, self._answer), name="node-check", daemon=True).start()
            except RuntimeError as error:
                self._answer.set_exception(error)
            try:
                done, _ = await asyncio.wait({waiting}, timeout=deadline_s)
                return waiting.result() if done else None
            finally:
                waiting.cancel()

    def _run(self, read: Callable[[], Readings], answer: "Future[Readings]") -> None:
        try:
            answer.set_result(read())
        except Exception as error:
            answer.set_exception(error)
