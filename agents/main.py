"""`python -m agents`: settings, lock, enrolment, and the agent until SIGTERM.

Exit codes: 0 asked to stop (ranks run on; of an allocation that ends, they have ended), 2 wrong settings,
3 another agent has this state directory, 4 enrolment refused.
"""

import asyncio
import fcntl
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from agents import exporter
from agents.config import ALLOCATION, Config, load
from agents.core.events import AllocationEnds, NoticeRead
from agents.core.policy import NodeRules
from agents.core.restore import restore, snapshot
from agents.core.state import State
from agents.errors import ConfigError, EnrolmentError
from agents.for_ever import for_ever
from agents.link.client import Link
from agents.link.enrol import Facts, load_credential
from agents.link.identity import NodeIdentity
from agents.link.joining import Outcast, enrol_patiently
from agents.link.journal import Journal, read_journal
from agents.log import note
from agents.notices.watch import Watch, source_of
from agents.policy_file import rules_of
from agents.probes.host import boot_id, machine_id
from agents.ranks.places import Places
from agents.renewal import fresh_journal_id
from agents.runtime import Agent
from controlplane.protocol import first_use

EXIT_CONFIG, EXIT_LOCKED, EXIT_ENROLMENT = 2, 3, 4
ENDS = (signal.SIGTERM, signal.SIGUSR1)


def main(argv: Sequence[str] | None = None) -> int:
    """The process's exit code."""
    try:
        config = load(sys.argv[1:] if argv is None else argv)
        for folder in (config.state_dir, config.identity_dir):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        Places(config.jobs_dir).open()
        rules = rules_of(config)
        lock = _lock(config.state_dir / "lock")
    except (ConfigError, OSError) as error:
        print(f"agent: {error}", file=sys.stderr)
        return EXIT_CONFIG
    if lock is None:
        print(f"agent: another agent runs on {config.state_dir}", file=sys.stderr)
        return EXIT_LOCKED
    note("agent starts", **config.masked())
    if config.inherited is not None:
        # Ranks take a device by its index among all, in the order in which the driver lists them.
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    first_use.prepare()
    try:
        return asyncio.run(_run(config, rules))
    finally:
        os.close(lock)


async def _run(config: Config, rules: NodeRules) -> int:
    """1. State from the journal. 2. Ranks and hosts adopted. 3. Credential. 4. Link, until
    asked to stop. Ranks are looked after from 2 on, whatever becomes of the server."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    lent = config.tenancy == ALLOCATION
    for number in (signal.SIGINT,) if lent else (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    state, journal, same_boot = _open_state(config.state_dir)
    state = replace(state, rules=rules)
    state = replace(state, memory_wait_s=config.memory_wait_s, empty_device_bytes=config.empty_device_mib << 20)
    agent = Agent(config, state, journal)
    loop.add_signal_handler(signal.SIGHUP, agent.read_rules)
    for number in ENDS if lent else ():
        loop.add_signal_handler(number, _allocation_ends, config, agent, number)
    # One that came before was held back until now by who started this process (`controlplane.slurm.node`).
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
    await agent.sampler.start()
    await agent.start(same_boot=same_boot)
    if lent and not same_boot and agent.state.outer_end is None:
        # The first start in this allocation: what was said of the end of an earlier one is over.
        agent.dispatch(NoticeRead(now_s=time.monotonic(), leaves_in_s=None, reason="this is another allocation"))
    exporting = asyncio.create_task(
        asyncio.to_thread(exporter.start, config.metrics_bind, lambda: agent.state, agent.device_series)
    )
    source = source_of(config)
    watch = Watch(source, agent.dispatch, note).watch_for_ever if source else None
    watching = [asyncio.create_task(for_ever(watch))] if watch else []
    online = asyncio.create_task(_online(config, agent))
    stopping, leaving = asyncio.create_task(stop.wait()), asyncio.create_task(agent.left.wait())
    code = 0
    try:
        await asyncio.wait({online, stopping, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if online.done() and not online.cancelled() and online.exception() is not None:
            error = online.exception()
            note("agent ends", error=error)
            code = EXIT_ENROLMENT if isinstance(error, EnrolmentError) else EXIT_CONFIG
    finally:
        for task in (online, stopping, leaving, *watching):
            task.cancel()
        await asyncio.gather(online, stopping, leaving, exporting, *watching, return_exceptions=True)
        await agent.stop()
    note("agent ended", ranks_left_running=len(agent.state.ranks))
    return code


def _allocation_ends(config: Config, agent: Agent, number: signal.Signals) -> None:
    reason = f"its allocation ends ({number.name})"
    agent.dispatch(AllocationEnds(now_s=time.monotonic(), grace_s=config.grace_s, reason=reason))


def _open_state(state_dir: Path) -> tuple[State, Journal, bool]:
    """The restored state, its compacted journal, and whether the machine has not rebooted since."""
    path = state_dir / "journal"
    boot = boot_id()
    fresh_id = fresh_journal_id()
    state = restore(
        read_journal(path, lambda count, aside: note("journal records not read", count=count, kept_in=aside)),
        boot_id=boot,
        fresh_journal_id=fresh_id,
        now_s=time.monotonic(),
    )
    journal = Journal(path)
    journal.compact(snapshot(state))
    if journal.error:
        note("journal degraded", error=journal.error)
    return state, journal, state.journal_id != fresh_id


async def _online(config: Config, agent: Agent) -> None:
    """Enrol if need be, then keep the link up. Ends by cancellation or a final refusal only."""
    credential = load_credential(config.identity_dir / "credential")
    if credential is None:
        credential = await enrol_patiently(config, _facts(config, agent))
        note("enrolled", node_id=credential.node_id)
    identity = NodeIdentity(
        config.identity_dir,
        credential,
        server_host=urlsplit(config.server.url).hostname or "",
        machine_id=machine_id(),
    )
    agent.identity = identity
    agent.link = Link(
        config.server,
        identity=identity,
        hello=agent.hello,
        compose=agent.compose,
        dispatch=agent.dispatch,
        note=note,
    )
    agent.link.on_outcast = Outcast(config, identity, lambda: _facts(config, agent)).try_again
    await agent.link.run()


def _facts(config: Config, agent: Agent) -> Facts:
    return Facts(
        node_name=config.name,
        boot_id=agent.state.boot_id,
        machine_id=machine_id(),
        segment=config.segment,
        devices=agent.sampler.devices,
    )


def _lock(path: Path) -> int | None:
    """A lock held by this process for its life; None if another holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
