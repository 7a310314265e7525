"""Errors that a device counted while no sentinel watched, against what was stored of it before."""

import pytest
from django.db import OperationalError
from django.db.models import F

from controlplane.fleet.models import Device, Node
from controlplane.protocol import frames
from controlplane.protocol.samples import DeviceSample
from controlplane.recovery.models import Signal
from controlplane.runtime.clock import from_s
from controlplane.sentinel import seeds
from controlplane.sentinel.fleetmap import read_map
from controlplane.sentinel.heard import Heard
from controlplane.sentinel.history import History
from controlplane.sentinel.live_state import LiveState
from controlplane.sentinel.scan import Scanner
from tests.integration.backend.builders import make_fleet

pytestmark = pytest.mark.django_db(transaction=True)
BEGAN_S, AWAY_S = 1.7e9, 300.0


def a_sentinel_watches(node_id: str, errors: int, *, at_s: float, session: str, store: bool = True) -> None:
    """From nothing, for five seconds, then it ends; `store` False: it is killed before it stores what it saw."""
    live_state, history, where = LiveState(), History(60.0), read_map()
    live_state.expect(where.nodes, where.devices, where.placed, where.error_s)
    seeds.name(live_state, where)
    for second in range(5):
        frame = frames.AgentFrame(
            seq=second + 1, uptime_s=1.0, devices=(DeviceSample(index=0, ecc_uncorrected_total=errors),)
        )
        heard = Heard(node_id=node_id, session_id=session, at_s=at_s + second, frame=frame)
        history.take(live_state.take([heard]), live_state)
    seeds.seed(live_state, where)
    Scanner().scan(live_state, where, at_s + 5, blind=True)
    if store:
        history.force(known={node_id})


def found() -> list[float]:
    return [row.value for row in Signal.objects.filter(kind="device_reading").order_by("seen_at")]


def node() -> str:
    make_fleet(1)
    return Node.objects.get().id


def test_errors_that_came_while_no_sentinel_watched_are_found_by_the_next_one() -> None:
    node_id = node()
    a_sentinel_watches(node_id, 0, at_s=BEGAN_S, session="a")
    assert found() == []
    a_sentinel_watches(node_id, 3, at_s=BEGAN_S + AWAY_S, session="b")
    assert found() == [3.0]


@pytest.mark.parametrize(("before", "after"), [(3, 0), (3, 2), (3, 3)])
def test_a_reboot_and_no_growth_are_none(before: int, after: int) -> None:
    node_id = node()
    a_sentinel_watches(node_id, before, at_s=BEGAN_S, session="a")
    a_sentinel_watches(node_id, after, at_s=BEGAN_S + AWAY_S, session="b")
    assert found() == []


def test_what_another_device_counted_in_that_place_is_not_compared() -> None:
    node_id = node()
    a_sentinel_watches(node_id, 0, at_s=BEGAN_S, session="a")
    Device.objects.filter(node_id=node_id, index=0).update(uuid="GPU-new", uuid_since=from_s(BEGAN_S + 60.0))
    a_sentinel_watches(node_id, 3, at_s=BEGAN_S + AWAY_S, session="b")
    assert found() == []


def test_what_an_outage_of_the_database_leaves_uncompared_is_compared_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node_id = node()
    a_sentinel_watches(node_id, 0, at_s=BEGAN_S, session="a")
    live_state, where = LiveState(), read_map()
    live_state.expect(where.nodes, where.devices, where.placed, where.error_s)
    frame = frames.AgentFrame(seq=1, uptime_s=1.0, devices=(DeviceSample(index=0, ecc_uncorrected_total=3),))
    live_state.take([Heard(node_id=node_id, session_id="b", at_s=BEGAN_S + AWAY_S, frame=frame)])

    def away(*_: object, **__: object) -> None:
        raise OperationalError("the connection is lost")

    for name in ("_newest_findings", "newest_totals"):
        with monkeypatch.context() as outage:
            outage.setattr(seeds, name, away)
            with pytest.raises(OperationalError):
                seeds.seed(live_state, where)
        assert set(live_state.watch.begun) == {node_id}
    seeds.seed(live_state, where)
    assert not live_state.watch.begun
    assert [finding.over for finding in live_state.watch.news()] == [False]


def test_of_the_findings_about_a_device_the_newest_is_read_alone() -> None:
    node_id = node()
    for number, (index, seen_s) in enumerate([(0, 10.0), (0, 30.0), (0, 20.0), (1, 5.0)]):
        Signal.objects.create(
            id=f"sig_{number}", kind="device_reading", node_id=node_id, device_index=index, key=f"k{number}",
            seen_at=from_s(BEGAN_S + seen_s),
        )  # fmt: skip
    found = seeds._newest_findings([node_id])
    assert {place: row.id for place, row in found.items()} == {(node_id, 0): "sig_1", (node_id, 1): "sig_3"}


def test_what_was_found_already_is_not_found_again_by_the_next_one() -> None:
    """The one that found it was killed before it stored the readings; what it found was settled since."""
    node_id = node()
    a_sentinel_watches(node_id, 0, at_s=BEGAN_S, session="a")
    a_sentinel_watches(node_id, 3, at_s=BEGAN_S + AWAY_S, session="b", store=False)
    assert found() == [3.0]
    seen_at = from_s(BEGAN_S + AWAY_S + 5.0)
    Signal.objects.filter(kind="device_reading").update(settled_at=F("created_at"), seen_at=seen_at)
    a_sentinel_watches(node_id, 3, at_s=BEGAN_S + 2 * AWAY_S, session="c")
    assert found() == [3.0]
