"""V2: what a node's door lets in can be stored, on SQLite and on PostgreSQL, however large, long or
strange it is: nothing that passes can keep what follows it from being applied."""

import msgspec
import pytest

from controlplane.protocol import bounds, frames
from controlplane.protocol.codec import decode_from_agent, encode_frame
from controlplane.protocol.launch import RankRef
from controlplane.protocol.rank import (
    CaughtUp,
    CheckpointReport,
    DeterminismReport,
    NumericsReport,
    OuterError,
    RecomputeReport,
    SectionTime,
    StepReport,
    TimingReport,
    TrainingDone,
    ViewInstalled,
)
from controlplane.protocol.recompute import RecomputedStep
from controlplane.protocol.samples import DeviceInfo, XidEvent
from controlplane.protocol.states import Phase, Section
from controlplane.recovery import ingest
from controlplane.runtime.models import Event, FrameCounter
from tests.integration.backend.builders import Fleet, hello, live_ranks, make_fleet, ref_of, run_job

pytestmark = pytest.mark.django_db(transaction=True)

MOST, LONGEST_S = bounds.MAX_INT, 1e8
# Each takes four bytes in UTF-8, and no two neighbours are the same.
WIDE = "".join(chr(0x1F300 + (7 * number) % 997) for number in range(70_000))
CONTROL = "\x01\x1b[2J\u202e\ufffe\r\n\t\x7f"
WORD = "a" * 24
ID = "x" * 64
TIMES = SectionTime(MOST, LONGEST_S, LONGEST_S, LONGEST_S)


def text(most: int) -> str:
    """As long as it may be, and as odd."""
    return (CONTROL + WIDE)[:most]


def reports(ref: RankRef) -> list[object]:
    """Of a rank, each number and text at its end."""
    micro_batches = tuple(range(bounds.MAX_INDEX, bounds.MAX_INDEX - 1_000, -1))
    return [
        StepReport(
            MOST, MOST, LONGEST_S, MOST, micro_batches, 1.7e308, -bounds.MAX_FLOAT, "d" * 128, LONGEST_S, LONGEST_S,
            trained=micro_batches,
        ),
        StepReport(0, 0, 0.0, 0, (), float("nan")),
        OuterError(1, MOST, text(bounds.MAX_ERROR_CHARS)),
        CaughtUp(MOST, MOST, MOST, LONGEST_S, MOST, bounds.MAX_INDEX, bounds.MAX_INDEX, MOST),
        ViewInstalled(MOST, MOST, True, LONGEST_S, micro_batches),
        CheckpointReport(
            MOST, WIDE[: bounds.MAX_PATH_CHARS], "complete", WORD, MOST, MOST, LONGEST_S, LONGEST_S, "d" * 128,
            text(bounds.MAX_ERROR_CHARS), ID, ((ID,),), (MOST, MOST),
        ),
        CheckpointReport(
            1, WIDE[1 : bounds.MAX_PATH_CHARS], "failed", WORD, 1, error=text(bounds.MAX_ERROR_CHARS)
        ),
        TimingReport(0, MOST, MOST, TIMES, TIMES, TIMES, TIMES, TIMES),
        NumericsReport(MOST, MOST, WORD, WORD, text(1_000), text(1_000), micro_batches),
        DeterminismReport(MOST, MOST, MOST, bounds.MAX_FLOAT),
        TrainingDone(MOST),
        RecomputeReport(ID, (RecomputedStep(MOST, bounds.MAX_FLOAT, bounds.MAX_FLOAT),), "d" * 128, WORD, LONGEST_S),
    ]  # fmt: skip


