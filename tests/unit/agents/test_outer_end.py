"""An outer scheduler takes the node back: that is a notice, and the agent leaves in time with nothing running."""

import asyncio
from typing import Any

import msgspec
import pytest

from agents.config import load
from agents.core import effects as fx
from agents.core import events as ev
from agents.core.outer_end import is_over
from agents.core.state import ProcessState
from agents.core.step import next_deadline_s, step
from agents.errors import ConfigError, ProbeError
from agents.probes.choose import make_sampler
from agents.probes.inherited import InheritedSampler, chosen
from controlplane.protocol.commands import InjectDeviceFault, StartRanks, StopRanks
from controlplane.protocol.frames import NodeNotice, RankExited
from controlplane.protocol.samples import DeviceInfo
from tests.properties.agents.world import World, launch, order

GRACE_S = 60.0


class Node(World):
    """A world whose agent may leave; signals to ranks are kept, and SIGTERM ends a rank only where `saves`."""

    def __init__(self, *, saves: bool = True) -> None:
        self.left_s: float | None = None
        self.signals: list[tuple[int, int]] = []
        self.sent_home: list[str] = []
        self.saves = saves
        super().__init__()

    def _carry_out(self, effects: tuple[fx.Effect, ...]) -> None:
        for effect in effects:
            match effect:
                case fx.Leave():
                    assert self.left_s is None, "it leaves once"
                    self.left_s = self.now_s
                case fx.Signal(ref=ref, number=number):
                    self.signals.append((ref.rank, number))
                    if number == 9 or self.saves:
                        self.kill_rank(ref, 15 if number == 15 else 137)
                case fx.ShutdownHost(job_id=job_id):
                    self.sent_home.append(job_id)
                    self.host_alive = False
                    self._later(lambda j=job_id: ev.HostProcessGone(now_s=self.now_s, job_id=j, exit_code=0))
                case fx.SweepGroup(ref=ref):
                    self._later(lambda ref=ref: ev.GroupGone(now_s=self.now_s, ref=ref))
                case _:
                    super()._carry_out((effect,))

    def train(self) -> "Node":
        """Connected, with two ranks."""
        self.connect()
        self.feed(ev.OrderReceived(now_s=self.now_s, commands=(order(1, StartRanks(launch()), 1, 1),)))
        self.drain()
        assert [rank.process for rank in self.state.ranks.values()] == [ProcessState.ALIVE] * 2
        return self

    def drain(self) -> None:
        while self.pending:
            self.deliver(0)
        self.send_frame(lost=False)

    def end(self, grace_s: float = GRACE_S) -> None:
        self.feed(ev.AllocationEnds(now_s=self.now_s, grace_s=grace_s, reason="its allocation ends (SIGTERM)"))

    def passes(self, seconds: float, *, acked: bool = True) -> None:
        """Each deadline of the core comes in time."""
        until_s, ticks = self.now_s + seconds, 0
        while self.left_s is None:
            if acked:
                self.drain()
            due_s = next_deadline_s(self.state)
            if due_s is None or due_s > until_s:
                break
            self.now_s, ticks = max(self.now_s, due_s), ticks + 1
            assert ticks < 2000, "it spins"
            self.feed(ev.Tick(now_s=self.now_s))
        self.now_s = until_s if self.left_s is None else self.now_s

    def told(self, kind: type) -> list[Any]:
        return [event.body for event in self.received if isinstance(event.body, kind)]


def test_it_is_a_notice_and_what_the_server_orders_has_its_time() -> None:
    node = Node().train()
    began_s = node.now_s
    node.end()
    node.drain()
    assert node.told(NodeNotice) == [NodeNotice(GRACE_S, "its allocation ends (SIGTERM)")]
    node.passes(20.0)
    assert node.signals == [] and node.left_s is None, "until then the server decides"
    node.feed(
        ev.OrderReceived(now_s=node.now_s, commands=(order(2, StopRanks("job_1", 1, -1, -1, 30.0, "yield"), 2, 1),))
    )
    node.passes(30.0)
    assert {number for _, number in node.signals} == {15}
    assert [exited.exit_code for exited in node.told(RankExited)] == [15, 15]
    assert node.left_s is not None and node.left_s - began_s < 25.0, "nothing runs any more"
    assert node.sent_home == ["job_1"], "the rank host ended too"


