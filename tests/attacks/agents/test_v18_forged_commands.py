"""V18, F26: whoever can write commands but holds no key of the server causes none at a node.

Each attacker here speaks on the node's own session, as if the web process relayed him:
what he could reach by the database, by Redis or through another node's session ends there.
"""

import time

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agents.link.enrol import load_credential, store_credential
from controlplane.protocol.codec import encode_frame
from controlplane.protocol.commands import SignedCommand, StopRanks
from controlplane.protocol.frames import CommandAnswer, Order, RankStarted
from controlplane.protocol.signing import SIGNATURE_REJECTED, encode_statement, key_id, signed_keys, to_text
from tests.integration.agents.conftest import AgentProcess, is_running, start_order
from tests.integration.agents.server import NODE_ID, Server, public_text, sign
from tests.integration.agents.test_ranks import JOB, running_replica


async def refused(server: Server, *commands: SignedCommand) -> list[str]:
    """Send them; the reasons of the refusals. Fails where one was taken."""
    await server.send_signed(*commands)
    reasons = []
    for command in commands:
        answer = await server.done(command.command_id)
        assert (answer.state, answer.data) == ("failed", SIGNATURE_REJECTED)
        acknowledged = [a for a in server.bodies(CommandAnswer) if a.state == "acknowledged"]
        assert command.command_id not in {a.command_id for a in acknowledged}
        reasons.append(answer.detail)
    return reasons


async def still_obeys(server: Server) -> None:
    """The server's own word is carried out, over the same session."""
    assert (await running_replica(server)).keys() == {0, 1}
    assert server.connections == 1


async def test_a_command_without_a_signature_is_refused(server: Server, agent: AgentProcess) -> None:
    good = sign(server.keys[0], server.statement(start_order(), epoch=1, **JOB))
    bare = msgspec.structs.replace(good, signature=b"")
    unnamed = SignedCommand("cmd_bare", "", b"", good.statement)
    assert await refused(server, bare, unnamed)
    assert not server.bodies(RankStarted)
    await still_obeys(server)


async def test_a_command_signed_by_a_stranger_is_refused(server: Server, agent: AgentProcess) -> None:
    stranger = Ed25519PrivateKey.generate()
    forged = sign(stranger, server.statement(start_order(), epoch=1, **JOB))
    mine, claimed = forged, msgspec.structs.replace(forged, key_id=key_id(server.public_keys[0]))
    await refused(server, msgspec.structs.replace(mine, command_id="cmd_a"), claimed)
    assert not server.bodies(RankStarted)
    await still_obeys(server)


async def test_a_command_altered_after_it_was_signed_is_refused(server: Server, agent: AgentProcess) -> None:
    pids = await running_replica(server)
    stop = StopRanks(job_id="job_1", attempt=1, replica=7, incarnation=1, grace_s=0.0, reason="another replica")
    statement = server.statement(stop, epoch=1, **JOB)
    good = sign(server.keys[0], statement)
    changes = {
        "body": msgspec.structs.replace(stop, replica=-1),
        "epoch": 2,
        "attempt": 2,
        "job_id": "job_2",
        "decision_id": "dec_other",
        "ttl_s": 61.0,
        "issued_at_s": statement.issued_at_s + 1.0,
    }
    altered = []
    for number, (name, value) in enumerate(changes.items()):
        other = msgspec.structs.replace(statement, command_id=f"cmd_altered_{number}", **{name: value})
        altered.append(SignedCommand(other.command_id, good.key_id, good.signature, encode_statement(other)))
    await refused(server, *altered)
    assert all(is_running(pid) for pid in pids.values())


async def test_a_signature_for_one_node_is_none_for_another(server: Server, agent: AgentProcess) -> None:
    theirs = sign(server.keys[0], server.statement(start_order(), epoch=1, node_id="node_02", **JOB))
    reason = (await refused(server, theirs))[0]
    assert "node_02" in reason
    renamed = server.statement(start_order(), epoch=1, node_id=NODE_ID, command_id=theirs.command_id + "x", **JOB)
    moved = SignedCommand(renamed.command_id, theirs.key_id, theirs.signature, encode_statement(renamed))
    await refused(server, moved)
    assert not server.bodies(RankStarted)


