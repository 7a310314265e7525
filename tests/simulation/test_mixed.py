"""The mixed schedule, its kinds of faults one by one, and what the checkers say."""

import json
import os
from dataclasses import fields

import msgspec
import pytest

from controlplane.policy.rules import common_stall
from controlplane.policy.snapshot import Placement, SignalFact
from controlplane.protocol.membership import Member, MemberRole, View
from controlplane.protocol.states import ReplicaState
from controlplane.simulator import mixed
from controlplane.simulator.__main__ import main
from controlplane.simulator.checkers import Checkers
from controlplane.simulator.departures import NOTICE, WINDOW
from controlplane.simulator.extras import Extras, Kind
from controlplane.simulator.kernel import Kernel
from controlplane.simulator.lens import BEGAN_S, Lens
from controlplane.simulator.many import Options, run
from controlplane.simulator.memory import HANG_TIMEOUT_S
from controlplane.simulator.network import Network, Way
from controlplane.simulator.rows import ReplicaRow, Rows
from controlplane.simulator.world import World, job_spec

HAPPENS = {
    "one_way": {Kind.LINK_UP, Kind.LINK_DOWN},
    "late": {Kind.LATE, Kind.REPEATED},
    "server_restarts": {Kind.SERVER_RESTART},
    "record_ends": {Kind.AGENT_RECORD, Kind.POWER_RECORD},
    "wall_leaps": {Kind.WALL_LEAP},
    "full_disks": {Kind.FULL_DISK},
    "requests": {"asked_evict", "asked_drain", "asked_checkpoint", "asked_cancel"},
    "volleys": {Kind.VOLLEY},
    "failing_exchanges": {Kind.EXCHANGES},
    "slow": {"device_slow"},
    "unfit": {Kind.UNFIT},
    "host_ends": {Kind.HOST_ENDS},
    "refused": {Kind.REFUSED},
    "overheats": {"device_overheats"},
    "rotten": {Kind.ROTTEN},
    "bad_numbers": {Kind.BAD_NUMBERS},
    "set_backs": {Kind.SET_BACK},
    "notices": {NOTICE},
    "windows": {WINDOW},
}


RELEASE = "HOLDFAST_TEST_RELEASE" in os.environ
ONCE = (
    50635, 940183, 940269, 960112, 960265, 990146, 990157, 990202, 990511, 1000199,
    1005223, 1105197, 1105561, 1303981, 1305083, 1306724, 1306973, 1307834, 1308607, 1309140,
)  # fmt: skip
"""Seeds that once ended with a violation; `make test` runs the first of them."""


@pytest.mark.parametrize("name", [field.name for field in fields(Extras)])
def test_each_kind_happens_by_its_option_and_breaks_nothing(name):
    outcome = World(13).run(4, extras=Extras(**{name: 4}))
    assert set(outcome.faults) & HAPPENS[name]
    assert outcome.violations == ()


@pytest.mark.parametrize("seed", ONCE if RELEASE else ONCE[:5])
def test_a_seed_that_once_ended_with_a_violation_passes(seed):
    assert mixed.run(seed).violations == ()


@pytest.mark.parametrize("first", range(4000, 4012, 4))
def test_no_mixed_seed_breaks_an_invariant(first):
    assert {seed: found for seed in range(first, first + 4) if (found := mixed.run(seed).violations)} == {}


def test_seeds_come_to_the_same_over_several_processes():
    options, seeds = Options(is_mixed=True), range(4000, 4004)
    alone = [outcome.digest for outcome in run(options, seeds)]
    assert [outcome.digest for outcome in run(options, seeds, 2)] == alone
    assert len(set(alone)) == 4


def test_a_run_stops_when_its_time_is_over(capsys):
    assert main(["--seed", "6", "--seeds", "1000", "--faults", "0", "--seconds", "0"]) == 0
    assert capsys.readouterr().out.startswith("1 seeds, ")