def test_where_the_server_is_away_ranks_are_asked_to_save_after_half_of_the_grace() -> None:
    node = Node().train()
    began_s = node.now_s
    node.feed(ev.LinkDown(now_s=node.now_s))
    node.end()
    node.passes(GRACE_S / 2 - 1.0)
    assert node.signals == []
    node.passes(5.0)
    assert sorted(node.signals) == [(0, 15), (1, 15)]
    assert node.left_s is not None and node.left_s - began_s <= GRACE_S / 2 + 1.0


def test_where_nothing_is_ordered_ranks_are_asked_before_the_end_and_killed_in_the_last_second() -> None:
    node = Node(saves=False).train()
    began_s = node.now_s
    node.end()
    node.passes(GRACE_S)
    assert node.signals[:2] == [(0, 15), (1, 15)] and {(0, 9), (1, 9)} <= {*node.signals}
    assert node.left_s is not None and GRACE_S - 1.5 < node.left_s - began_s < GRACE_S
    assert not node.alive


def test_what_the_server_gave_longer_than_the_node_has_is_killed_in_the_last_second() -> None:
    node = Node(saves=False).train()
    began_s = node.now_s
    node.end()
    node.feed(ev.OrderReceived(now_s=node.now_s, commands=(order(2, StopRanks("job_1", 1, -1, -1, 600.0, "r"), 2, 1),)))
    node.passes(GRACE_S - 2.0)
    assert {number for _, number in node.signals} == {15} and len(node.alive) == 2
    node.passes(2.0)
    assert not node.alive and node.left_s is not None and node.left_s - began_s < GRACE_S


def test_a_rank_that_cannot_be_killed_does_not_keep_the_agent() -> None:
    node = Node(saves=False).train()
    node.kill_rank = lambda ref, code=137: None  # type: ignore[method-assign]
    began_s = node.now_s
    node.end()
    node.passes(GRACE_S)
    assert node.left_s is not None and node.left_s - began_s < GRACE_S


def test_without_ranks_it_leaves_once_the_server_has_heard_and_no_start_is_on_its_way() -> None:
    node = Node()
    node.connect()
    node.drain()
    began_s = node.now_s
    node.end()
    node.passes(1.0)
    assert node.left_s is None, "a start may have been decided before the notice was known"
    node.passes(5.0)
    assert node.left_s is not None and node.left_s - began_s == 2.0
    deaf = Node()
    deaf.connect()
    deaf.drain()
    deaf.end()
    deaf.passes(5.0, acked=False)
    assert deaf.left_s is None, "the notice is not with the server yet"
    deaf.drain()
    assert deaf.left_s == deaf.now_s
    alone = Node()
    began_s = alone.now_s
    alone.end()
    alone.passes(5.0)
    assert alone.left_s is None, "its link may be back in a moment, and the server has not heard all"
    alone.passes(GRACE_S / 2)
    assert alone.left_s is not None and alone.left_s - began_s <= GRACE_S / 2 + 1.0, "nobody to wait for"


def test_a_start_that_was_decided_before_the_notice_is_taken_and_ended_as_others() -> None:
    node = Node()
    node.connect()
    node.drain()
    node.end()
    node.passes(0.5)
    node.feed(ev.OrderReceived(now_s=node.now_s, commands=(order(1, StartRanks(launch()), 1, 1),)))
    node.passes(10.0)
    assert len(node.alive) == 2 and node.left_s is None and node.sent_home == []
    node.feed(ev.OrderReceived(now_s=node.now_s, commands=(order(2, StopRanks("job_1", 1, -1, -1, 30.0, "r"), 2, 1),)))
    node.passes(10.0)
    assert not node.alive and node.left_s is not None


def test_a_second_signal_brings_the_end_nearer_and_moves_nothing_away() -> None:
    node = Node().train()
    node.end(60.0)
    node.end(600.0)
    assert node.state.outer_end is not None and node.state.outer_end.leaves_s == node.now_s + 60.0
    node.now_s += 1.0
    node.end(20.0)
    assert node.state.outer_end.leaves_s == node.now_s + 20.0
    node.drain()
    assert [notice.leaves_in_s for notice in node.told(NodeNotice)] == [60.0, 20.0]


@pytest.mark.parametrize("grace_s", [1.0, 2.0, 5.0, 30.0, 600.0])
def test_however_short_the_grace_the_steps_are_in_order_and_within_it(grace_s: float) -> None:
    node = Node(saves=False).train()
    began_s = node.now_s
    node.end(grace_s)
    node.passes(grace_s)
    first = [number for _, number in node.signals]
    assert first[0] == 15 and first.index(9) > first.index(15)
    assert node.left_s is not None and began_s < node.left_s < began_s + grace_s


