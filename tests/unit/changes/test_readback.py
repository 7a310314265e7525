"""Reading checkpoints back: who reads one, what its word counts, and what becomes of the checkpoint."""

from typing import Any

import msgspec
import pytest

from controlplane.changes.due.kinds import AskReader, EndReading, MoveSave, ObserveSave, ReadHere
from controlplane.changes.due.readback import AGAIN_S, VERIFY_DELAY_S, answered, due, found_here
from controlplane.policy.readers import LATER_S, SILENT_S
from controlplane.protocol.commands import EndVerification, VerifyCheckpoint
from controlplane.protocol.rank import CheckpointReport
from controlplane.protocol.readback import Verdict
from controlplane.protocol.states import CheckpointState, CommandState
from controlplane.simulator.memory import answered_of
from controlplane.simulator.rows import JOB_ID, CommandRow, SaveRow

from .builders import NODES, World, training
from .test_reports import does

PATH = "/checkpoints/7"
SOUND = Verdict(ok=True, detail="it is as it was")
ROTTEN = Verdict(ok=False, detail="a digest is another")
MISSING = Verdict(ok=False, absent=True, detail="a shard is not there")
UNSEEN = Verdict(ok=None, detail="it is not visible")


def saved(**spec: Any) -> World:
    """By replica 1, and due."""
    world = training(**spec)
    begun = CheckpointReport(step=7, path=PATH, state="writing", kind="interval", epoch=2)
    for said in (begun, msgspec.structs.replace(begun, state="complete")):
        does(world, said)
    world.kernel.now_s += VERIFY_DELAY_S
    return world


def row_of(world: World) -> SaveRow:
    return world.rows.saves[PATH]


def inspect(world: World) -> ReadHere | None:
    """The sweep comes by; what this machine is to read."""
    here = None
    for change in due(world.store, PATH):
        if isinstance(change, ReadHere):
            here = change
        else:
            world.store.commit([change])
    return here


def asked(world: World) -> list[str]:
    return [node for node, _ in world.commands(VerifyCheckpoint)]


def says_of(world: World, verdict: Verdict | None, state: CommandState = CommandState.SUCCEEDED) -> CommandRow:
    """The newest reader's answer."""
    row = [each for each in world.rows.commands.values() if isinstance(each.envelope.body, VerifyCheckpoint)][-1]
    row.state, row.data = state, msgspec.json.encode(verdict).decode() if verdict is not None else ""
    world.store.commit(answered(world.store, answered_of(row, JOB_ID)))
    return row


def test_the_node_that_wrote_it_reads_it_and_it_climbs() -> None:
    world = saved()
    assert inspect(world) is None and asked(world) == [NODES[1]]
    assert inspect(world) is None and asked(world) == [NODES[1]], "asked once"
    says_of(world, None, CommandState.ACKNOWLEDGED)
    says_of(world, SOUND)
    row = row_of(world)
    assert (row.state, row.reader, row.round_s, row.due_s) == (CheckpointState.VERIFIED, "", None, None)
    assert row.reason == f"it is as it was, on node {NODES[1]}"
    assert world.checkers.violations == []


def test_the_command_is_of_no_epoch_and_of_no_decision() -> None:
    world = saved()
    inspect(world)
    (envelope,) = [row.envelope for row in world.rows.commands.values()]
    assert (envelope.epoch, envelope.decision_id, envelope.job_id) == (0, "", "job_sim")


def test_a_fault_that_a_node_has_found_takes_it_off_the_ladder() -> None:
    world = saved()
    inspect(world)
    says_of(world, ROTTEN)
    assert (row_of(world).state, row_of(world).due_s) == (CheckpointState.CORRUPT, None)


def test_that_something_is_missing_counts_from_the_node_that_wrote_it_alone() -> None:
    world = saved()
    row_of(world).written_on = NODES[0]
    for node in NODES[:3]:
        world.rows.nodes[node].connected = node != NODES[0]
    inspect(world)
    reader = row_of(world).reader
    says_of(world, MISSING)
    assert row_of(world).state == CheckpointState.COMPLETE and row_of(world).reader == ""
    row_of(world).written_on = asked(world)[0]
    row_of(world).reader = reader
    says_of(world, MISSING)
    assert row_of(world).state == CheckpointState.CORRUPT