def test_a_violation_names_the_command_that_repeats_its_seed(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(Checkers, "decided", lambda self, decision: self.expect(False, "I6: for the test"))
    path = tmp_path / "found.json"
    given = ["--seed", "6", "--seeds", "2", "--faults", "1", "--one-way", "1", "--json", str(path)]
    assert main(given) == 1
    assert "  python -m controlplane.simulator --seed 7 --faults 1 --one-way 1\n" in capsys.readouterr().out
    found = json.loads(path.read_text())
    assert (found["seeds"], found["command"]) == (2, " ".join(["python -m controlplane.simulator", *given]))
    assert list(found["violations"]) == ["I6"] and found["wall_s"] > 0.0
    assert found["failed"][0]["command"] == "python -m controlplane.simulator --seed 6 --faults 1 --one-way 1"
    assert Options(is_mixed=True).command(6) == "python -m controlplane.simulator --seed 6 --mixed"


def test_a_world_that_raises_is_a_violation_of_its_seed_alone(monkeypatch):
    monkeypatch.setattr(mixed, "run", lambda seed: 1 / 0)
    assert Options(is_mixed=True).shortly(5).violations == ("ZeroDivisionError: division by zero",)


def test_a_link_that_is_lost_one_way_carries_the_other_way_and_opens_no_connection():
    kernel, heard = Kernel(1), []
    network = Network(kernel)
    network.cut_link("node-0", Way.UP)
    network.send("node-0", heard.append, "up", Way.UP)
    network.send("node-0", heard.append, "down", Way.DOWN)
    kernel.run(1.0)
    assert (heard, network.is_cut("node-0")) == (["down"], True)
    network.mend_link("node-0")
    network.send("node-0", heard.append, "up again", Way.UP)
    kernel.run(4.0)
    assert (heard[1:], network.is_cut("node-0")) == (["up again"], False)
    assert network.out_of_touch_s("node-0", 6.0) == pytest.approx(1.0, abs=0.1)


def test_a_node_is_out_of_touch_until_something_of_it_comes_up_again() -> None:
    kernel = Kernel(1)
    network = Network(kernel)
    network.cut_link("node-0", Way.UP)
    kernel.after(2.0, network.mend_link, "node-0")
    kernel.after(3.5, network.send, "node-0", [].append, "I am here", Way.UP)
    kernel.run(3.0)
    assert network.out_of_touch_s("node-0", 6.0) == 3.0
    kernel.run(8.0)
    assert network.out_of_touch_s("node-0", 6.0) == pytest.approx(3.5, abs=0.1)


@pytest.mark.parametrize(("loss", "out_s"), [(1.0, 4.0), (0.0, 1.0)])
def test_what_a_bad_network_lost_right_before_a_cut_is_of_the_same_time_out_of_touch(loss: float, out_s: float) -> None:
    kernel = Kernel(1)
    network = Network(kernel)
    network.send("node-0", [].append, "I am here", Way.UP)
    kernel.run(1.0)
    network.loss = loss
    for at_s in (0.5, 1.0, 1.5):
        kernel.after(at_s, network.send, "node-0", [].append, "and here", Way.UP)
    kernel.after(2.0, network.cut_link, "node-0", Way.UP)
    kernel.run(4.0)
    assert network.out_of_touch_s("node-0", 6.0) == pytest.approx(out_s, abs=0.1)


def test_a_link_that_is_held_carries_everything_late_and_in_order():
    kernel, heard = Kernel(1), []
    network = Network(kernel)
    network.hold_link("node-0", (Way.UP,), 5.0)
    for number in range(20):
        kernel.after(number / 10.0, network.send, "node-0", lambda m: heard.append((kernel.now_s, m)), number, Way.UP)
    kernel.run(10.0)
    assert heard == [(5.0, number) for number in range(20)]


def test_who_trains_while_the_link_of_its_agent_is_lost_is_not_sick():
    world = World(3)
    world.start()
    world.kernel.run(20.0)
    world.network.cut_link("node-1", Way.UP)
    world.kernel.run(20.0 + 2.0 * world.config.lease_s)
    index = next(p.index for p in world.trainer.processes.values() if p.first.node == "node-1")
    assert world.truth.sick(1, index, 1) is None, "steps commit with it"
    for step in world.server.rows.steps.values():
        step.at_s = min(step.at_s, 20.0)
    assert world.truth.sick(1, index, 1, "node_silent") == "a node is or was just cut off"
    world.network.mend_link("node-1")
    world.kernel.run(world.kernel.now_s + 7.0)
    assert world.truth.sick(1, index, 1) is None


def test_an_eviction_is_judged_by_the_cause_that_it_states():
    world = World(3)
    world.start()
    world.kernel.run(20.0)
    process = next(each for each in world.trainer.processes.values() if each.index == 1)
    assert world.truth.sick(1, 1, 1, "hang") is None
    world.server.pause(60.0)
    world.faults.hang_rank(process)
    world.kernel.run(20.0 + HANG_TIMEOUT_S)
    assert world.truth.sick(1, 1, 1, "hang") == "a process hangs or did until just now"
    assert world.truth.sick(1, 1, 1, "node_silent") is None, "true, and not what is stated"
    assert world.truth.sick(1, 1, 1, "device_lost") is None


def test_the_policy_is_shown_times_by_the_clock_that_was_set():
    lens = Lens()
    lens.watches = True
    lens.set_clock(50.0, 3600.0)
    world = World(3)
    world.start()
    world.kernel.run(20.0)
    seen = []
    world.server.decide = lambda snapshot, config: (seen.append(snapshot), lens(snapshot, config))[1]
    world.server.ring()
    world.kernel.run(21.0)
    shown = lens.shown(msgspec.structs.replace(seen[0], now_s=60.0))
    assert (shown.now_s, shown.clock_set_s, shown.clock_step_s) == (BEGAN_S + 3660.0, BEGAN_S + 3650.0, 3600.0)
    assert shown.view_since_s == BEGAN_S + seen[0].view_since_s, "written before"
    said = {"phase_since_s": 51.0, "read_s": 59.0, "phase": "compute"}
    late = SignalFact(id="sig_1", kind="rank_overdue", seen_s=56.0, value=5.0, evidence=said)
    (found,) = lens.shown(msgspec.structs.replace(seen[0], now_s=60.0, signals=(late,))).signals
    assert (found.seen_s, found.evidence["phase_since_s"], found.evidence["read_s"]) == tuple(
        BEGAN_S + 3600.0 + at_s for at_s in (56.0, 51.0, 59.0)
    ), "else what ranks say of themselves seems older than what is found of them, and nobody who hangs is ended"


def test_whom_the_view_leaves_out_is_not_counted():
    rows = Rows(spec=job_spec(), nodes={})
    rows.replicas[1] = ReplicaRow(1, 1, ReplicaState.SUSPECT, 0.0, (Placement(rank=0, node_id="a", device_index=0),))
    member = Member(replica=0, incarnation=1, role=MemberRole.CONTRIBUTOR)
    rows.view = View(job_id="job_sim", attempt=1, epoch=3, members=(member,), donors=(), reason="")
    checkers = Checkers(Kernel(1), 6)
    checkers.counted(rows)
    assert checkers.violations == []
    rows.replicas[1].contributing = True
    checkers.counted(rows)
    assert checkers.violations == ["0.000 I-counts: r1.1 counts, and the view is without it"]


def test_a_rank_tells_how_long_it_has_been_in_its_phase():
    world = World(3)
    world.start()
    world.kernel.run(20.0)
    process = next(process for process in world.trainer.processes.values() if process.index == 1)
    world.network.cut_link("node-0")
    world.faults.hang_rank(process)
    since_s = process.phase_since_s
    world.kernel.run(22.0)
    assert process.phase_since_s == since_s <= 20.0
    other = next(each for each in world.trainer.processes.values() if each.index == 0)
    assert 1.0 < world.kernel.now_s - other.phase_since_s < 3.0, "it waits for the one that hangs"


def test_a_common_stall_is_held_until_its_limit_and_judged_after_it(monkeypatch):
    world = World(3)
    assert world.checkers.held_until_s(world.config) == 0.0
    decision = common_stall.Decision(
        rule=common_stall.RULE, choice="hold", reason_code="common_stall", sentence="all", key="k", actions=()
    )
    world.kernel.after(100.0, world.checkers.decided, decision)
    world.run(0)
    assert world.kernel.now_s == 100.0 + world.config.common_limit_s + 150.0 + 30.0
