"""What diagnostics of ranks found: what is kept of them, and what Flight Recorders say when they are read together."""

import json
from pathlib import Path

import pytest

from controlplane.changes.answers import answered
from controlplane.changes.diagnostics import TEXTS_OF_A_PLACE, dumps_of
from controlplane.changes.hearing import hear
from controlplane.changes.kinds import Change, IncidentKey, KeepDiagnostic, Observe, Publish
from controlplane.changes.rows import Diagnostic
from controlplane.changes.speaker import Speaker
from controlplane.policy.plan import GatherStacks, LookAtRanks
from controlplane.policy.stack_groups import NO_STACK
from controlplane.protocol.diagnostics import FLIGHT_RECORDER, NOT_GOT, PING, STACKS
from controlplane.protocol.errors import IdentityMismatch
from controlplane.protocol.frames import StacksCollected
from controlplane.protocol.launch import RankRef
from controlplane.protocol.states import CommandState
from controlplane.simulator.memory import answered_of
from controlplane.simulator.rows import JOB_ID

from .builders import NODES, World, training

TRACES = Path(__file__).parents[1] / "policy" / "traces"
REDUCE = '  File "/site-packages/torch/distributed/distributed_c10d.py", line 2 in all_reduce\n'
INCIDENT = "inc_001"


def dump(case: str, rank: int) -> str:
    return json.dumps(json.loads((TRACES / f"{case}.json").read_text())[rank])


def hung() -> World:
    """Replica 1 has an incident, for which it is looked at in both ways and the whole job for its stacks."""
    world = training()
    world.rows.incident_s, world.rows.incidents = 900.0, 1
    gather = [
        GatherStacks(replica=1, incarnation=1, look="hang"),
        GatherStacks(replica=-1, incarnation=-1, look=STACKS),
    ]
    world.do(*gather)
    return world


def scheduled() -> World:
    """Both ranks of replica 1 are looked at on schedule."""
    world = training()
    world.do(LookAtRanks(replica=1, incarnation=1, ranks=(0, 1)), rule="look", choice="look", reason_code="due")
    return world


def order(world: World, number: int) -> str:
    return sorted(world.rows.commands)[number]


def says(
    world: World, command: str, look: str, text: str, *, replica: int = 1, rank: int = 0, method: str = "py-spy"
) -> list[Change]:
    body = StacksCollected(RankRef(JOB_ID, 1, replica, 1, rank), text, method, command, look)
    node = NODES[replica]
    changes = hear(world.store, body, Speaker(node, node, 990.0))
    world.store.commit(changes, seen_s=990.0)
    return changes


def kept(changes: list[Change]) -> Diagnostic:
    assert isinstance(changes[0], KeepDiagnostic), "whatever it says, it is kept"
    return changes[0].found


def said(changes: list[Change]) -> list[Publish]:
    return [change for change in changes if isinstance(change, Publish)]


def test_a_look_that_a_decision_ordered_belongs_to_its_incident() -> None:
    world = hung()
    changes = says(world, order(world, 0), STACKS, REDUCE)
    assert (kept(changes).incident, kept(changes).place, kept(changes).text) == (INCIDENT, "all_reduce", REDUCE)
    (event,) = said(changes)
    assert (event.kind, event.beside) == ("rank.looked", NODES[1])
    assert event.sentence == "Stacks of rank 0 of replica 1: got by py-spy."


def test_a_persons_look_joins_what_is_open_and_stands_alone_where_nothing_is() -> None:
    world = training()
    world.rows.incident_s = None
    assert kept(says(world, "cmd_of_a_person", PING, "pong")).incident == ""
    assert kept(says(hung(), "cmd_of_a_person", PING, "pong")).incident == INCIDENT


def test_what_could_not_be_got_is_kept_with_the_reason() -> None:
    world = hung()
    changes = says(world, order(world, 0), STACKS, "it is stopped", method=NOT_GOT)
    assert kept(changes).place == NO_STACK
    assert said(changes)[0].sentence == "Stacks of rank 0 of replica 1: could not be got: it is stopped."


def test_of_many_that_stand_in_one_place_the_first_alone_keep_their_text_and_none_is_news() -> None:
    world = hung()
    whole = [each for each, row in sorted(world.rows.commands.items()) if row.envelope.body.replica == -1]
    texts = []
    for rank, replica in ((0, 0), (1, 0), (0, 2), (1, 2)):
        command = next(each for each in whole if world.rows.commands[each].envelope.node_id == NODES[replica])
        changes = says(world, command, STACKS, REDUCE, replica=replica, rank=rank)
        texts.append(kept(changes).text)
        assert kept(changes).place == "all_reduce" and said(changes) == []
    assert texts == [REDUCE] * TEXTS_OF_A_PLACE + [""] * 2


