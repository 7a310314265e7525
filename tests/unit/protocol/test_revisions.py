"""Neighbouring releases understand each other, and no field is added without a new number."""

import base64
import json
from typing import Any

import msgspec
import pytest

from agents.link.older import OlderServer
from controlplane.protocol import frames
from controlplane.protocol.codec import (
    decode_from_agent,
    decode_from_newer_agent,
    decode_to_agent,
    decode_to_older_agent,
    encode_frame,
    encode_line,
)
from controlplane.protocol.commands import CommandStatement, DeliverView
from controlplane.protocol.errors import MalformedFrame
from controlplane.protocol.frames import PROTOCOL_MAX, PROTOCOL_MIN, AgentFrame, AgentHello, Welcome
from controlplane.protocol.keeping import CheckpointsPruned
from controlplane.protocol.membership import Member, MemberRole, View
from controlplane.protocol.rank import SetView
from controlplane.protocol.revisions import ADDED, NEW_EVENTS, known_to
from controlplane.protocol.samples import DeviceSample
from controlplane.protocol.signing import encode_statement
from tests.unit.protocol import golden

OLDER = list(range(PROTOCOL_MIN, PROTOCOL_MAX))
FRAME = AgentFrame(
    seq=3,
    uptime_s=2.0,
    devices=(DeviceSample(index=0, temperature_c=61.0, retired_pages_total=2),),
    events=(frames.AgentEvent(1, 0.0, frames.HostExited("job_a", 0)),),
)


def sent(revision: int, name: str) -> bytes:
    """A message as that release's own code packed it."""
    return base64.b64decode(json.loads((golden.FOLDER / f"frames_{revision}.json").read_text())[name])


def test_what_travels_is_what_this_revision_is_kept_as() -> None:
    assert golden.now() == golden.kept(PROTOCOL_MAX), (
        "a field or a kind of message changed: raise PROTOCOL_MAX if revision"
        f" {PROTOCOL_MAX} was released, name the field in revisions.ADDED, then `python -m tests.unit.protocol.golden`"
    )


@pytest.mark.parametrize("revision", OLDER)
def test_a_revision_only_adds_and_says_what(revision: int) -> None:
    before, after = golden.kept(revision), golden.kept(revision + 1)
    for name, fields in before.items():
        if name in after:
            assert set(fields) <= set(after[name]), f"{name} lost a field: that is a new PROTOCOL_MIN"
            assert set(after[name]) - set(fields) == set(ADDED[revision + 1].get(name, ())), name
        else:
            pytest.fail(f"{name} is gone: that is a new PROTOCOL_MIN")


@pytest.mark.parametrize("revision", OLDER)
@pytest.mark.parametrize("name", ["hello", "frame"])
def test_what_an_agent_of_an_older_revision_sends_is_understood(revision: int, name: str) -> None:
    message = decode_from_agent(sent(revision, name))
    assert isinstance(message, AgentHello if name == "hello" else AgentFrame)


@pytest.mark.parametrize("revision", OLDER)
@pytest.mark.parametrize("name", ["welcome", "acked"])
def test_what_a_server_of_an_older_revision_sends_is_understood(revision: int, name: str) -> None:
    assert decode_to_agent(sent(revision, name)) == decode_to_older_agent(sent(revision, name))[0]


@pytest.mark.parametrize("revision", OLDER)
def test_a_frame_for_an_older_server_has_only_what_it_knows(revision: int) -> None:
    raw = msgspec.msgpack.decode(encode_frame(FRAME, revision))
    known = golden.kept(revision)
    assert set(raw) - {"type"} <= set(known["AgentFrame"])
    assert set(raw["devices"][0]) <= set(known["DeviceSample"])
    assert raw["devices"][0]["temperature_c"] == 61.0
    # An older server takes no None where it expects the agent's cost.
    assert "rss_bytes" not in raw
    assert raw["events"][0]["body"]["event"] == "host_exited"
    assert decode_from_agent(encode_frame(FRAME)) == FRAME


def events_and_reports() -> dict[str, type]:
    """Every kind of event, and of report in one, by name."""
    said = next(field.type for field in msgspec.structs.fields(frames.RankSaid) if field.name == "report")
    return {kind.__name__: kind for kind in (*frames.EventBody.__args__, *said.__args__)}


@pytest.mark.parametrize("revision", OLDER)
def test_kinds_of_events_that_a_revision_brought_are_named(revision: int) -> None:
    new = events_and_reports().keys() - golden.kept(revision).keys()
    later = [names for since, names in NEW_EVENTS.items() if since > revision]
    assert new == frozenset().union(*later), "an older server refuses a frame with one: name it in NEW_EVENTS"