async def test_an_old_command_is_not_carried_out_again_when_the_journal_is_lost(
    server: Server, agent: AgentProcess
) -> None:
    command = sign(server.keys[0], server.statement(start_order(), epoch=1, ttl_s=60.0, **JOB))
    later_s = time.time() + 61.0
    await server.send_signed(command, server_time_s=later_s)
    assert (await server.done(command.command_id)).state == "superseded"
    assert not server.bodies(RankStarted)


async def test_no_command_lives_longer_than_its_kind_may(server: Server, agent: AgentProcess) -> None:
    eternal = sign(server.keys[0], server.statement(start_order(), epoch=1, ttl_s=1e9, **JOB))
    early = sign(server.keys[0], server.statement(start_order(), epoch=1, age_s=-3600.0, **JOB))
    boundless = sign(server.keys[0], server.statement(start_order(), epoch=1, ttl_s=float("nan"), **JOB))
    reasons = await refused(server, eternal, early, boundless)
    assert "at most 300 s" in reasons[0] and "clocks" in reasons[1] and "not understood" in reasons[2]


async def test_a_step_of_the_servers_clock_stops_no_command(server: Server, agent: AgentProcess) -> None:
    for step_s in (-86_400.0, 86_400.0):
        statement = server.statement(start_order(), epoch=1, age_s=-step_s, **JOB)
        await server.send_signed(sign(server.keys[0], statement), server_time_s=time.time() + step_s)
        assert (await server.done(statement.command_id)).data != SIGNATURE_REJECTED


async def test_a_stolen_session_cannot_bring_keys_of_its_own(server: Server, agent: AgentProcess) -> None:
    mine = Ed25519PrivateKey.generate()
    genuine, server.keys = server.keys, [mine, mine]
    server.keys_signature = to_text(mine.sign(signed_keys(server.public_keys)))
    await server.cut()
    await server.until(lambda: len(server.hellos) == 2)
    await refused(server, sign(mine, server.statement(start_order(), epoch=1, **JOB)))
    held = load_credential(agent.state_dir / "credential")
    assert held.server_keys == tuple(public_text(key) for key in genuine)


async def test_keys_signed_by_a_pinned_one_are_taken_and_kept(server: Server, agent: AgentProcess) -> None:
    old, following = server.keys
    server.keys = [following, Ed25519PrivateKey.generate()]
    server.keys_signature = to_text(following.sign(signed_keys(server.public_keys)))
    await server.cut()
    await server.until(lambda: len(server.hellos) == 2)
    await still_obeys_after_rotation(server, old)
    assert load_credential(agent.state_dir / "credential").server_keys == server.public_keys


async def still_obeys_after_rotation(server: Server, old: Ed25519PrivateKey) -> None:
    """By the new key, and for a while by the one before, which a process may still use."""
    assert (await running_replica(server)).keys() == {0, 1}
    late = server.statement(start_order(), epoch=1, **JOB)
    await server.send_signed(sign(old, late))
    assert (await server.done(late.command_id)).data != SIGNATURE_REJECTED


async def test_a_node_that_pinned_no_key_obeys_nobody(server: Server, agent: AgentProcess) -> None:
    agent.kill()
    path = agent.state_dir / "credential"
    store_credential(path, msgspec.structs.replace(load_credential(path), server_keys=()))
    agent.start()
    await server.until(lambda: len(server.hellos) == 2)
    reasons = await refused(server, sign(server.keys[0], server.statement(start_order(), epoch=1, **JOB)))
    assert "enrol" in reasons[0]


async def test_a_message_larger_than_any_order_ends_the_session_and_not_the_agent(
    server: Server, agent: AgentProcess
) -> None:
    good = sign(server.keys[0], server.statement(start_order(), epoch=1, **JOB))
    giant = msgspec.structs.replace(good, statement=b"\0" * (5 << 20))
    await server.send_raw(encode_frame(Order((giant,), time.time())))
    await server.until(lambda: len(server.hellos) == 2)
    assert agent.process.poll() is None
    assert (await running_replica(server)).keys() == {0, 1}
