"""What the simulator exercises: every field of a snapshot takes more than one value, every action is planned and every
command sent, in some pass of a few worlds; but for those listed here with the reason. The lists only shrink: what
begins to occur fails here until it is taken off."""

from collections.abc import Callable
from functools import cache

import msgspec
import pytest

from controlplane.policy.snapshot import SignalFact
from controlplane.protocol.frames import NodeCheck
from controlplane.protocol.spec import FaultSchedule
from controlplane.protocol.states import RequestKind
from controlplane.simulator.extras import Extras
from controlplane.simulator.faults import Fault
from controlplane.simulator.world import World, WorldPlan, job_spec
from tests.simulation.living import ACTIONS, COMMANDS, Living, fields

ONE_JOB = "a world has one job, from its beginning on"
BARE = "nodes tell nothing of the make of their devices, nor of racks"
KEPT = "the server loses no rows, and its clock is not set"
UNPROVED = "no checkpoint is read back or turns out bad, and no step is computed again"
NOT_YET = {
    **dict.fromkeys(("JobFact.id", "JobFact.name", "JobFact.created_s"), ONE_JOB),
    **dict.fromkeys(("View.job_id", "Flush.job_id", "Install.job_id"), ONE_JOB),
    **dict.fromkeys(("DeviceFact.memory_bytes", "DeviceFact.model", "DeviceFact.risk", "NodeFact.segment"), BARE),
    **dict.fromkeys(("Elsewhere.divided", "Elsewhere.memory_bytes", "Need.near"), BARE),
    **dict.fromkeys(("JobFact.ahead", "AheadFact.attempt", "AheadFact.end", "AheadFact.epoch"), KEPT),
    **dict.fromkeys(("AheadFact.incarnations", "AheadFact.node"), KEPT),
    **dict.fromkeys(("JobSnapshot.clock_set_s", "JobSnapshot.clock_step_s"), KEPT),
    **dict.fromkeys(("CheckpointFact.doubted", "CheckpointFact.state", "JobFact.end_held_until_s"), UNPROVED),
    "CheckpointFact.suspect_step": UNPROVED,
    "CheckpointFact.holders": "no checkpoint lies on the nodes' own disks",
    "JobFact.env_opens": "no job has values that rest sealed",
    "LearnedTimes.setup_limit_s": "a setup has the limit that the spec gives",
    "ReplicaFact.saving": "a save holds no rank up",
}
NO_ACTION = dict.fromkeys(("DemoteCheckpoint", "SuspectCheckpoint"), UNPROVED)
NO_COMMAND = {
    **dict.fromkeys(("verify_checkpoint", "end_verification", "keep_checkpoints", "order_recompute"), UNPROVED),
    **dict.fromkeys(("inject_device_fault", "inject_link_fault"), "the demo's: here faults strike from outside"),
    "command_rank": "a person gives it to one rank, beside all decisions",
}


@cache
def living() -> Living:
    """Of all worlds together."""
    found = Living()
    for scene in SCENES:
        scene(found)
    return found


def seeds(found: Living) -> None:
    """As they are drawn: faults, orders, and nodes that stand still."""
    for seed, standing_by, steps in ((7000, 0, None), (7003, 0, 90), (7007, 1, None)):
        world = World(seed, standing_by=standing_by, steps=steps)
        found.watch(world)
        world.run(4, orders=4, stills=2)
        found.ended(world)


def rehearsals(found: Living) -> None:
    """A small job that asks for its own faults, on a larger fleet; people give it some more, and cancel it."""
    spec = job_spec(tp=1, spare_gpus=2)
    resiliency = msgspec.structs.replace(
        spec.resiliency,
        allow_faults=True,
        look_every_s=10.0,
        faults=FaultSchedule(kind="rank_killed", delay_s=20.0, times=2),
    )
    layout = msgspec.structs.replace(spec.parallelism, pp=1)
    spec = msgspec.structs.replace(spec, resiliency=resiliency, parallelism=layout)
    world = World(11, plan=WorldPlan(spec=spec, nodes={f"node-{index}": 2 for index in range(7)}))
    found.watch(world)
    world.start()
    world.faults.schedule(200.0, 0)
    world.kernel.after(60.0, _ask_fault, world)
    world.kernel.after(120.0, world.people.cancel)
    world.kernel.run(150.0)
    found.ended(world)


def _ask_fault(world: World) -> None:
    rows = world.server.rows
    replica = min(rows.replicas.values(), key=lambda row: row.index)
    world.server.asked.ask(
        RequestKind.FAULT,
        "user:lin",
        "a rehearsal",
        attempt=rows.attempt.number,
        replica=replica.index,
        incarnation=replica.incarnation,
        rank=0,
        fault="sigkill",
        value=1.0,
    )


