"""What is asked of a job when the faults are over, and of what runs.

I10: a job runs and moves, waits with a reason, or has ended. I2: no command hangs. What the server says of its
replicas is so, and nothing else runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.changes.outbox import LIVE
from controlplane.changes.turn import OVER
from controlplane.protocol.commands import EndVerification, VerifyCheckpoint
from controlplane.protocol.membership import MemberRole
from controlplane.protocol.states import QUEUED_JOB, AttemptState, JobState, ReplicaState, RequestState

if TYPE_CHECKING:
    from controlplane.simulator.job import JobRun
    from controlplane.simulator.rows import Rows
    from controlplane.simulator.world import World

CALM_S = 150.0
STEADY_S = 30.0
YOUNG_S = 60.0
JUDGED_S = 60.0
"""So long after a recovery its certificate is there: no report comes later."""
READS = (VerifyCheckpoint, EndVerification)
LASTING = frozenset({"node_silent", "straggler", "node_check"})
ENDED = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})


def judge(world: World, run: JobRun, before: int) -> None:
    """The job now; `before`: its steps `STEADY_S` ago."""
    _judge_rows(run)
    _judge_processes(world, run)
    rows, expect = run.rows, run.checkers.expect
    if rows.state is JobState.RUNNING and is_young(world, run):
        return
    if rows.state is JobState.RUNNING:
        expect(rows.committed_step > before, f"I10: running, but no step in {STEADY_S:.0f} s")
        expect(not rows.signals or _only_lasting(rows), f"I12: open findings {sorted(rows.signals)}")
    elif rows.state in QUEUED_JOB:
        expect(bool(rows.last_wait), "I10: pending without a reason")
    else:
        expect(rows.state in ENDED, f"I10: still {rows.state} {CALM_S:.0f} s after the last fault")
    if rows.state is JobState.FAILED:
        given_up = any(entry.split(":")[1] in ("fail", "failed") for entry in rows.history)
        expect(given_up, "I10: failed without a reason")
    open_still = [r.id for r in rows.requests.values() if r.state is RequestState.OPEN]
    expect(rows.state is not JobState.RUNNING or not open_still, f"I-ask: nobody has looked at {open_still}")
    for command_id, row in rows.commands.items():
        dead = world.agents[row.envelope.node_id].dead
        # One that reads a checkpoint may, as long as nothing else is due.
        dead = dead or (isinstance(row.envelope.body, READS) and row.due_s > world.kernel.now_s)
        # Of several jobs one may begin to keep a spare when another has ended.
        dead = dead or (len(world.runs) > 1 and world.kernel.now_s - row.made_s < STEADY_S)
        expect(row.state not in LIVE or dead, f"I2: command {command_id} is still {row.state}")

    for incident, course in rows.course.incidents.items():
        over = course.due_s is None or world.kernel.now_s - (course.over_s or 0.0) < JUDGED_S
        expect(over, f"I-cert: the certificate of {incident} is still {course.state}")


def is_leaving(run: JobRun) -> bool:
    """Ranks of an attempt that has ended are to be stopped yet."""
    attempt = run.rows.attempt
    return attempt is not None and attempt.state is AttemptState.STOPPING


def is_young(world: World, run: JobRun) -> bool:
    """Of several jobs one that was placed late: nothing is asked of it yet."""
    attempt = run.rows.attempt
    return len(world.runs) > 1 and attempt is not None and world.kernel.now_s - attempt.started_s < YOUNG_S


def _only_lasting(rows: Rows) -> bool:
    return {signal.kind for signal in rows.signals.values()} <= LASTING


def _judge_rows(run: JobRun) -> None:
    """While it runs: who is said to contribute does, in truth."""
    rows, expect = run.rows, run.checkers.expect
    if rows.state is not JobState.RUNNING or rows.install is None or rows.attempt is None:
        return
    for index, row in sorted(rows.replicas.items()):
        process = run.trainer.processes.get((rows.attempt.number, index, row.incarnation))
        role = process.standing.role if process is not None and process.able() else None
        said = row.contributing and row.state is ReplicaState.ACTIVE
        does = role is MemberRole.CONTRIBUTOR and process is not None and process.epoch == rows.epoch
        expect(said == does, f"I-true: r{index} is said {'' if said else 'not '}to contribute, and is {role}")


def _judge_processes(world: World, run: JobRun) -> None:
    """Nothing lives on that the server has ended or does not know."""
    rows = run.rows
    live = {(row.attempt, row.index, row.incarnation) for row in rows.replicas.values() if row.state not in OVER}
    for key, process in sorted(run.trainer.processes.items()):
        alive = [
            rank.ref.rank
            for rank in process.ranks.values()
            if rank.alive and not world.network.is_cut(rank.node) and not world.agents[rank.node].dead
        ]
        over = rows.state in ENDED or key not in live
        run.checkers.expect(not (alive and over), f"I-left: ranks {alive} of {key} live on")