def facts(ref: RankRef, device_index: int) -> list[frames.EventBody]:
    """Of a node, the same."""
    return [
        frames.RankStarted(ref, 1 << 22, device_index, 1e9, 1e9),
        frames.RankJoined(ref, 1e9),
        frames.RankOverdue(ref, Section.STEP, Phase.COMPUTE, MOST, 1e9, 1e9, 1e9),
        frames.XidSeen(XidEvent(index=0, xid=1_000_000, detail=text(1_000))),
        frames.DeviceLost(0, WIDE[:80]),
        frames.CommandAnswer(ID, "failed", text(bounds.MAX_DETAIL_CHARS), text(bounds.MAX_DETAIL_CHARS)),
        frames.StacksCollected(ref, text(bounds.MAX_LOOK_CHARS), WIDE[:80], ID, WORD),
        frames.StacksCollected(ref, text(bounds.MAX_LOOK_CHARS), WIDE[:80], ID, "flight_recorder"),
        frames.LogMarked(ref, WIDE[:300], text(1_000), 100_000_000),
        frames.InputRefused(ref, 100_000_000, text(1_000), True),
        frames.InputRefused(None, 100_000_000, text(1_000)),
        frames.NodeChecked(tuple(frames.NodeCheck(WORD, text(500)) for _ in range(bounds.MAX_NODE_CHECKS))),
        frames.NodeNotice(bounds.MAX_NOTICE_S, text(200)),
        frames.NodeNotice(None, text(200)),
        frames.HostExited(ref.job_id, -255, text(bounds.MAX_ERROR_CHARS)),
        frames.RankExited(ref, -255, 127, False, text(bounds.MAX_ERROR_CHARS), 1e9),
    ]


def through_the_door(body: frames.EventBody, seq: int) -> frames.AgentEvent:
    """What the server has of it: the frame was encoded and decoded."""
    frame = frames.AgentFrame(seq=1, uptime_s=1.0, events=(frames.AgentEvent(seq, 1e9, body),))
    decoded = decode_from_agent(encode_frame(frame))
    assert isinstance(decoded, frames.AgentFrame)
    return decoded.events[0]


def applied(fleet: Fleet, body: frames.EventBody) -> None:
    """It is acknowledged: nothing waits behind it."""
    fleet.seqs["n1"] += 1
    seq = fleet.seqs["n1"]
    outcome = ingest.apply_events(fleet.nodes["n1"].id, "web.n1", (through_the_door(body, seq),))
    assert (outcome.acked_seq, outcome.resend) == (seq, False), f"{type(body).__name__} is not applied"


def test_every_event_at_the_end_of_its_ranges_is_applied() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    row = next(row for row in live_ranks(job) if row.node.name == "n1")
    ref = ref_of(row)
    for report in reports(ref):
        applied(fleet, frames.RankSaid(ref, report))
    kinds = {type(body) for body in facts(ref, row.device.index)} | {frames.RankSaid}
    assert kinds == set(frames.EventBody.__args__), "no kind of event is left out"
    for body in facts(ref, row.device.index):
        applied(fleet, body)


def test_what_an_agent_refused_stands_on_its_jobs_timeline() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    ref = ref_of(next(row for row in live_ranks(job) if row.node.name == "n1"))
    applied(fleet, frames.InputRefused(ref, 3, "step is too large", True))
    told = Event.objects.get(kind="rank.refused")
    assert told.job_id == job.id
    assert "dropped 3 messages" in told.sentence
    assert "closed its connection" in told.sentence
    assert FrameCounter.objects.get(node_name="n1", reason="refused_at_node").count == 3


def test_a_hello_at_the_end_of_its_ranges_opens_a_session() -> None:
    fleet = make_fleet(1)
    devices = tuple(
        DeviceInfo(
            index=index, uuid=WIDE[index : index + 80], model=WIDE[:80], memory_bytes=MOST, driver="d" * 16,
            pci_bus_id=WIDE[:80], driver_version=WIDE[:80],
        )
        for index in (0, bounds.MAX_DEVICES - 1)
    )  # fmt: skip
    said = msgspec.structs.replace(
        hello("n1"), agent_version=WIDE[:40], boot_id=ID, journal_id=ID, segment="s" * 63, devices=devices
    )
    decoded = decode_from_agent(encode_frame(said))
    assert isinstance(decoded, frames.AgentHello)
    assert ingest.open_session(fleet.nodes["n1"].id, "web.n1", decoded) == 0
