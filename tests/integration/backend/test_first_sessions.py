"""The first sessions of nodes that have enrolled are opened together: the same rows as one by one, in as many
statements for a thousand as for ten."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.link.keys import NodeKey
from controlplane.dispatch import services as dispatch
from controlplane.fleet import ends, flapping, identity
from controlplane.fleet.enrolment import enroll_node
from controlplane.fleet.models import Device, Node, NodeLife
from controlplane.policy.signals.nodes import NodeSilent
from controlplane.protocol.commands import WarmHost
from controlplane.protocol.errors import IdentityMismatch
from controlplane.protocol.frames import AgentHello, JobSeen
from controlplane.recovery import returning, signals
from controlplane.runtime.clock import now
from controlplane.runtime.models import Event
from tests.findings import finding
from tests.integration.backend import test_returns
from tests.integration.backend.builders import Fleet, hello, make_fleet, run_job
from tests.integration.backend.fake_agent import join_token
from tests.integration.backend.held import asked
from tests.integration.backend.test_set_back import here

pytestmark = pytest.mark.django_db
NAMES = ("new-1", "new-2", "new-3", "new-4")
MOMENT_S = 1_000_000.0


def enrolled(name: str, **binding: Any) -> Node:
    """It has a key, and no session yet."""
    return Node.objects.get(pk=enroll_node(asked(name, join_token(**binding))))


def lived(name: str) -> Node:
    """It was here with another key, had a session and told of events; a notice of its provider stands."""
    first = NodeKey.fresh()
    node_id = enroll_node(asked(name, join_token(), key=first))
    shown = identity.Shown(boot_id="old", journal_id="older", machine_id="m", counter=3)
    assert identity.admit(node_id, shown) == identity.ADMIT
    said = msgspec.structs.replace(hello(name), boot_id="old", journal_id="older")
    assert test_returns.one_by_one(test_returns.returns([(node_id, said)])) == [0]
    node = Node.objects.get(pk=node_id)
    ends.note(node, now().timestamp() + 3600.0, "spot")
    Node.objects.filter(pk=node_id).update(last_event_seq=7, gap_since=now())
    enroll_node(asked(name, join_token(), key=NodeKey.fresh(), old_key=first))
    return Node.objects.get(pk=node_id)


def bound(name: str) -> Node:
    """Its token says where it is."""
    Node.objects.filter(pk=enrolled(name).pk).update(pool="block-a")
    return Node.objects.get(name=name)


def with_a_command(name: str) -> Node:
    node = enrolled(name)
    dispatch.enqueue(WarmHost(job_id="job", attempt=0, user="ada"), node_id=node.id)
    return node


def found_silent(name: str) -> Node:
    node = enrolled(name)
    signals.raise_signal(finding(NodeSilent, node_id=node.id))
    return node


def numbered(name: str) -> Node:
    """A life of it, of which events were applied, is known beside."""
    node = enrolled(name)
    NodeLife.objects.create(
        node=node, boot_id="boot", journal_id=f"journal-{name}", last_event_seq=5, last_seen_at=now()
    )
    return node


BEFORE: dict[str, Callable[[str], Node]] = {
    "enrolled": enrolled,
    "held": lambda name: enrolled(name, hold=True),
    "bound": bound,
    "with a life before": lived,
    "with a command": with_a_command,
    "found silent": found_silent,
    "its journal is known": numbered,
}


def ranks_of_others(said: AgentHello) -> AgentHello:
    return msgspec.structs.replace(said, ranks=here("n1"))


def ranks_of_nobody(said: AgentHello) -> AgentHello:
    """Of a job that no row has."""
    status = here("n1")[0]
    ref = msgspec.structs.replace(status.ref, job_id="job_of_nobody")
    return msgspec.structs.replace(said, ranks=(msgspec.structs.replace(status, ref=ref),))


SAID: dict[str, Callable[[AgentHello], AgentHello]] = {
    "as it enrolled": lambda said: said,
    "a device more": lambda said: msgspec.structs.replace(said, devices=hello(said.node_name, devices=3).devices),
    "no device is listed": lambda said: msgspec.structs.replace(said, devices=()),
    "another name": lambda said: msgspec.structs.replace(said, node_name="somebody"),
    "its events begin later": lambda said: msgspec.structs.replace(said, first_unacked_seq=9),
    "it names a job": lambda said: msgspec.structs.replace(
        said, jobs=(JobSeen(job_id=here("n1")[0].ref.job_id, attempt=1, epoch=0),)
    ),
    "it lists ranks": ranks_of_others,
    "it lists ranks of nobody": ranks_of_nobody,
    "it knows no journal": lambda said: msgspec.structs.replace(said, journal_id="", boot_id=""),
}
SCENE = st.lists(
    st.tuples(
        st.sampled_from(sorted(BEFORE)) | st.just("enrolled"), st.sampled_from(sorted(SAID)) | st.just("as it enrolled")
    ),
    min_size=len(NAMES), max_size=len(NAMES),
)  # fmt: skip


@pytest.fixture
def others(db: None) -> Fleet:
    """A fleet with a job that trains."""
    fleet = make_fleet(test_returns.NODES)
    run_job(fleet)
    return fleet


def shown_of(said: AgentHello) -> identity.Shown:
    return identity.Shown(boot_id=said.boot_id, journal_id=said.journal_id, machine_id="m", counter=1)


def alone(asks: Sequence[tuple[str, AgentHello]]) -> list[Any]:
    """Each admitted and opened as if it were the only one."""
    verdicts = [identity.admit(node_id, shown_of(said)) for node_id, said in asks]
    return [verdicts, test_returns.one_by_one(test_returns.returns(asks))]


def at_once(asks: Sequence[tuple[str, AgentHello]]) -> list[Any]:
    """As the web process does."""
    shown = [(node_id, shown_of(said)) for node_id, said in asks]
    plain = identity.admit_plain(shown)
    verdicts = [found or identity.admit(*each) for found, each in zip(plain, shown, strict=True)]
    return [verdicts, test_returns.together(test_returns.returns(asks))]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(scene=SCENE)
def test_first_sessions_leave_the_rows_that_they_leave_one_by_one(others: Fleet, scene: list[tuple[str, str]]) -> None:
    found: list[dict[str, Any]] = []
    answers: list[list[Any]] = []
    with transaction.atomic():
        nodes = [BEFORE[before](name) for name, (before, _) in zip(NAMES, scene, strict=True)]
        asks = [(node.id, SAID[said](hello(node.name))) for node, (_, said) in zip(nodes, scene, strict=True)]
        for way in (alone, at_once):
            flapping._records.clear()
            with transaction.atomic():
                verdicts, opened = way(asks)
                answers.append([verdicts, [each if isinstance(each, int) else type(each) for each in opened]])
                found.append(test_returns.rows())
                transaction.set_rollback(True)
        transaction.set_rollback(True)
    assert answers[1] == answers[0]
    for table, of_it in found[0].items():
        assert len(found[1][table]) == len(of_it), table
        for one, other in zip(of_it, found[1][table], strict=True):
            assert other == one, table


def test_who_enrolled_is_admitted_and_opened_together_and_only_he(others: Fleet) -> None:
    nodes = {how: BEFORE[how](f"x-{number}") for number, how in enumerate(sorted(BEFORE))}
    asks = [(node.id, hello(node.name)) for node in nodes.values()]
    plain = identity.admit_plain([(node_id, shown_of(said)) for node_id, said in asks])
    assert {how for how, each in zip(nodes, plain, strict=True) if each is None} == {"its journal is known"}
    opened = returning.open_quiet(test_returns.returns(asks))
    assert {how for how, node in nodes.items() if node.id not in opened} == {
        "its journal is known",
        "with a life before",
    }
    row = Node.objects.get(pk=nodes["enrolled"].pk)
    assert (row.connected, row.boot_id, row.journal_id) == (True, f"boot-{row.name}", f"journal-{row.name}")


def test_a_thousand_first_sessions_ask_as_much_as_ten() -> None:
    admitted, opened = [], []
    for size in test_returns.SIZES:
        with transaction.atomic():
            Node.objects.bulk_create(
                Node(id=f"node_{number}", name=f"n{number}", public_key=f"{number:043d}") for number in range(size)
            )
            asks = [(f"node_{number}", hello(f"n{number}", devices=0)) for number in range(size)]
            shown = [(node_id, shown_of(said)) for node_id, said in asks]
            admitted.append(test_returns.asked(lambda shown=shown: identity.admit_plain(shown)))
            opened.append(test_returns.asked(lambda asks=asks: returning.open_quiet(test_returns.returns(asks))))
            assert Node.objects.filter(session_id="web.again", connected=True).count() == size
            transaction.set_rollback(True)
    assert admitted == [admitted[0]] * 3
    assert opened[0] == opened[1]
    assert opened[2] <= opened[1] + 8, "and of a thousand what is read is read in pieces"
    assert max(admitted[1], opened[1]) <= 25


def test_an_enrolment_is_one_event_that_names_the_devices_in_few_statements() -> None:
    token = join_token(uses=3)
    enroll_node(asked("gpu-0", token))
    few = test_returns.asked(lambda: enroll_node(asked("gpu-1", token)))
    made = Event.objects.filter(node_id=Node.objects.get(name="gpu-1").pk)
    assert [(each.kind, each.sentence) for each in made] == [
        ("node.enrolled", "Node gpu-1 enrolled. It has 2 devices: Test.")
    ]
    assert len(made[0].patch["devices"]) == Device.objects.filter(node__name="gpu-1").count() == 2
    more = asked("gpu-2", token)
    more = type(more)(**{name: getattr(more, name) for name in more.__dataclass_fields__} | {
        "devices": hello("gpu-2", devices=32).devices})  # fmt: skip
    assert test_returns.asked(lambda: enroll_node(more)) == few


def test_a_node_that_shows_more_devices_later_has_one_event_of_them() -> None:
    make_fleet(1)
    node = Node.objects.get(name="n1")
    said = hello("n1", devices=5)
    assert test_returns.one_by_one(test_returns.returns([(node.id, said)])) == [0]
    (found,) = Event.objects.filter(kind="device.found", sentence__contains="more")
    assert found.sentence == "Node n1 has 3 more devices: Test."
    assert len(found.patch["devices"]) == 5


def test_who_lists_ranks_is_never_new(others: Fleet) -> None:
    for number, said in enumerate((ranks_of_others, ranks_of_nobody)):
        node = enrolled(f"new-{number}")
        assert returning.open_quiet(test_returns.returns([(node.id, said(hello(node.name)))])) == {}


def test_a_stranger_gets_nothing_from_the_way_of_many(others: Fleet) -> None:
    node = enrolled("new-1")
    said = msgspec.structs.replace(hello("new-1"), node_name="n1")
    asks = test_returns.returns([(node.id, said)])
    assert returning.open_quiet(asks) == {}
    assert [type(each) for each in test_returns.together(asks)] == [IdentityMismatch]
