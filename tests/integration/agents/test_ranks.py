"""A real agent process, real rank processes, a small server."""

import os
import signal
import time
from pathlib import Path

from controlplane.protocol.commands import (
    CollectStacks,
    DeliverInstall,
    DeliverView,
    InjectDeviceFault,
    InjectRankFault,
    StopRanks,
)
from controlplane.protocol.frames import (
    LogMarked,
    NodeChecked,
    RankExited,
    RankJoined,
    RankOverdue,
    RankSaid,
    RankStarted,
    StacksCollected,
)
from controlplane.protocol.membership import Flush, Install, Member, MemberRole, View
from controlplane.protocol.rank import ViewInstalled
from tests.integration.agents.conftest import AgentProcess, end_everything_of, start_order, until_gone
from tests.integration.agents.server import Server

JOB = {"job_id": "job_1", "attempt": 1}


async def running_replica(server: Server, **changes: object) -> dict[int, int]:
    """Start a replica of two ranks; rank -> pid."""
    before = len(server.bodies(RankJoined))
    command = await server.send(start_order(**changes), epoch=changes.get("epoch", 1), **JOB)
    assert (await server.done(command)).state == "succeeded"
    await server.until(lambda: len(server.bodies(RankJoined)) >= before + 2)
    return {body.ref.rank: body.pid for body in server.bodies(RankStarted)[-2:]}


async def test_start_reports_processes_and_joins(server: Server, agent: AgentProcess) -> None:
    pids = await running_replica(server)
    assert sorted(pids) == [0, 1]
    assert all(os.getsid(pid) == pid for pid in pids.values()), "each rank has a session of its own"
    statuses = await server.until(lambda: next((f.ranks for f in server.frames if len(f.ranks) == 2), None))
    assert {status.pid for status in statuses} == set(pids.values())


async def test_a_killed_rank_is_reported_at_once_and_its_replica_is_ended(server: Server, agent: AgentProcess) -> None:
    pids = await running_replica(server, log_markers={"began": "replica * runs"})
    killed_s = time.monotonic()
    os.kill(pids[0], signal.SIGKILL)
    await server.until(lambda: len(server.bodies(RankExited)) == 2)
    first, second = server.bodies(RankExited)
    assert (first.ref.rank, first.signal, first.exit_code, first.expected) == (0, 9, None, False)
    assert (second.ref.rank, second.signal, second.expected) == (1, 9, True)
    assert "replica 0 runs" in first.log_tail
    marked = [body for body in server.bodies(LogMarked) if body.ref.rank == 0]
    assert [(body.marker, body.count) for body in marked] == [("began", 1)], "its log was read before it ended"
    index = next(i for i, event in enumerate(server.events) if isinstance(event.body, RankExited))
    print(f"kill to event at the server: {(server.arrived[index] - killed_s) * 1e3:.2f} ms")
    await until_gone(*pids.values())


async def test_an_agent_with_an_old_driver_and_a_cut_link_refuses_a_start_until_that_is_mended(
    server: Server, agent: AgentProcess
) -> None:
    await server.until(lambda: [body.failed for body in server.bodies(NodeChecked)] == [()])
    await server.send(InjectDeviceFault(0, "nvlink", 4.0))
    await server.send(InjectDeviceFault(0, "old_driver"))
    await server.until(lambda: len(server.bodies(NodeChecked)[-1].failed) == 2)
    refused = await server.done(await server.send(start_order(), epoch=1, **JOB))
    assert refused.state == "failed"
    assert "the node is not fit: driver: version 535" in refused.detail
    assert "; nvlink: device 0: 17 of 18 are up, down: 4; " in refused.detail
    await server.send(InjectDeviceFault(0, "heal"))
    await server.until(lambda: not server.bodies(NodeChecked)[-1].failed)
    await running_replica(server, incarnation=2)


async def test_a_start_on_a_device_that_is_not_empty_waits_and_says_so(server: Server, tmp_path: Path) -> None:
    options = ("--segment", "rack-7", "--empty-device-mib", "0", "--memory-wait-s", "0.6")
    agent = AgentProcess(server, tmp_path / "s", *options).start()
    try:
        await server.until(lambda: server.hellos)
        assert server.hellos[0].segment == "rack-7"
        await running_replica(server)
        began_s = time.monotonic()
        answer = await server.done(await server.send(start_order(incarnation=2, epoch=2), epoch=2, **JOB))
        assert answer.state == "succeeded" and time.monotonic() - began_s >= 0.6
        assert answer.detail.endswith("; not empty after 0.6 s: device 0 (320 MiB used), device 1 (320 MiB used)")
    finally:
        agent.kill()
        end_everything_of(tmp_path / "s")


async def test_an_exit_code_arrives(server: Server, agent: AgentProcess) -> None:
    pids = await running_replica(server, env={"FAKE_EXIT_CODE": "17"})
    os.kill(pids[0], signal.SIGUSR1)
    await server.until(lambda: len(server.bodies(RankExited)) == 2)
    assert server.bodies(RankExited)[0].exit_code == 17


