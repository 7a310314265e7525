"""What is published says the same as what is known, and is written where something has changed."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from controlplane.protocol.frames import AgentFrame, RankStatus
from controlplane.protocol.launch import RankRef
from controlplane.protocol.samples import DeviceSample
from controlplane.protocol.states import Phase, RankState, Section
from controlplane.runtime import bus
from controlplane.runtime.clock import from_s, iso
from controlplane.sentinel import publishing
from controlplane.sentinel.fleetmap import FleetMap, NodeInfo
from controlplane.sentinel.heard import Heard
from controlplane.sentinel.live_state import LiveState
from controlplane.sentinel.publishing import NODE_EVERY_S, REFRESH_S, Publisher

REFS = {"a": RankRef("job_a", 1, 0, 2, 5), "b": RankRef("job_b", 1, 3, 1, 0)}
FLEET = FleetMap(
    nodes={name: NodeInfo(name=name, connected=True) for name in "ab"},
    jobs_on={"a": {"job_a"}, "b": {"job_b"}},
    placed={ref: node for node, ref in REFS.items()},
)


class Board:
    """What readers and browsers find: the newest of each name, and what was written in the last turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shown: dict[str, Any] = {}
        self.written: list[str] = []
        self.said: list[tuple[str, dict[str, Any]]] = []
        self.watched: dict[str, Any] = {}
        self.away = False
        monkeypatch.setattr(bus, "write_live", self.write)
        monkeypatch.setattr(bus, "publish_volatiles", self.say)
        monkeypatch.setattr(bus, "read_live_of", lambda names: {n: self.watched[n] for n in names if n in self.watched})

    def write(self, states: dict[str, Any]) -> bool:
        """As Redis keeps them."""
        self.written = list(states)
        if not self.away:
            self.shown |= msgspec.json.decode(msgspec.json.encode(states))
        return not self.away

    def say(self, messages: Iterable[tuple[str, dict[str, Any]]]) -> bool:
        """As browsers get them."""
        self.said = msgspec.json.decode(msgspec.json.encode(list(messages)))
        return True


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Board:
    return Board(monkeypatch)


def state() -> LiveState:
    live = LiveState()
    live.expect(set("ab"), {(node, index) for node in "ab" for index in range(2)}, FLEET.placed)
    return live


def heard(node_id: str, seq: int, *, at_s: float, heat_c: float = 60.0, ranks: bool = True) -> Heard:
    samples = tuple(
        DeviceSample(index=index, temperature_c=heat_c + index, power_w=500.0, throttle_reasons=("gpu_idle",))
        for index in (1, 0)
    )
    status = RankStatus(
        ref=REFS[node_id], state=RankState.TRAINING, pid=1, device_index=0, section=Section.STEP, phase=Phase.EXCHANGE,
        step=7, phase_age_s=1.25, silent_s=0.5,
    )  # fmt: skip
    frame = AgentFrame(
        seq=seq, uptime_s=10.0 * seq, devices=samples, ranks=(status,) if ranks else (), cpu_ratio=0.1, rss_bytes=5
    )
    return Heard(node_id=node_id, session_id="s", at_s=at_s, frame=frame)


def nodes_written(board: Board) -> list[str]:
    return sorted(name for name in board.written if name.startswith("node:"))


def test_a_picture_of_a_node_has_every_reading_and_its_score_as_the_live_state_has_them(board: Board) -> None:
    live, shown = state(), Publisher()
    for seq in range(1, 5):
        live.take([heard("a", seq, at_s=100.0 + seq, heat_c=76.0 + seq)])
        shown.publish(live, 104.5 + seq, sight={"at_s": 1.0})
        found = board.shown["node:a"]
        for device, (index, sample) in zip(found["devices"], sorted(live.nodes["a"].samples.items()), strict=True):
            own = {**msgspec.to_builtins(sample), "throttle_reasons": ["gpu_idle"]}
            scored = {"risk": live.risk_of("a", index), "risk_parts": live.parts_of("a", index)}
            assert device == own | scored
        assert found["agent"] == {"cpu_ratio": 0.1, "rss_bytes": 5, "silent_s": pytest.approx(4.5)}
    assert live.risk_of("a", 0) is not None, "it was scored meanwhile"
    assert board.shown["nodes"] == {"a": pytest.approx(4.5)}
    assert board.shown["sight"] == {"at_s": 1.0}
    assert board.shown["fleet"] == {"reachable_risk": live.reachable_risk()}


def test_what_devices_that_were_not_scored_yet_can_score_is_not_said(board: Board) -> None:
    """Nothing of a shard with devices means that it is not known; of one without any there is nothing to know."""
    live = state()
    assert live.expects_devices and live.reachable_risk() is None
    Publisher().publish(live, 100.0, sight={"at_s": 1.0})
    assert board.shown["fleet"] == {}
    Publisher().publish(LiveState(), 100.0, sight={"at_s": 1.0})
    assert board.shown["fleet"] == {"reachable_risk": None}


