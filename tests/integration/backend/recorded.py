"""Decisions that simulated worlds made, as rows of the journal: what a policy is tried on without a fleet."""

from datetime import timedelta
from functools import lru_cache
from typing import Any

import msgspec

from controlplane.jobs.models import Job
from controlplane.jobs.services import submit_job
from controlplane.policies import services
from controlplane.policy.config import PolicyConfig
from controlplane.policy.decide import decide
from controlplane.policy.document import DEFAULT
from controlplane.policy.plan import Decision as Made
from controlplane.policy.plan import Plan
from controlplane.policy.replay import content_of
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol.ids import make_id
from controlplane.protocol.spec import Checkpoint, Metadata, Parallelism, Resources, Training, TrainSpec
from controlplane.protocol.states import IncidentState
from controlplane.recovery.models import Decision, Incident
from controlplane.recovery.snapshots import packed
from controlplane.runtime.clock import ago, now
from controlplane.runtime.ids import new_id
from controlplane.simulator.timing import Timing
from controlplane.simulator.world import World, WorldPlan
from tests.integration.backend.conftest import job_spec

STRIKES_S = (120.0, 300.0, 480.0)
RUNS_S = 600.0
Seen = tuple[JobSnapshot, Made]


class Recorder:
    """The policy, and every decision of it that was not made before, with what it was made by."""

    def __init__(self, config: PolicyConfig) -> None:
        self.config, self.seen = config, list[Seen]()
        self._keys = set[tuple[str, str]]()

    def __call__(self, snapshot: JobSnapshot, config: PolicyConfig) -> Plan:
        plan = decide(snapshot, self.config)
        for each in plan.decisions:
            if (each.key, each.mode) not in self._keys:
                self._keys.add((each.key, each.mode))
                self.seen.append((snapshot, each))
        return plan


@lru_cache(maxsize=8)
def stills(seed: int, lease_s: float = DEFAULT.lease_s, strikes_s: tuple[float, ...] = STRIKES_S) -> tuple[Seen, ...]:
    """Three replicas of two ranks whose start takes 40 s and a transfer 15 s, with one free node; at each of these
    times a node stands still for 2 to 25 s."""
    spec = TrainSpec(
        resources=Resources(nodes=3, gpus_per_node=2),
        parallelism=Parallelism(tp=1, pp=2),
        training=Training(steps=100_000, global_batch=6, micro_batch=1),
        checkpoint=Checkpoint(interval_steps=20),
    )
    timing = Timing(micro_batch_s=(0.4, 0.4), setup_s=(40.0, 40.0), fetch_s=(15.0, 15.0))
    plan = WorldPlan(spec=spec, nodes={f"node-{index}": 2 for index in range(4)}, timing=timing)
    recorder = Recorder(PolicyConfig(lease_s=lease_s))
    world = World(seed, plan=plan, config=recorder.config)
    world.server.decide = recorder
    world.start()
    for number, at_s in enumerate(strikes_s):
        world.kernel.run(at_s)
        world.faults.stop_node(world.agents[f"node-{number % 3}"])
    world.kernel.run(RUNS_S)
    return tuple(recorder.seen)


def keep(seen: tuple[Seen, ...], *, name: str, config: PolicyConfig = DEFAULT, age_s: float = 900.0) -> Job:
    """The journal of a job that ended up so: its first decision was `age_s` ago. Decisions that act share an incident
    with those that follow within a minute."""
    document = msgspec.structs.replace(job_spec(), metadata=Metadata(name=name))
    job = submit_job(document, owner="ada", actor="ada")
    services.keep(config)
    first_s, incident = seen[0][0].now_s, None
    began_s = 0.0
    for number, (snapshot, made) in enumerate(seen):
        at = ago(age_s) + timedelta(seconds=snapshot.now_s - first_s)
        if made.rule == "leave_out" and (incident is None or snapshot.now_s - began_s > 60.0):
            began_s = snapshot.now_s
            incident = Incident.objects.create(
                id=new_id("inc"), job=job, title="A node was silent.", state=IncidentState.RESOLVED, opened_at=at,
                resolved_at=now(),
            )  # fmt: skip
        plain: dict[str, Any] = dict(content_of(made))
        Decision.objects.create(
            id=make_id("dec", int(at.timestamp() * 1000.0), number.to_bytes(10, "big")), job=job, at=at,
            key=made.key[:200], policy_version=config.version, snapshot=packed(snapshot), incident=incident, **plain,
        )  # fmt: skip
    return job
