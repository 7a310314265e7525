"""A loss that is no number is told on every door, in JSON as in MessagePack."""

import math

import pytest

from controlplane.protocol.codec import decode_from_agent, decode_line, encode_frame, encode_line
from controlplane.protocol.frames import AgentEvent, AgentFrame, RankSaid
from controlplane.protocol.launch import RankRef
from controlplane.protocol.rank import StepReport


def told(loss: float | None) -> StepReport:
    """What the server reads of it: a line to the agent, a frame from there on."""
    line = decode_line("from_rank", encode_line(StepReport(7, 2, 0.1, 64, (0,), loss)))
    event = AgentEvent(1, 0.0, RankSaid(RankRef("job_1", 1, 0, 1, 0), line))
    frame = decode_from_agent(encode_frame(AgentFrame(seq=1, uptime_s=0.0, events=(event,))))
    return frame.events[0].body.report


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_arrives_in_words(loss):
    report = told(loss)
    assert (report.loss, report.loss_not_finite) == (None, str(loss))


@pytest.mark.parametrize("loss", [4.25, None])
def test_any_other_arrives_as_it_is(loss):
    report = told(loss)
    assert (report.loss, report.loss_not_finite) == (loss, None)