def test_a_picture_of_a_rank_is_of_the_moment_at_which_it_is_written(board: Board) -> None:
    live = state()
    live.take([heard("a", 1, at_s=100.0), heard("b", 1, at_s=101.0)])
    Publisher().publish(live, 103.5, sight={})
    assert board.shown["job:job_a"] == {
        "0.2.5": {
            "section": "step", "phase": "exchange", "step": 7, "phase_age_s": 4.75, "silent_s": 4.0,
            "phase_since_s": 98.75, "at": iso(from_s(100.0)),
        }
    }  # fmt: skip
    assert board.shown["job:job_b"]["3.1.0"]["silent_s"] == 3.0


def test_a_node_is_written_when_it_has_said_something_and_again_before_what_is_shown_expires(board: Board) -> None:
    live, shown = state(), Publisher()
    live.take([heard("a", 1, at_s=100.0), heard("b", 1, at_s=100.0)])
    shown.publish(live, 100.0, sight={})
    assert nodes_written(board) == ["node:a", "node:b"]
    live.take([heard("a", 2, at_s=100.5)])
    shown.publish(live, 100.0 + NODE_EVERY_S / 2, sight={})
    assert nodes_written(board) == [], "an agent that says much costs no more"
    shown.publish(live, 100.0 + NODE_EVERY_S, sight={})
    assert nodes_written(board) == ["node:a"], "the other one said nothing"
    shown.publish(live, 100.0 + REFRESH_S, sight={})
    assert nodes_written(board) == ["node:b"]
    assert REFRESH_S < bus.LIVE_EXPIRE_S / 2
    shown.publish(live, 50.0, sight={})
    assert nodes_written(board) == ["node:a", "node:b"], "the clock was set back"


def test_what_redis_did_not_take_is_written_in_the_next_turn(board: Board) -> None:
    live, shown = state(), Publisher()
    live.take([heard("a", 1, at_s=100.0)])
    board.away = True
    shown.publish(live, 100.0, sight={})
    board.away = False
    shown.publish(live, 100.25, sight={})
    assert {"node:a", "job:job_a"} <= set(board.shown)


def test_of_more_nodes_than_a_turn_writes_the_longest_waiting_come_first_and_all_of_them(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "NODES_AT_ONCE", 3)
    names = [f"n{number}" for number in range(8)]
    live, shown = LiveState(), Publisher()
    live.expect(set(names), {(name, 0) for name in names}, {})
    for name in names:
        frame = AgentFrame(seq=1, uptime_s=1.0, devices=(DeviceSample(index=0, temperature_c=50.0),))
        live.take([Heard(node_id=name, session_id="s", at_s=100.0, frame=frame)])
    written = []
    for turn in range(3):
        shown.publish(live, 100.0 + turn * 0.25, sight={})
        written.append(nodes_written(board))
    assert written == [[f"node:n{number}" for number in part] for part in ((0, 1, 2), (3, 4, 5), (6, 7))]


def test_a_node_that_says_nothing_is_shown_on_while_more_say_something_than_a_turn_writes(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "NODES_AT_ONCE", 3)
    names = [*(f"n{number}" for number in range(15)), "quiet"]
    live, shown = LiveState(), Publisher()
    live.expect(set(names), {(name, 0) for name in names}, {})
    written: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(241):
        at_s = 100.0 + turn * 0.25
        if turn % 4 == 0:
            for name in names if turn == 0 else names[:-1]:
                frame = AgentFrame(seq=turn + 1, uptime_s=1.0, devices=(DeviceSample(index=0, temperature_c=50.0),))
                live.take([Heard(node_id=name, session_id="s", at_s=at_s, frame=frame)])
        shown.publish(live, at_s, sight={})
        for name in nodes_written(board):
            written[name.partition(":")[2]].append(at_s)
    for name, at in written.items():
        apart_s = [after - before for before, after in pairwise([*at, 160.0])]
        assert max(apart_s) < bus.LIVE_EXPIRE_S / 2, name
        assert name == "quiet" or max(apart_s) < 3.0, name


def test_ranks_of_a_large_fleet_are_written_each_second_and_of_a_job_that_is_judged_at_once(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "RANKS_A_SECOND", 1)
    live, shown = state(), Publisher()
    live.take([heard("a", 1, at_s=100.0), heard("b", 1, at_s=100.0)])
    written = []
    for turn in range(9):
        shown.publish(live, 100.0 + turn * 0.25, sight={})
        written.append("job:job_a" in board.written)
    assert written == [True, False, False, False, True, False, False, False, True]
    live.take([heard("a", 2, at_s=102.2)])
    shown.publish_jobs(live, 102.25, {"job_a"})
    assert board.written == ["job:job_a"]
    assert board.shown["job:job_a"]["0.2.5"]["silent_s"] == 0.55