async def test_stop_succeeds_only_when_the_processes_are_gone(server: Server, agent: AgentProcess) -> None:
    pids = await running_replica(server)
    os.kill(pids[1], signal.SIGSTOP)
    command = await server.send(StopRanks("job_1", 1, 0, 1, 0.0, "test"), epoch=1, **JOB)
    assert (await server.done(command)).state == "succeeded"
    await until_gone(*pids.values())
    assert all(body.expected for body in server.bodies(RankExited))


async def test_a_new_incarnation_starts_after_the_old_one_is_gone(server: Server, agent: AgentProcess) -> None:
    old = await running_replica(server)
    new = await running_replica(server, incarnation=2, epoch=2)
    await until_gone(*old.values())
    order = [type(e.body).__name__ for e in server.events if isinstance(e.body, RankExited | RankStarted)]
    assert order == ["RankStarted"] * 2 + ["RankExited"] * 2 + ["RankStarted"] * 2
    assert set(new.values()).isdisjoint(old.values())


async def test_view_flush_install_travel_both_ways(server: Server, agent: AgentProcess) -> None:
    await running_replica(server)
    view = View("job_1", 1, 2, (Member(0, 1, MemberRole.CONTRIBUTOR),))
    await server.send(DeliverView(view), epoch=2, **JOB)
    flushes = await server.until(lambda: said(server, Flush, 2))
    assert {flush.epoch for flush in flushes} == {2}
    await server.send(DeliverInstall(Install("job_1", 1, 2, 0, (0,))), epoch=2, **JOB)
    await server.until(lambda: said(server, ViewInstalled, 2))


async def test_a_replica_left_out_of_the_view_is_evicted_and_gone(server: Server, agent: AgentProcess) -> None:
    pids = await running_replica(server)
    both = (Member(0, 1, MemberRole.CONTRIBUTOR), Member(1, 1, MemberRole.CONTRIBUTOR))
    await server.send(DeliverView(View("job_1", 1, 2, both)), epoch=2, **JOB)
    await server.until(lambda: said(server, Flush, 2))
    os.kill(pids[0], signal.SIGSTOP)
    await server.send(DeliverView(View("job_1", 1, 3, both[1:])), epoch=3, **JOB)
    await server.until(lambda: len(server.bodies(RankExited)) == 2)
    by_rank = {body.ref.rank: body for body in server.bodies(RankExited)}
    assert (by_rank[0].signal, by_rank[1].exit_code) == (9, 9), "the stopped one is killed, the other left by itself"
    assert all(body.expected for body in by_rank.values())
    await until_gone(*pids.values())


async def test_a_rank_stuck_in_a_phase_is_overdue_once(server: Server, agent: AgentProcess) -> None:
    await running_replica(server, env={"FAKE_FREEZE_PHASE": "compute"}, step_timeout_s=0.5)
    await server.until(lambda: len(server.bodies(RankOverdue)) == 2)
    frames = len(server.frames)
    await server.until(lambda: len(server.frames) >= frames + 10)
    assert len(server.bodies(RankOverdue)) == 2
    assert {body.phase for body in server.bodies(RankOverdue)} == {"compute"}


async def test_a_rank_that_waits_for_others_is_never_overdue(server: Server, agent: AgentProcess) -> None:
    await running_replica(server, env={"FAKE_FREEZE_PHASE": "exchange"}, step_timeout_s=0.3)
    frames = len(server.frames)
    await server.until(lambda: len(server.frames) >= frames + 8)
    assert not server.bodies(RankOverdue)


async def test_stacks_come_from_outside_even_when_stopped(server: Server, agent: AgentProcess) -> None:
    pids = await running_replica(server)
    os.kill(pids[1], signal.SIGSTOP)
    command = await server.send(CollectStacks("job_1", 0, 1), epoch=1, **JOB)
    assert (await server.done(command)).state == "succeeded"
    taken = {body.ref.rank: body for body in server.bodies(StacksCollected)}
    assert taken[0].method in ("py-spy", "faulthandler")
    assert "in talk" in taken[0].text
    assert taken[1].method in ("py-spy", "kernel")
    assert taken[1].text


async def test_rank_faults_hit_only_jobs_that_allow_them(server: Server, agent: AgentProcess) -> None:
    await running_replica(server)
    command = await server.send(InjectRankFault("job_1", 0, 1, 1, "sigkill"), epoch=1, **JOB)
    assert (await server.done(command)).state == "succeeded"
    await server.until(lambda: len(server.bodies(RankExited)) == 2)
    assert [(b.ref.rank, b.expected) for b in server.bodies(RankExited)] == [(1, False), (0, True)]


async def test_an_entrypoint_runs_without_a_host(server: Server, agent: AgentProcess) -> None:
    command = await server.send(
        start_order(entrypoint=("/bin/sh", "-c", 'echo "rank $RANK of $WORLD_SIZE"; exit 3')), epoch=1, **JOB
    )
    await server.done(command)
    await server.until(lambda: server.bodies(RankExited))
    first = server.bodies(RankExited)[0]
    assert first.exit_code == 3
    assert f"rank {first.ref.rank} of 2" in first.log_tail


def said(server: Server, kind: type, count: int) -> list:
    found = [body.report for body in server.bodies(RankSaid) if isinstance(body.report, kind)]
    return found if len(found) >= count else []