def test_without_an_end_nothing_is_over_and_a_tick_ends_nobody() -> None:
    node = Node().train()
    assert not is_over(node.state, node.now_s + 1e6)
    state, effects = step(node.state, ev.Tick(now_s=node.now_s + 1.0))
    assert state.ranks and not any(isinstance(effect, fx.Leave | fx.Signal) for effect in effects)


def test_the_settings_of_an_allocation() -> None:
    plain = load([], {"CUDA_VISIBLE_DEVICES": "1"})
    assert (plain.tenancy, plain.inherited) == ("node", None), "a node of our own has all its devices"
    lent = load(
        ["--tenancy", "allocation", "--grace-s", "45"], {"CUDA_VISIBLE_DEVICES": "2,3", "SLURM_STEP_GPUS": "6,7"}
    )
    assert (lent.tenancy, lent.grace_s, lent.inherited) == ("allocation", 45.0, ("2", "3"))
    assert load(["--tenancy", "allocation"], {"SLURM_STEP_GPUS": "6,7"}).inherited == ("6", "7")
    assert load(["--tenancy", "allocation"], {}).inherited is None
    for none in ("", "-1", "NoDevFiles", "-1,0"):
        assert load(["--tenancy", "allocation"], {"CUDA_VISIBLE_DEVICES": none}).inherited == ()
    assert load(["--tenancy", "allocation"], {"CUDA_VISIBLE_DEVICES": "2,-1,3"}).inherited == ("2",)
    for argv, environment in (
        (["--tenancy", "borrowed"], {}),
        (["--grace-s", "0.5"], {}),
        (["--grace-s", "inf"], {}),
        (["--grace-s", "nan"], {}),
        (["--tenancy", "allocation", "--notices", "ec2"], {}),
        (["--tenancy", "allocation"], {"CUDA_VISIBLE_DEVICES": "0,0"}),
        (["--tenancy", "allocation"], {"CUDA_VISIBLE_DEVICES": "all"}),
        (["--tenancy", "allocation"], {"CUDA_VISIBLE_DEVICES": "-2"}),
        (["--tenancy", "allocation"], {"SLURM_STEP_GPUS": ",".join(map(str, range(2000)))}),
    ):
        with pytest.raises((ConfigError, SystemExit)):
            load(argv, environment)


def device(index: int, uuid: str) -> DeviceInfo:
    probe = load(["--probe", "simulated", "--devices", "1"], {})
    (info,) = make_sampler(probe, lambda _: None, lambda _: None).devices
    return msgspec.structs.replace(info, index=index, uuid=uuid)


def test_devices_are_chosen_by_index_or_uuid_and_what_is_not_there_is_none() -> None:
    there = [device(0, "GPU-aa11"), device(4, "GPU-bb22"), device(5, "GPU-bb33")]
    assert chosen(there, ("4", "5")) == {4, 5}
    assert chosen(there, ("GPU-aa11", "GPU-bb3")) == {0, 5}
    assert chosen(there, ("GPU-aa11", "GPU-bb")) == {0}, "it may be either, and one of them is somebody else's"
    assert chosen(there, ("GPU-bb33", "GPU-bb3")) == {5}
    assert chosen(there, ("7", "GPU-cc", "MIG-x")) == frozenset()
    assert chosen(there, ()) == frozenset()


def test_only_the_devices_of_the_allocation_are_seen_read_or_touched() -> None:
    config = load(
        ["--probe", "simulated", "--devices", "8", "--tenancy", "allocation"], {"CUDA_VISIBLE_DEVICES": "4,6"}
    )
    samples, xids = list[Any](), list[Any]()
    sampler = make_sampler(config, samples.extend, xids.append)
    assert isinstance(sampler, InheritedSampler)
    asyncio.run(sampler.start())
    assert [info.index for info in sampler.devices] == [4, 6]
    assert {links.device_index for links in sampler.nvlinks} == {4, 6}
    sampler.ask(1.0, frozenset())
    assert [sample.index for sample in samples] == [4, 6]
    sampler.inject(InjectDeviceFault(device_index=6, fault="xid", value=79.0))
    assert [xid.index for xid in xids] == [6]
    with pytest.raises(ProbeError, match="not of this allocation"):
        sampler.inject(InjectDeviceFault(device_index=5, fault="xid", value=79.0))
    with pytest.raises(ProbeError, match="not of this allocation"):
        asyncio.run(sampler.reset(5))
    asyncio.run(sampler.reset(4))
    sampler.close()
