"""From placements to start orders: what each node is told of its part of a replica."""

from collections import defaultdict
from collections.abc import Iterator

import msgspec

from controlplane.changes.kinds import Change, CreateReplica, Enqueue, ReplicaKey
from controlplane.changes.rows import Attempt, Job, Rows, Terms
from controlplane.policy.snapshot import Placement
from controlplane.policy.timeouts import setup_limit_s, step_floor_s, timeout_of
from controlplane.protocol.commands import Body, StartRanks
from controlplane.protocol.launch import RankPlacement, ReplicaLaunch, Resume, TrainerConfig
from controlplane.protocol.spec import TrainSpec, max_contributors
from controlplane.protocol.states import Section

START_TTL_S = 60.0
REPORTED_AT_ONCE_RANKS = 64
"""A job of up to so many ranks has each step told at once by all of them."""
REPORTS_A_S = 400.0
"""So many times in a second the nodes of a larger job bring what their ranks report of steps, all together."""
RANKS_A_NODE = 8
LONGEST_HOLD_S = 5.0


def step_reports_within_s(ranks: int) -> float:
    """How long a node of a job of so many ranks gathers reports of steps. Each at a time of its own: the first word of
    a step comes as soon as ever, and what the others have to say of it within this time."""
    if ranks <= REPORTED_AT_ONCE_RANKS:
        return 0.0
    return min(LONGEST_HOLD_S, ranks / RANKS_A_NODE / REPORTS_A_S)


def checkpoint_dir(spec: TrainSpec, root: str, job_id: str) -> str:
    """The job's own below the spec's directory or address (jobs may share that: each has its
    fence), else one of the control plane's."""
    return f"{(spec.checkpoint.dir or root).rstrip('/')}/{job_id}"


def trainer_config(job: Job, attempt: Attempt, terms: Terms, *, learned_setup_s: float | None = None) -> TrainerConfig:
    """The same for every rank of the attempt."""
    spec = job.spec
    return TrainerConfig(
        model=spec.model,
        parallelism=attempt.layout,
        training=spec.training,
        checkpoint=spec.checkpoint,
        checkpoint_dir=attempt.checkpoint_dir,
        replicas=attempt.replicas,
        store=terms.store,
        resume=Resume(path=attempt.resume_path, step=attempt.resume_step) if attempt.resume_path else None,
        outer_timeout_s=terms.outer_timeout_s,
        inner_timeout_s=setup_limit_s(spec.resiliency.timeouts, learned_setup_s),
        max_contributors=attempt.max_contributors or max_contributors(spec),
        allow_faults=spec.resiliency.allow_faults,
        timing_interval_s=spec.resiliency.stragglers.interval_s,
    )


class Launcher:
    """Starts replicas of one attempt, on terms that are read once however many there are. Who starts once there
    is a view joins those who train and has its state from them: what the attempt began with may be pruned by then."""

    def __init__(self, rows: Rows, job: Job, attempt: Attempt) -> None:
        self._rows, self._job, self._attempt = rows, job, attempt
        self._terms = rows.terms(attempt.resume_path)
        setup_s = timeout_of(self._terms.limits, Section.SETUP)
        self._config = trainer_config(job, attempt, self._terms, learned_setup_s=setup_s)
        if rows.has_view(attempt.number):
            self._config = msgspec.structs.replace(self._config, resume=None)

    def start(self, index: int, incarnation: int, placements: tuple[Placement, ...]) -> Iterator[Change]:
        """One incarnation of a slot, and a command to each of its nodes. On several they meet at that of rank 0."""
        key = ReplicaKey(self._attempt.number, index, incarnation)
        yield CreateReplica(key, placements)
        by_node: dict[str, list[Placement]] = defaultdict(list)
        for placement in placements:
            by_node[placement.node_id].append(placement)
        host = ""
        if len(by_node) > 1:
            host = self._rows.node_name(next(place.node_id for place in placements if place.rank == 0))
        commands: list[tuple[str, Body]] = [
            (node, StartRanks(launch=self._launch(key, len(placements), mine, host)))
            for node, mine in sorted(by_node.items())
        ]
        yield Enqueue(tuple(commands), self._attempt.number, START_TTL_S)

    def _launch(self, key: ReplicaKey, world_size: int, mine: list[Placement], host: str) -> ReplicaLaunch:
        job, limits = self._job, self._terms.limits
        spec = job.spec
        return ReplicaLaunch(
            job_id=job.id,
            job_name=job.name,
            attempt=key.attempt,
            epoch=job.epoch,
            replica=key.index,
            incarnation=key.incarnation,
            world_size=world_size,
            ranks=tuple(RankPlacement(rank=p.rank, device_index=p.device_index) for p in mine),
            config=self._config,
            entrypoint=tuple(spec.entrypoint) if spec.entrypoint else None,
            master_host=host,
            user=job.owner,
            env=self._terms.env,
            log_markers=spec.resiliency.log_markers,
            step_timeout_s=timeout_of(limits, Section.STEP),
            step_floor_s=step_floor_s(spec.resiliency.timeouts),
            setup_timeout_s=timeout_of(limits, Section.SETUP),
            checkpoint_timeout_s=timeout_of(limits, Section.CHECKPOINTING),
            out_of_section_timeout_s=timeout_of(limits, Section.OUT_OF_SECTION),
            step_reports_within_s=step_reports_within_s(world_size * self._attempt.replicas),
        )