@pytest.mark.parametrize(
    ("topics", "got"),
    [
        ([["overview"], []], []),
        ([["node:a"], ["job:job_b"]], ["node:a", "job:job_b"]),
        ([[], []], []),
        ([["node:elsewhere"], []], []),
    ],
)
def test_browsers_get_what_one_of_them_watches(board: Board, topics: list[list[str]], got: list[str]) -> None:
    live, shown = state(), Publisher()
    live.take([heard("a", 1, at_s=100.0), heard("b", 1, at_s=100.0)])
    board.watched = {bus.watch_key(f"w{number}"): {"topics": each} for number, each in enumerate(topics)}
    shown.hear_watched({"w0", "w1"})
    shown.tell_devices(live, FLEET, 100.5)
    assert [topic for topic, _ in board.said] == got
    shown.tell_ranks(live, 100.5)
    assert [topic for topic, _ in board.said] == [topic for topic in got if topic.startswith("job:")]
    if "job:job_b" in got:
        (rank,) = board.said[0][1]["ranks"]
        assert (rank["replica"], rank["incarnation"], rank["rank"], rank["step"]) == (3, 1, 0, 7)


@pytest.mark.parametrize("said", [{}, {"topics": None}])
def test_of_a_web_process_that_does_not_say_what_is_watched_all_is_taken_to_be(board: Board, said: Any) -> None:
    live, shown = state(), Publisher()
    live.take([heard("a", 1, at_s=100.0), heard("b", 1, at_s=100.0)])
    board.watched = {bus.watch_key("w0"): {"topics": ["node:a"]}} | ({bus.watch_key("w1"): said} if said else {})
    shown.hear_watched({"w0", "w1"})
    shown.tell_devices(live, FLEET, 100.5)
    assert sorted({topic for topic, _ in board.said}) == ["job:job_a", "job:job_b", "node:a", "node:b"]


@pytest.mark.parametrize("nodes", [publishing.MOST_NODES, publishing.MOST_NODES + 1])
def test_a_browser_that_watches_a_wide_job_is_not_sent_all_of_its_devices(board: Board, nodes: int) -> None:
    live, shown = state(), Publisher()
    live.take([heard("a", 1, at_s=100.0), heard("b", 1, at_s=100.0)])
    others = {f"other-{number}": {"job_a"} for number in range(nodes - 1)}
    fleet = FleetMap(nodes=FLEET.nodes, jobs_on={"a": {"job_a"}, "b": {"job_b"}} | others, placed=FLEET.placed)
    board.watched = {bus.watch_key("w0"): {"topics": ["job:job_a", "job:job_b", "node:a"]}}
    shown.hear_watched({"w0"})
    shown.tell_devices(live, fleet, 100.5)
    narrow = ["node:a", "job:job_a", "job:job_b"]
    assert [topic for topic, _ in board.said] == (narrow if nodes <= publishing.MOST_NODES else ["node:a", "job:job_b"])


def test_how_wide_a_job_is_its_nodes_in_other_shards_say_too(board: Board) -> None:
    live, shown = state(), Publisher()
    live.take([heard("a", 1, at_s=100.0), heard("b", 1, at_s=100.0)])
    elsewhere = {"job_a": {f"other-{number}" for number in range(publishing.MOST_NODES)}}
    fleet = FleetMap(nodes=FLEET.nodes, jobs_on=FLEET.jobs_on, placed=FLEET.placed, nodes_of=elsewhere)
    shown.watched = frozenset({"job:job_a", "job:job_b"})
    shown.tell_devices(live, fleet, 100.5)
    assert [topic for topic, _ in board.said] == ["job:job_b"]


@pytest.mark.parametrize("more", [publishing.MOST_RANKS - 1, publishing.MOST_RANKS])
def test_ranks_of_a_large_job_are_asked_for_and_not_sent(board: Board, more: int) -> None:
    elsewhere = {f"0.1.{rank}": {"step": 7} for rank in range(more)}
    live, shown = state(), Publisher(elsewhere=lambda job_id: elsewhere)
    live.take([heard("a", 1, at_s=100.0), heard("b", 1, at_s=100.0)])
    board.watched = {bus.watch_key("w0"): {"topics": ["job:job_b"]}}
    shown.hear_watched({"w0"})
    shown.tell_ranks(live, 100.5)
    assert [topic for topic, _ in board.said] == (["job:job_b"] if more < publishing.MOST_RANKS else [])
