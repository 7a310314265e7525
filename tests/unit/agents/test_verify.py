"""A reading is told as it goes, while somebody hears it; a node's policy may forbid it."""

import asyncio
import hashlib
import json
import os
from pathlib import Path

from agents.core import events as ev
from agents.core.effects import ReadCheckpoint, StopReading
from agents.core.policy import KINDS, NodeRules, parse, refusal
from agents.core.step import step
from agents.ranks.launch import Standing
from agents.verify import Verifier
from controlplane.protocol.commands import CommandEnvelope, EndVerification, VerifyCheckpoint
from controlplane.protocol.frames import CommandAnswer
from tests.properties.agents.world import NODE, World

WANTED = VerifyCheckpoint("job_1", "/c/job_1/step_00000007-e2", 7, 2, 600.0)


def ordered(world: World, number: int, body: object) -> list[object]:
    """The order journaled and acted on; the effects of that."""
    envelope = CommandEnvelope(
        command_id=f"cmd_{number}", node_id=NODE, epoch=0, age_s=0.0, ttl_s=60.0, body=body, job_id="job_1"
    )
    world.feed(ev.OrderReceived(now_s=world.now_s, commands=(envelope,)))
    world.state, effects = step(world.state, world.pending.pop(0)())
    return list(effects)


def answers(world: World) -> list[tuple[str, str, str]]:
    bodies = [kept.body for kept in world.state.events]
    return [(body.command_id, body.state, body.data) for body in bodies if isinstance(body, CommandAnswer)]


def test_progress_is_told_as_a_repeated_acknowledgement_and_only_while_somebody_hears_it() -> None:
    world = World()
    world.connect()
    assert ReadCheckpoint("cmd_1", WANTED) in ordered(world, 1, WANTED)
    world.feed(ev.CheckpointProgress(now_s=world.now_s, command_id="cmd_1", read_bytes=5))
    world.feed(ev.CheckpointProgress(now_s=world.now_s, command_id="cmd_0", read_bytes=6))
    world.feed(ev.LinkDown(now_s=world.now_s))
    world.feed(ev.CheckpointProgress(now_s=world.now_s, command_id="cmd_1", read_bytes=7))
    world.connect()
    world.feed(ev.CheckpointRead(now_s=world.now_s, command_id="cmd_1", verdict='{"ok":true}'))
    told = [("cmd_1", "acknowledged", ""), ("cmd_1", "acknowledged", '{"read_bytes": 5}')]
    assert answers(world) == [*told, ("cmd_1", "succeeded", '{"ok":true}')]
    assert world.state.reading == ""


def test_one_at_a_time_and_only_the_one_at_work_is_ended() -> None:
    world = World()
    world.connect()
    ordered(world, 1, WANTED)
    assert not any(isinstance(effect, ReadCheckpoint) for effect in ordered(world, 2, WANTED))
    assert answers(world)[-1][:2] == ("cmd_2", "failed")
    assert not any(isinstance(effect, StopReading) for effect in ordered(world, 3, EndVerification("cmd_2")))
    assert StopReading("cmd_1") in ordered(world, 4, EndVerification("cmd_1"))


def test_a_nodes_policy_may_forbid_it() -> None:
    assert {"verify_checkpoint", "end_verification"} <= set(KINDS)
    assert refusal(NodeRules(), WANTED) == ""
    rules = NodeRules(policy=parse({"commands": ["start_ranks", "stop_ranks"]}))
    assert "does not allow verify_checkpoint" in refusal(rules, WANTED)
    assert "observe only" in refusal(NodeRules(policy=parse({"observe_only": True})), WANTED)
    assert "refuses the checkpoint" in refusal(NodeRules(policy=parse({"checkpoint_roots": ["/other"]})), WANTED)


async def test_the_reader_tells_how_far_it_is_until_it_is_called_off(tmp_path: Path) -> None:
    path = tmp_path / "job_1" / "step_00000007-e2"
    path.mkdir(parents=True)
    (path / "shard").touch()
    os.truncate(path / "shard", 1 << 42)
    digest = hashlib.blake2b(b"other", digest_size=16).hexdigest()
    files = [{"name": "shard", "bytes": 1 << 42, "blake2b": digest}]
    (path / "COMMITTED.json").write_text(json.dumps({"job_id": "job_1", "step": 7, "epoch": 2, "files": files}))
    heard: asyncio.Queue[ev.Event] = asyncio.Queue()
    verifier = Verifier(heard.put_nowait, lambda owner: Standing(), tell_every_s=0.0)
    verifier.perform(ReadCheckpoint("cmd_1", VerifyCheckpoint("job_1", str(path), 7, 2, 600.0)))
    read_bytes: list[int] = []
    async with asyncio.timeout(120):
        while len(read_bytes) < 3:
            event = await heard.get()
            assert isinstance(event, ev.CheckpointProgress), event
            read_bytes.append(event.read_bytes)
        assert read_bytes == sorted(read_bytes)
        assert read_bytes[-1] > read_bytes[0] == 0
        verifier.perform(StopReading("cmd_of_yesterday"))
        assert isinstance(await heard.get(), ev.CheckpointProgress), "that is another's order"
        verifier.perform(StopReading("cmd_1"))
        while isinstance(event := await heard.get(), ev.CheckpointProgress):
            pass
    assert event == ev.CheckpointRead(now_s=event.now_s, command_id="cmd_1", error="it was called off")