def test_where_no_node_has_an_answer_this_machine_reads_and_says_who_was_asked() -> None:
    world = saved()
    here = None
    while (here := inspect(world)) is None:
        says_of(world, UNSEEN)
    assert len(asked(world)) == len(set(asked(world))) == 3 and here.again_s is None
    assert here.others == "; ".join(f"node {node}: it is not visible" for node in asked(world))
    world.store.commit(found_here(world.store, here, None))
    assert row_of(world).due_s == world.kernel.now_s + AGAIN_S, "it reads still"
    world.store.commit(found_here(world.store, here, UNSEEN))
    row = row_of(world)
    assert (row.state, row.due_s) == (CheckpointState.COMPLETE, None) and row.reason.startswith("not verified: nobody")


def test_where_somebody_who_may_have_it_was_away_it_is_sought_again_later() -> None:
    world = saved()
    for node in NODES:
        world.rows.nodes[node].connected = False
    here = inspect(world)
    assert here is not None and here.again_s == LATER_S
    world.store.commit(found_here(world.store, here, UNSEEN))
    assert row_of(world).due_s == world.kernel.now_s + LATER_S


def test_a_reader_that_says_nothing_any_more_is_called_off_and_another_is_asked() -> None:
    world = saved()
    inspect(world)
    first = row_of(world).reader
    world.kernel.now_s += SILENT_S
    inspect(world)
    assert len(asked(world)) == 1, "it may be so long without a word"
    world.kernel.now_s += 0.1
    inspect(world)
    assert asked(world) == [NODES[1], NODES[0]]
    assert world.commands(EndVerification) == [(NODES[1], EndVerification(order=first))]
    late = world.rows.commands[first]
    late.state, late.data = CommandState.SUCCEEDED, msgspec.json.encode(ROTTEN).decode()
    assert list(answered(world.store, answered_of(late, JOB_ID))) == [], "only the command that it waits for counts"


def test_what_has_left_the_ladder_is_read_no_further() -> None:
    world = saved()
    inspect(world)
    row_of(world).state = CheckpointState.PRUNED
    changes = list(due(world.store, PATH))
    assert [type(change) for change in changes] == [EndReading, ObserveSave]
    world.store.commit(changes)
    assert (row_of(world).reader, row_of(world).due_s) == ("", None)


@pytest.mark.parametrize(("verdict", "state"), [(SOUND, "complete"), (UNSEEN, "corrupt")])
def test_what_its_ranks_could_not_load_must_be_found_sound_to_stay(verdict: Verdict, state: str) -> None:
    world = saved()
    row = row_of(world)
    row.doubt = "OSError"
    here = ReadHere(PATH, "", None)
    changes = list(found_here(world.store, here, verdict))
    moves = [change for change in changes if isinstance(change, MoveSave)]
    assert [move.to for move in moves] == ["verified" if state == "complete" else "corrupt"]
    world.store.commit(changes)
    assert row.doubt == ""


def test_a_job_that_wants_it_has_a_verified_one_loaded_by_this_machine() -> None:
    world = saved()
    checkpoint = msgspec.structs.replace(world.rows.spec.checkpoint, restore_test=True)
    world.rows.spec = msgspec.structs.replace(world.rows.spec, checkpoint=checkpoint)
    inspect(world)
    says_of(world, SOUND)
    assert row_of(world).due_s == world.kernel.now_s + VERIFY_DELAY_S, "the rung above is next"
    here = inspect(world)
    assert here is not None and len(asked(world)) == 1
    world.store.commit(found_here(world.store, here, msgspec.structs.replace(SOUND, loaded=True, took_s=3.0)))
    assert (row_of(world).state, row_of(world).due_s, row_of(world).read_s) == ("restore_tested", None, 3.0)


def test_a_node_that_reads_another_is_waited_for() -> None:
    world = saved()
    for node in NODES:
        world.rows.nodes[node].connected = node == NODES[1]
    inspect(world)
    row = row_of(world)
    row.reader, row.round_s = "", None
    world.kernel.now_s += 1.0
    assert [type(change) for change in due(world.store, PATH)] == [ObserveSave, ObserveSave]
    assert not any(isinstance(change, AskReader) for change in due(world.store, PATH))
