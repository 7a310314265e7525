"""Acts on attempts, views, replicas and ranks."""

from collections.abc import Iterator
from dataclasses import replace

import msgspec

from controlplane.changes.kinds import (
    AttemptKey,
    Audit,
    Change,
    CreateAttempt,
    CreateView,
    Enqueue,
    Fence,
    JobKey,
    Observe,
    Publish,
    Release,
    Reserve,
    Transition,
    ViewKey,
)
from controlplane.changes.launches import Launcher, checkpoint_dir
from controlplane.changes.rows import Attempt
from controlplane.changes.turn import ASK_TTL_S, Turn, counting, ended, key_of, moved, to_all, warm
from controlplane.policy import flaps, plan
from controlplane.policy.titles import number_of
from controlplane.protocol.commands import (
    Body,
    CollectStacks,
    DeliverInstall,
    DeliverView,
    InjectRankFault,
    StopRanks,
)
from controlplane.protocol.diagnostics import HANG
from controlplane.protocol.frames import PROTOCOL_MAX
from controlplane.protocol.spec import max_contributors
from controlplane.protocol.states import AttemptState, ReplicaState

STOP_TTL_S = 3600.0
VIEW_TTL_S = 120.0
FAULT_TTL_S = 15.0


def place_attempt(turn: Turn, act: plan.PlaceAttempt) -> Iterator[Change]:
    """What is committed from here on starts at the checkpoint; what came after it is lost work. Processes of
    an older attempt are fenced by the epoch, and its agents end them before they start ours."""
    rows, job, replicas = turn.rows, turn.rows.job(), len(act.placements) + act.yielded
    for old in rows.unended_attempts():
        yield from ended(rows, old, f"attempt {act.number} takes its place")
    yield Fence(act.epoch)
    attempt = Attempt(
        number=act.number,
        state=AttemptState.STARTING,
        layout=act.layout,
        replicas=replicas,
        yielded=act.yielded,
        resume_step=act.resume_step,
        resume_path=act.resume_path or "",
        checkpoint_dir=checkpoint_dir(job.spec, rows.terms(act.resume_path or "").checkpoint_root, job.id),
        # One that is started beside the placed stands by until it takes a place.
        max_contributors=max_contributors(job.spec) or replicas,
    )
    yield CreateAttempt(attempt)
    yield Publish("attempt.placed", f"Attempt {act.number} of {job.name} is placed. {turn.decision.sentence}")
    yield Release()
    newest = rows.newest_incarnations()
    launcher = Launcher(rows, replace(job, epoch=act.epoch), attempt)
    for index, placements in enumerate(act.placements):
        yield from launcher.start(index, newest.get(index, 0) + 1, placements)
    yield Reserve(act.spare_nodes)
    if job.spec.resources.spares.warm:
        yield warm(turn, act.number, act.spare_nodes)


def end_attempt(turn: Turn, act: plan.EndAttempt) -> Iterator[Change]:
    attempt, homes = turn.rows.attempt(act.number), turn.rows.homes(act.number)
    body = StopRanks(
        job_id=turn.rows.job().id,
        attempt=act.number,
        replica=-1,
        incarnation=-1,
        grace_s=act.grace_s,
        reason=turn.decision.sentence,
        final=turn.final,
    )
    yield to_all(body, homes, act.number, STOP_TTL_S)
    if attempt.state not in (AttemptState.STARTING, AttemptState.RUNNING):
        return
    yield Observe(AttemptKey(act.number), {"end_code": turn.decision.reason_code})
    why = turn.decision.sentence
    if homes:
        yield Transition(AttemptKey(act.number), AttemptState.STOPPING, why, {"end_reason": why})
    else:
        yield from ended(turn.rows, attempt, why)


def announce_view(turn: Turn, act: plan.AnnounceView) -> Iterator[Change]:
    """To everybody in it and to everybody it leaves out."""
    view = act.view
    yield Fence(view.epoch)
    yield CreateView(view)
    sentence = f"View {view.epoch}: {number_of(len(view.members), 'replica')}. {view.reason}"
    yield Publish("view.announced", sentence)
    yield to_all(DeliverView(view=view), turn.rows.homes(view.attempt), view.attempt, VIEW_TTL_S)


def send_install(turn: Turn, act: plan.SendInstall) -> Iterator[Change]:
    rows, install = turn.rows, act.install
    attempt = rows.attempt(install.attempt)
    members = {(member.replica, member.incarnation) for member in rows.view(install.epoch).members}
    yield Observe(ViewKey(install.epoch), {"install": install, "ordered_s": rows.now_s})
    for replica in rows.replicas(install.attempt):
        member = (replica.index, replica.incarnation) in members
        holds = member and replica.index in (*install.contributors, *install.standbys)
        yield from counting(replica, member and replica.index in install.contributors, holds=holds)
    if attempt.state == AttemptState.STARTING:
        yield Transition(AttemptKey(install.attempt), AttemptState.RUNNING, "its first view is installed")
    yield Publish("view.installed", f"View {install.epoch} continues at step {install.step}.")
    homes = [home for home in rows.homes(install.attempt) if (home.index, home.incarnation) in members]
    yield to_all(DeliverInstall(install=install), homes, install.attempt, VIEW_TTL_S)