@pytest.mark.parametrize("revision", OLDER)
def test_an_event_that_an_older_server_does_not_know_goes_as_one_that_does_nothing_there(revision: int) -> None:
    notes: list[str] = []
    older = OlderServer(lambda text, **facts: notes.append(facts["kind"]))
    ref = frames.RankRef("job_a", 1, 0, 1, 0)
    news = frames.RankSaid(ref, CheckpointsPruned((1, 5)))
    bodies = (FRAME.events[0].body, news, news)
    frame = msgspec.structs.replace(FRAME, events=tuple(frames.AgentEvent(n, 0.0, b) for n, b in enumerate(bodies, 1)))
    assert older.fit(frame, PROTOCOL_MAX) == frame
    for session in (1, 2):
        older.begin()
        raw = msgspec.msgpack.decode(encode_frame(older.fit(frame, revision), revision))
        assert [event["seq"] for event in raw["events"]] == [1, 2, 3], "no number is missing"
        kinds = [event["body"]["event"] for event in raw["events"]]
        assert kinds == ["host_exited", "input_refused", "command_answer"]
        assert {"HostExited", "InputRefused", "CommandAnswer"} <= golden.kept(revision).keys()
        assert (older.left_out, notes) == ({"CheckpointsPruned": 2 * session}, ["CheckpointsPruned"])


VIEW = View("job_a", 1, 3, (Member(0, 1, MemberRole.CONTRIBUTOR),), left_out=(Member(1, 1, MemberRole.CONTRIBUTOR),))


def order_of(view: View) -> CommandStatement:
    return CommandStatement(
        command_id="cmd_1", node_id="node_1", epoch=3, issued_at_s=1.0, ttl_s=60.0, body=DeliverView(view=view)
    )


@pytest.mark.parametrize("revision", OLDER)
def test_an_order_for_an_older_agent_has_only_what_it_knows(revision: int) -> None:
    known, cut = golden.kept(revision), known_to(DeliverView(view=VIEW), revision)
    assert cut.view == msgspec.structs.replace(VIEW, left_out=())
    raw = msgspec.msgpack.decode(encode_statement(order_of(cut.view)))
    assert set(raw["body"]["view"]) <= set(known["View"])
    assert known_to(DeliverView(view=VIEW), PROTOCOL_MAX).view == VIEW


def test_a_rank_of_an_older_release_reads_a_view_that_says_nothing_new() -> None:
    line = json.loads(encode_line(SetView(view=msgspec.structs.replace(VIEW, left_out=()))))
    assert set(line["view"]) <= set(golden.kept(PROTOCOL_MIN)["View"])


def with_news(message: Any) -> bytes:
    """As an agent of the next revision might send it."""
    raw = msgspec.msgpack.decode(encode_frame(message))
    raw["mood"] = "fine"
    for sample in raw.get("devices", ()):
        sample |= {"fan_rpm": 2000, "nested": {"a": [1]}}
    for event in raw.get("events", ()):
        event["body"]["who"] = "me"
    return msgspec.msgpack.encode(raw)


def test_unknown_fields_of_a_newer_agent_are_dropped_and_counted() -> None:
    message, dropped = decode_from_newer_agent(with_news(FRAME))
    assert message == FRAME
    assert dropped == {
        "AgentFrame.mood": 1,
        "DeviceSample.fan_rpm": 1,
        "DeviceSample.nested": 1,
        "HostExited.who": 1,
    }
    assert decode_from_newer_agent(encode_frame(FRAME)) == (FRAME, {})


def test_an_agent_of_our_own_revision_is_read_strictly() -> None:
    with pytest.raises(MalformedFrame, match="unknown field"):
        decode_from_agent(with_news(FRAME))


def test_whatever_else_is_wrong_with_a_newer_agents_frame_is_refused() -> None:
    raw = msgspec.msgpack.decode(with_news(FRAME))
    raw["seq"] = -1
    for data in (msgspec.msgpack.encode(raw), b"\xc1", msgspec.msgpack.encode([1]), b""):
        with pytest.raises(MalformedFrame):
            decode_from_newer_agent(data)


def test_unknown_fields_of_a_newer_server_are_dropped_and_counted() -> None:
    welcome = Welcome(
        protocol=PROTOCOL_MAX, node_id="n", session_id="s", acked_seq=0, frame_interval_s=1.0, sample_interval_s=1.0
    )
    message, dropped = decode_to_older_agent(with_news(welcome))
    assert (message, dropped) == (welcome, {"Welcome.mood": 1})
