"""What the simulator exercises: every field of a snapshot takes more than one value, every action is planned and every
command sent, in some pass of a few worlds; but for those listed here with the reason. The lists only shrink: what
begins to occur fails here until it is taken off."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import cache

import msgspec
import pytest

from controlplane.policy.config import PolicyConfig
from controlplane.protocol.frames import NodeCheck
from controlplane.protocol.spec import FaultSchedule, Resources, Scheduling
from controlplane.protocol.states import Mode, RequestKind, Verdict
from controlplane.simulator import crowd
from controlplane.simulator.extras import Extras
from controlplane.simulator.faults import Fault
from controlplane.simulator.job import JobPlan
from controlplane.simulator.timing import Timing
from controlplane.simulator.world import World, WorldPlan, job_spec
from tests.simulation.living import ACTIONS, COMMANDS, Living, fields

RESERVED = "nodes are reserved in days of the queue (`simulator.queue_promises`), and in no world of processes"
NOT_YET = {
    "JobFact.end_held_until_s": "no step is computed again",
    "CheckpointFact.holders": "no checkpoint lies on the nodes' own disks",
    **dict.fromkeys(("Victim.borrows", "Again.at_most", "Again.why", "Elsewhere.again"), "no world has projects"),
    "BudgetFact.program_in_window": "ranks are killed from outside, and no program ends by itself",
    "JobFact.project": RESERVED,
    "NodeFact.reservations": RESERVED,
    "QueuePlace.alone": RESERVED,
    **{f"Reservation.{name}": RESERVED for name in ("from_s", "id", "project", "shown", "until_s")},
}
NO_ACTION: dict[str, str] = {}
NO_COMMAND = {"order_recompute": "no step is computed again"}


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


def comes_and_goes(found: Living) -> None:
    """Nodes stand still for a while and are heard again, and a device turns slow where no other is free."""
    world = World(7011, steps=100_000)
    found.watch(world)
    world.run(4, stills=2)
    found.ended(world)
    stragglers = msgspec.structs.replace(world.spec.resiliency.stragglers, interval_s=10.0)
    spec = job_spec(spare_gpus=0, min_replicas=3)
    spec = msgspec.structs.replace(spec, resiliency=msgspec.structs.replace(spec.resiliency, stragglers=stragglers))
    slow = World(20, plan=WorldPlan(spec=spec, nodes={f"node-{index}": 2 for index in range(3)}))
    found.watch(slow)
    slow.start()
    slow.faults.schedule(400.0, 0)
    slow.slowness.schedule(20.0, 20.0, 1)
    slow.kernel.run(60.0)
    found.ended(slow)


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
    world.kernel.after(15.0, world.heat.begin)
    world.heat.schedule(15.0, 45.0, 1)
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


def _lose_a_home(world: World) -> None:
    homes = sorted(place.node_id for row in world.server.rows.replicas.values() for place in row.placements)
    world.faults.lose_node(world.agents[homes[0]])


def _keep(world: World) -> None:
    for request in list(world.server.rows.requests.values()):
        if request.drain:
            world.people.withdraw(request.id)


def _end_with(world: World, code: int) -> None:
    """One rank, by itself (`code`) or by a signal (less than 0)."""
    rank = next(rank for p in world.trainer.processes.values() if p.able() for rank in p.ranks.values())
    world.agents[rank.node].children.end(rank, (code, None) if code > 0 else (None, -code))


def _rot(world: World) -> None:
    """All but the oldest: ranks that load one are the first who see it."""
    world.storage.rotten |= {fact.path for fact in world.server.rows.checkpoints[1:]}


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
    """Devices of two makes in three racks, of which a job takes what is near each other. Its saves hold it up."""
    nodes = {f"node-{index}": 1 + index % 2 for index in range(12)}
    plan = WorldPlan(
        spec=job_spec(tp=2, spare_gpus=0),
        nodes=nodes,
        racks={name: f"rack-{index // 4}" for index, name in enumerate(nodes)},
        timing=Timing(save_holds_s=1.5),
        makes={name: ("H100", (80 - 8 * (index % 3)) << 30) for index, name in enumerate(nodes)},
    )
    world = World(15, plan=plan)
    found.watch(world)
    world.start()
    world.faults.schedule(400.0, 0)
    for at_s in (30.0, 60.0):
        world.kernel.after(at_s, _lose_a_home, world)
    world.kernel.run(120.0)
    found.ended(world)


def held(found: Living) -> None:
    """Rank after rank hangs, more than the disruption budget allows in a rack and in the fleet; then no node is
    heard, and all are again."""
    nodes = {f"node-{index}": 2 for index in range(6)}
    racks = {name: f"rack-{number // 2}" for number, name in enumerate(nodes)}
    config = PolicyConfig(max_evictions=4, max_evictions_of_segment=2, bar_s=0.0)
    world = World(23, config=config, plan=WorldPlan(spec=job_spec(steps=100_000), nodes=nodes, racks=racks))
    found.watch(world)
    world.start()
    world.faults.schedule(400.0, 0)
    for number in range(10):
        world.kernel.after(20.0 + 15.0 * number, world.faults.strike, Fault.RANK_HANG)
    for agent in world.agents.values():
        world.kernel.after(280.0, world.faults.cut_node, agent)
    world.kernel.run(400.0)
    found.ended(world)


def clocks(found: Living) -> None:
    """The server's wall clock is set, and devices run hot."""
    world = World(16)
    found.watch(world)
    world.run(2, extras=Extras(wall_leaps=1, overheats=2))
    found.ended(world)