# --- replicas and ranks ---


def start_replica(turn: Turn, act: plan.StartReplica) -> Iterator[Change]:
    if turn.launcher is None:
        turn.launcher = Launcher(turn.rows, turn.rows.job(), turn.rows.attempt())
    yield from turn.launcher.start(act.replica, act.incarnation, act.placements)


def stop_replica(turn: Turn, act: plan.StopReplica) -> Iterator[Change]:
    replica = turn.rows.replica(act.replica, act.incarnation)
    yield Observe(key_of(replica), {"stop_requested": True})
    body = StopRanks(
        job_id=turn.rows.job().id,
        attempt=replica.attempt,
        replica=act.replica,
        incarnation=act.incarnation,
        grace_s=act.grace_s,
        reason=turn.decision.sentence,
    )
    yield to_all(body, turn.rows.homes(replica.attempt, replica=replica), replica.attempt, STOP_TTL_S)


def set_replica_state(turn: Turn, act: plan.SetReplicaState) -> Iterator[Change]:
    replica, now_s = turn.rows.replica(act.replica, act.incarnation), turn.rows.now_s
    if replica.state != act.to:
        yield moved(replica, act.to, turn.decision.sentence)
    if act.to == ReplicaState.ACTIVE:
        yield from counting(replica, True, holds=True)
    if act.to == ReplicaState.SUSPECT:
        # Left out: should it come back, it catches up anew.
        times = flaps.times_out(replica.times_out, replica.out_s, now_s)
        out = {"contributing": False, "caught_up": None, "times_out": times, "out_s": now_s}
        yield Observe(key_of(replica), out, publish="job")


def relieve(turn: Turn, act: plan.Relieve) -> Iterator[Change]:
    yield Observe(key_of(turn.rows.replica(act.replica, act.incarnation)), {"relieved": act.reason}, publish="replica")


def order_out(turn: Turn, act: plan.OrderOut) -> Iterator[Change]:
    """It is to leave as a person asked, or (by nobody) is not any more."""
    columns = {
        "ordered_out": act.by,
        "ordered_s": act.asked_s if act.by else None,
        "relieved": "" if act.at_once else act.by,
    }
    yield Observe(key_of(turn.rows.replica(act.replica, act.incarnation)), columns, publish="replica")


def gather_stacks(turn: Turn, act: plan.GatherStacks) -> Iterator[Change]:
    """An older agent reads no order for all."""
    rows, whole = turn.rows, act.replica == -1
    body = CollectStacks(job_id=rows.job().id, replica=act.replica, incarnation=act.incarnation, look=act.look)
    if whole:
        number = rows.attempt().number
        yield to_all(body, rows.homes(number, revision=PROTOCOL_MAX), number, ASK_TTL_S)
    else:
        replica = rows.replica(act.replica, act.incarnation)
        yield to_all(body, rows.homes(replica.attempt, replica=replica), replica.attempt, ASK_TTL_S)


def inspect_ranks(turn: Turn, act: plan.LookAtRanks) -> Iterator[Change]:
    rows, job = turn.rows, turn.rows.job()
    yield Observe(JobKey(), {"looks_taken": job.inspections + 1, "looked_s": rows.now_s})
    replica = rows.replica(act.replica, act.incarnation)
    commands: list[tuple[str, Body]] = [
        (
            node,
            CollectStacks(job_id=job.id, replica=act.replica, incarnation=act.incarnation, rank=rank, look=HANG),
        )
        for rank, node in rows.rank_homes(replica, act.ranks)
    ]
    yield Enqueue(tuple(commands), replica.attempt, ASK_TTL_S)


def inject_fault(turn: Turn, act: plan.InjectFault) -> Iterator[Change]:
    """What a person asked for was written to the audit log then."""
    rows = turn.rows
    replica = rows.replica(act.replica, act.incarnation)
    if not act.request:
        yield Audit("schedule", "job.fault", turn.decision.sentence, msgspec.to_builtins(act))
    body = InjectRankFault(
        job_id=rows.job().id,
        replica=act.replica,
        incarnation=act.incarnation,
        rank=act.rank,
        fault=act.fault,
        value=act.value,
    )
    commands = tuple((node, body) for _, node in rows.rank_homes(replica, (act.rank,)))
    yield Enqueue(commands, replica.attempt, FAULT_TTL_S)