def test_the_recorders_of_a_replica_are_read_together_with_each_that_arrives() -> None:
    world = hung()
    first = says(world, order(world, 0), FLIGHT_RECORDER, dump("pair", 0))
    (verdict,) = [change for change in first if isinstance(change, Observe)]
    assert verdict.subject == IncidentKey(INCIDENT) and verdict.columns["findings"][0]["state"] == "UNDECIDED"
    assert [event.kind for event in said(first)] == ["rank.looked"], "not before all have answered"
    last = says(world, order(world, 0), FLIGHT_RECORDER, dump("pair", 1), rank=1)
    (finding,) = world.rows.verdicts[INCIDENT]
    assert (finding["state"], finding["culprits"]) == ("COLLECTIVE_STATE_MISMATCH", (1,))
    assert finding["at"] == "1970-01-01T00:16:30.000000Z"
    assert said(last)[-1].kind == "incident.finding" and "rank 1 never joined" in said(last)[-1].sentence


def test_a_dump_that_makes_no_sense_is_missing_and_the_finding_says_whose() -> None:
    world = hung()
    says(world, order(world, 0), FLIGHT_RECORDER, '{"rank": 0}')
    says(world, order(world, 0), FLIGHT_RECORDER, dump("pair", 1), rank=1)
    assert world.rows.verdicts[INCIDENT][0]["missing_dumps"] == (0,)


def test_a_replicas_finding_replaces_its_own_and_no_others() -> None:
    world = hung()
    other = {"replica": 0, "incarnation": 1, "second_opinion": "torch says so too"}
    world.rows.verdicts[INCIDENT] = [other]
    for rank in (0, 1):
        says(world, order(world, 0), FLIGHT_RECORDER, dump("pair", rank), rank=rank)
    assert [each["replica"] for each in world.rows.verdicts[INCIDENT]] == [0, 1]
    assert world.rows.verdicts[INCIDENT][0] == other


def test_the_newest_dump_of_a_rank_counts_and_its_row_says_whose_it_is() -> None:
    def look(rank: int, text: str) -> Diagnostic:
        return Diagnostic("", 1, 1, rank, FLIGHT_RECORDER, "py-spy", "", text, 1.0)

    (found,) = dumps_of([look(7, "nonsense"), look(7, dump("pair", 0))])
    assert found.rank == 7
    assert dumps_of([look(7, dump("pair", 0)), look(7, "nonsense")]) == ()


@pytest.mark.parametrize(("case", "odd"), [("pair", False), ("size", True)])
def test_a_look_on_schedule_is_told_once_when_all_have_answered(case: str, odd: bool) -> None:
    world = scheduled()
    first = says(world, order(world, 0), FLIGHT_RECORDER, dump(case, 0))
    assert kept(first).incident == "" and said(first) == []
    (event,) = said(says(world, order(world, 1), FLIGHT_RECORDER, dump(case, 1), rank=1))
    assert (event.kind, event.beside, event.data["odd"]) == ("job.looked", "", odd)
    assert event.sentence.startswith("Scheduled diagnostic of replica 1: 2 of 2 recorders read")


def test_a_look_on_schedule_finds_no_fault_and_its_stacks_are_no_news() -> None:
    world = scheduled()
    world.rows.incident_s, world.rows.incidents = 900.0, 1
    changes = says(world, order(world, 0), STACKS, REDUCE)
    assert kept(changes).incident == "" and said(changes) == []


@pytest.mark.parametrize("state", [CommandState.FAILED, CommandState.EXPIRED])
@pytest.mark.parametrize("look_first", [True, False])
def test_an_order_that_comes_to_nothing_is_not_waited_for(state: CommandState, look_first: bool) -> None:
    world = scheduled()
    found = said(says(world, order(world, 0), FLIGHT_RECORDER, dump("pair", 0))) if look_first else []
    lost = world.rows.commands[order(world, 1)]
    lost.state = state
    found += said(list(answered(world.store, answered_of(lost, JOB_ID))))
    found += said(says(world, order(world, 0), FLIGHT_RECORDER, dump("pair", 0))) if not look_first else []
    (event,) = found
    assert event.sentence.endswith("1 of 2 recorders read; not compared in full: 1 of its 2 ranks gave one.")
    assert said(says(world, order(world, 1), FLIGHT_RECORDER, dump("pair", 1), rank=1)) == [], "it was told without"


@pytest.mark.parametrize("state", [CommandState.ACKNOWLEDGED, CommandState.SUCCEEDED])
def test_an_order_that_is_carried_out_says_nothing_by_itself(state: CommandState) -> None:
    world = scheduled()
    row = world.rows.commands[order(world, 1)]
    row.state = state
    assert list(answered(world.store, answered_of(row, JOB_ID))) == []


def test_an_order_for_an_incident_that_comes_to_nothing_compares_nothing() -> None:
    world = hung()
    row = world.rows.commands[order(world, 0)]
    row.state = CommandState.FAILED
    assert list(answered(world.store, answered_of(row, JOB_ID))) == []


def test_a_look_that_another_node_was_asked_for_is_refused() -> None:
    world = hung()
    with pytest.raises(IdentityMismatch, match="another node"):
        says(world, order(world, 0), STACKS, REDUCE, replica=0)