def numbers(found: Living) -> None:
    """Bytes of checkpoints rot, and what was trained from others goes bad, before it is saved and after."""
    world = World(17, standing_by=0, steps=100_000)
    found.watch(world)
    world.start()
    world.faults.schedule(400.0, 0)
    for at_s in (52.0, 90.0, 95.0):
        world.kernel.after(at_s, world.harsh.lose_numbers)
    for at_s in (140.0, 200.0):
        world.kernel.after(at_s, _rot, world)
        world.kernel.after(at_s + 0.1, _end_all, world)
    world.kernel.run(290.0)
    found.ended(world)


def persons(found: Living) -> None:
    """People inject faults, give a command to one rank, lose a key, and have the job yield its devices for a while. How
    long a setup may last is learned, and the job has a limit of its time."""
    spec = job_spec(tp=1)
    timeouts = msgspec.structs.replace(spec.resiliency.timeouts, setup_s="auto")
    resiliency = msgspec.structs.replace(spec.resiliency, timeouts=timeouts)
    spec = msgspec.structs.replace(spec, resiliency=resiliency, scheduling=Scheduling(time_limit_s=1000.0))
    world = World(18, plan=WorldPlan(spec=spec, nodes={f"node-{index}": 2 for index in range(5)}))
    found.watch(world)
    world.start()
    world.faults.schedule(400.0, 0)
    world.kernel.after(30.0, world.people.command_rank)
    world.kernel.after(40.0, world.people.drop_link, 5.0)
    world.kernel.after(50.0, world.people.preempt, 3.0)
    world.kernel.after(60.0, world.people.inject)
    world.kernel.after(70.0, world.people.lose_key, 10.0)
    world.kernel.after(72.0, _end_all, world)
    world.kernel.run(110.0)
    found.ended(world)


def consent(found: Living) -> None:
    """Automation only recommends: a person rejects, and approves; what nobody objects to is carried out."""
    spec = job_spec(tp=1)
    careful = msgspec.structs.replace(spec.resiliency, mode=Mode.RECOMMEND, act_after_s=20.0)
    spec = msgspec.structs.replace(spec, resiliency=careful)
    world = World(19, plan=WorldPlan(spec=spec, nodes={f"node-{index}": 2 for index in range(5)}))
    found.watch(world)
    world.start()
    world.faults.schedule(400.0, 0)
    for at_s, verdict in ((30.0, Verdict.REJECTED), (60.0, Verdict.APPROVED), (90.0, None)):
        world.kernel.after(at_s, _end_one_rank, world)
        if verdict is not None:
            world.kernel.after(at_s + 10.0, world.people.say, verdict)
    world.kernel.after(50.0, world.people.say, Verdict.APPROVED)
    world.kernel.run(140.0)
    found.ended(world)


def _end_one_rank(world: World) -> None:
    _end_with(world, -9)


def set_backs(found: Living) -> None:
    """The database is restored to before a replica was started again where it was, before all were, and before the job
    ended."""
    spec, nodes = job_spec(spare_gpus=0), {f"node-{index}": 2 for index in range(3)}
    _set_back(found, World(21, plan=WorldPlan(spec=spec, nodes=nodes)), _end_one)
    _set_back(found, World(21), _move_all)
    _set_back(found, World(21, steps=60), lambda world: None)


def _set_back(found: Living, world: World, end: Callable[[World], None]) -> None:
    found.watch(world)
    world.start()
    world.faults.schedule(400.0, 0)
    world.kernel.run(40.0)
    kept = deepcopy(world.server.rows)
    world.kernel.run(42.0)
    end(world)
    world.kernel.run(60.0)
    world.harsh.set_back(kept)
    world.kernel.run(90.0)
    found.ended(world)


def _move_all(world: World) -> None:
    """The next attempt has a node on which nothing was."""
    _lose_a_home(world)
    _end_all(world)


def _end_one(world: World) -> None:
    world.faults.kill_rank(next(process for process in world.trainer.processes.values() if process.able()))


def queue(found: Living) -> None:
    """Jobs of several priorities come to a small fleet: some wait, some pass others, some yield and come back; one
    yields twice."""
    for seed in (2003, 2006, 2010):
        draw = crowd.drawn(seed, 6)
        world = World(seed, plan=draw.plan, config=crowd.CONFIG)
        found.watch(world)
        world.run(1)
        found.ended(world)
    spec = job_spec(spare_gpus=0, steps=20)
    urgent = msgspec.structs.replace(spec, scheduling=Scheduling(priority=900))
    others = tuple(JobPlan(name=f"urgent-{at_s}", spec=urgent, arrives_s=at_s) for at_s in (40.0, 110.0))
    plan = WorldPlan(
        spec=job_spec(spare_gpus=0),
        name="long",
        others=others,
        nodes={f"node-{index}": 2 for index in range(3)},
        timing=Timing(saves_asked=True),
    )
    small = msgspec.structs.replace(urgent, resources=Resources(nodes=1, gpus_per_node=2))
    one = replace(plan, others=(JobPlan(name="small", spec=small, arrives_s=40.0),))
    for each in (plan, one):
        world = World(22, plan=each, config=crowd.CONFIG)
        found.watch(world)
        world.start()
        world.kernel.run(150.0)
        found.ended(world)


def departures(found: Living) -> None:
    """Providers take nodes and people set windows, each with a moment of its own."""
    world = World(13)
    found.watch(world)
    world.run(2, extras=Extras(notices=2, windows=2))
    found.ended(world)


SCENES: tuple[Callable[[Living], None], ...] = (
    seeds,
    departures,
    comes_and_goes,
    rehearsals,
    places,
    drains,
    racks,
    held,
    clocks,
    numbers,
    persons,
    consent,
    set_backs,
    queue,
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
