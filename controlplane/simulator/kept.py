"""What ranks have said, as rows in memory: `changes.kinds.Keep`, of the kinds that are simulated."""

from controlplane.changes.assembly.snapshot import MAX_CHECKPOINTS
from controlplane.changes.kinds import RankKey
from controlplane.changes.saves import moves
from controlplane.policy.snapshot import CheckpointFact
from controlplane.protocol.frames import RankReport
from controlplane.protocol.membership import Flush
from controlplane.protocol.rank import CheckpointReport
from controlplane.protocol.states import CheckpointState
from controlplane.simulator.rows import Rows, SaveRow


def keep(rows: Rows, key: RankKey, said: RankReport, *, now_s: float, fenced: bool) -> None:
    """Of this rank. `fenced`: it is out."""
    match said:
        case Flush():
            rows.flushes[key.replica, key.incarnation, key.rank] = said
        case CheckpointReport():
            rows.save_begun_s = now_s if said.state == "writing" else None
            begun = SaveRow(key.attempt, key.replica, key.incarnation)
            save = rows.saves.setdefault(said.path, begun)
            for move in moves(save.state, said.kind, said, fenced=fenced, copies=0):
                save.state = move.to
                if move.to == CheckpointState.COMPLETE:
                    _complete(rows, said, now_s)


def _complete(rows: Rows, said: CheckpointReport, now_s: float) -> None:
    attempt = rows.attempt
    assert attempt is not None, "only who runs saves"
    fact = CheckpointFact(
        id=said.path,
        step=said.step,
        path=said.path,
        state=CheckpointState.COMPLETE,
        epoch=said.epoch,
        committed_s=now_s,
        layout=attempt.layout,
        begun_at=attempt.resume_step,
    )
    rows.saves_s.append(said.total_s)
    rows.checkpoints = [*rows.checkpoints, fact][-MAX_CHECKPOINTS:]
    if said.step > attempt.resume_step:
        attempt.saved = True
