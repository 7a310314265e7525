"""What `holdfast job explain` prints of a job that waits."""

from typing import Any

from controlplane.cli.waits import lines
from controlplane.protocol.rest import JobQueue, QueuedJob, QueuedPreemption, QueuedSpared


def queue(**changes: Any) -> JobQueue:
    """The second of three."""
    values: dict[str, Any] = {
        "job_id": "job_1",
        "priority": 500,
        "place": 2,
        "waiting": 3,
        "turn": "no_room",
        "may_start": False,
        "sentence": "Place 2 of 3 in the queue: too few devices are free, and a (priority 900) is ahead of it.",
        "needs": "2 nodes with 8 free devices each",
        "devices_free": 8,
        "nodes_free": 1,
        "behind": "job_0",
        "ahead": [QueuedJob(id="job_0", name="a", priority=900)],
        "ahead_count": 1,
        "makes_room": [],
        "expected_at": None,
        "outranks": [],
        "no_preemption": "",
        "spared": [],
        "reserved": [],
        "preempts": [],
    }
    return JobQueue(**(values | changes))


def test_what_is_known_is_a_line_each_and_what_is_not_is_said() -> None:
    shown = list(lines(queue()))
    assert shown[0].strip().startswith("Place 2 of 3 in the queue")
    assert [line.split()[0] for line in shown[1:]] == ["priority", "needs", "free", "ahead", "expected"]
    assert "devices: 8; nodes with as many as it takes of each: 1" in shown[3]
    assert shown[-1].endswith("not known")


def test_what_would_make_room_and_whom_it_outranks_are_named() -> None:
    ends = QueuedJob(id="job_7", name="r", priority=400, expected_end_at="2026-11-27T05:00:00Z")
    alone = {"id": "job_7", "name": "r", "priority": 400}
    many = queue(
        ahead_count=12,
        makes_room=[ends],
        outranks=[ends],
        no_preemption="all of lower priority are left alone",
        spared=[
            QueuedSpared(**alone, why="began less than 300 s ago", until_at="2026-11-27T04:00:00Z"),
            QueuedSpared(**alone, why="does not allow it, or does not train now", until_at=None),
        ],
        expected_at="2026-11-27T05:00:00Z",
        nodes_free=None,
    )
    text = "\n".join(lines(many))
    assert "a (priority 900) and 11 more" in text
    assert "r (priority 400) is expected to end 2026-11-27T05:00:00Z" in text
    assert "outranks       r (priority 400)\n" in text
    assert "no preemption  all of lower priority are left alone\n" in text
    assert "left alone     r (priority 400) began less than 300 s ago, until 2026-11-27T04:00:00Z\n" in text
    assert text.endswith("left alone     r (priority 400) does not allow it, or does not train now")
    assert "devices: 8\n" in text


def test_who_yields_is_named_with_what_it_costs_and_how_far_that_is() -> None:
    ends = QueuedJob(id="job_7", name="r", priority=400)
    base = {"id": "job_7", "name": "r", "priority": 400, "devices": 8}
    saves = QueuedPreemption(**base, lost_gpu_s=96.4, asked=True)
    text = "\n".join(
        lines(queue(outranks=[ends], preempts=[saves, QueuedPreemption(**base, lost_gpu_s=None, asked=False)]))
    )
    assert (
        "r (priority 400; saves now, 96 GPU-seconds are expected to be lost), r (priority 400; is asked next)" in text
    )
    assert "outranks" not in text


def test_of_a_job_outside_the_queue_the_sentence_is_all() -> None:
    assert list(lines(queue(place=None, sentence="It is not in the queue: it is running."))) == [
        "    It is not in the queue: it is running."
    ]