def places(found: Living) -> None:
    """What speaks against places: a device that wants a reset, one at risk, an end that accuses one, a node that fails
    its checks; and an exchange that fails again and again."""
    world = World(13)
    found.watch(world)
    world.start()
    world.faults.schedule(400.0, 0)
    world.kernel.after(20.0, world.agents["node-0"].xid, 0, 95)
    world.kernel.after(45.0, _at_risk, world)
    world.kernel.after(30.0, world.agents["node-4"].xid, 1, 109)
    world.kernel.after(50.0, _end_with, world, 201)
    world.kernel.after(62.0, _end_with, world, 93)
    for number in range(40):
        world.kernel.after(70.0 + 0.1 * number, world.faults.strike, Fault.EXCHANGE_BLIP)
    world.kernel.after(88.0, _fail_checks, world, {"node-3", "node-4"})
    world.kernel.after(90.0, _end_with, world, -9)
    world.kernel.after(110.0, _fail_checks, world, set(world.agents))
    world.kernel.after(112.0, _end_all, world)
    world.kernel.after(140.0, _fail_checks, world, set(), *world.agents)
    world.kernel.after(155.0, _end_all, world)
    world.kernel.run(200.0)
    found.ended(world)


def drains(found: Living) -> None:
    """A node is drained, and somebody keeps one of its replicas there."""
    world = World(14)
    found.watch(world)
    world.start()
    world.faults.schedule(400.0, 0)
    for at_s in (20.0, 22.0, 24.0):
        world.kernel.after(at_s, world.people.drain)
        world.kernel.after(at_s + 0.5, _keep, world)
    world.kernel.run(60.0)
    found.ended(world)


def _keep(world: World) -> None:
    for request in list(world.server.rows.requests.values()):
        if request.drain:
            world.people.withdraw(request.id)


def _at_risk(world: World) -> None:
    """The sentinel's finding: it is not simulated, what follows is."""
    place = min(world.server.rows.replicas.items())[1].placements[0]
    world.server.find(
        SignalFact(
            id="device_risk:1",
            kind="device_risk",
            seen_s=world.kernel.now_s,
            node_id=place.node_id,
            device_index=place.device_index,
            value=0.9,
            threshold=0.7,
        )
    )


def _end_with(world: World, code: int) -> None:
    """One rank, by itself (`code`) or by a signal (less than 0)."""
    rank = next(rank for p in world.trainer.processes.values() if p.able() for rank in p.ranks.values())
    world.agents[rank.node].children.end(rank, (code, None) if code > 0 else (None, -code))


def _fail_checks(world: World, names: set[str], *says: str) -> None:
    """Of these nodes alone; those that it `says` tell it, the others when they are to start something."""
    for name, agent in world.agents.items():
        storage = (NodeCheck("storage", "the checkpoints are not mounted"),)
        agent.machine.failing = storage if name in names else ()
        if name in says:
            agent.children.read_node("")


def _end_all(world: World) -> None:
    for process in world.trainer.processes.values():
        for rank in process.ranks.values():
            world.agents[rank.node].children.end(rank)


def racks(found: Living) -> None:
    """Devices of two makes in three racks, of which a job takes what is near each other."""
    nodes = {f"node-{index}": 1 for index in range(9)}
    plan = WorldPlan(
        spec=job_spec(tp=2, spare_gpus=2),
        nodes=nodes,
        racks={name: f"rack-{index // 4}" for index, name in enumerate(nodes)},
        makes={name: ("H100", (80 - 8 * (index % 3)) << 30) for index, name in enumerate(nodes)},
    )
    world = World(15, plan=plan)
    found.watch(world)
    world.run(3)
    found.ended(world)


def clocks(found: Living) -> None:
    """The server's wall clock is set."""
    world = World(16)
    found.watch(world)
    world.run(2, extras=Extras(wall_leaps=1))
    found.ended(world)


def numbers(found: Living) -> None:
    """Bytes of checkpoints rot, and what was trained from others goes bad, before it is saved and after."""
    world = World(17, standing_by=0, steps=100_000)
    found.watch(world)
    world.start()
    world.faults.schedule(400.0, 0)
    for at_s in (52.0, 90.0, 95.0):
        world.kernel.after(at_s, world.harsh.lose_numbers)
    world.kernel.after(130.0, world.harsh.rot)
    world.kernel.after(131.0, _end_all, world)
    world.kernel.run(260.0)
    found.ended(world)


def persons(found: Living) -> None:
    """People inject faults, and give a command to one rank."""
    world = World(18)
    found.watch(world)
    world.start()
    world.faults.schedule(400.0, 0)
    world.kernel.after(30.0, world.people.command_rank)
    world.kernel.after(40.0, world.people.drop_link, 5.0)
    world.kernel.after(60.0, world.people.inject)
    world.kernel.run(100.0)
    found.ended(world)


SCENES: tuple[Callable[[Living], None], ...] = (
    seeds,
    rehearsals,
    places,
    drains,
    racks,
    clocks,
    numbers,
    persons,
)


@pytest.mark.parametrize(
    ("all_of_it", "alive", "listed"),
    [
        (fields(), lambda found: found.alive, NOT_YET),
        (ACTIONS, lambda found: found.actions, NO_ACTION),
        (COMMANDS, lambda found: found.commands, NO_COMMAND),
    ],
    ids=["fields", "actions", "commands"],
)
def test_what_never_occurs_is_listed_with_its_reason(
    all_of_it: set[str], alive: Callable[[Living], set[str]], listed: dict[str, str]
) -> None:
    assert living().violations == []
    never = all_of_it - alive(living())
    assert sorted(never - set(listed)) == [], "never occurs: have it occur, or list it with the reason"
    assert sorted(set(listed) - never) == [], "occurs now (or is no more): take it off the list"
