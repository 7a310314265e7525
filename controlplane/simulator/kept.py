"""What ranks have said, as rows in memory: `changes.kinds.Keep`, of the kinds that are simulated."""

from controlplane.changes.assembly.snapshot import MAX_CHECKPOINTS
from controlplane.changes.due.readback import READABLE, VERIFY_DELAY_S
from controlplane.changes.kinds import RankKey
from controlplane.changes.saves import moves
from controlplane.policy.snapshot import CheckpointFact
from controlplane.protocol.frames import RankReport
from controlplane.protocol.membership import Flush
from controlplane.protocol.rank import CheckpointReport, StepReport
from controlplane.protocol.states import CheckpointState
from controlplane.simulator.rows import Rows, SaveRow


def keep(rows: Rows, key: RankKey, said: RankReport, *, node: str, at_s: float, now_s: float, fenced: bool) -> None:
    """Of this rank on `node`, which its agent heard at `at_s`. `fenced`: it is out."""
    match said:
        case StepReport():
            rows.note_step(key, said, at_s)
        case Flush():
            rows.flushes[key.replica, key.incarnation, key.rank] = said
        case CheckpointReport():
            rows.save_begun_s = now_s if said.state == "writing" else None
            begun = SaveRow(key.attempt, key.replica, key.incarnation, written_on=node)
            save = rows.saves.setdefault(said.path, begun)
            for move in moves(save.state, said.kind, said, fenced=fenced, copies=0):
                save.state, save.reason = move.to, move.why
                if move.to == CheckpointState.COMPLETE:
                    save.written_on, save.due_s = node, now_s + VERIFY_DELAY_S
                    _complete(rows, save, said, now_s)


def refuse(rows: Rows, path: str, said: str, now_s: float) -> None:
    """Its ranks could not load it: it is doubted until it was read back."""
    save = rows.saves.get(path)
    if save is not None and save.state in READABLE:
        save.doubt, save.due_s = said or "it says nothing", now_s


def let_go(save: SaveRow, to: CheckpointState, now_s: float) -> None:
    """Off the ladder: nobody inspects it again, but to end whoever reads it."""
    save.state, save.due_s = to, now_s if save.reader else None


def _complete(rows: Rows, save: SaveRow, said: CheckpointReport, now_s: float) -> None:
    attempt = rows.attempt
    assert attempt is not None, "only who runs saves"
    save.fact = CheckpointFact(
        id=said.path,
        step=said.step,
        path=said.path,
        state=CheckpointState.COMPLETE,
        epoch=said.epoch,
        committed_s=now_s,
        layout=attempt.layout,
        begun_at=attempt.resume_step,
    )
    save.total_s = said.total_s
    rows.saves_s.append(said.total_s)
    for path in [fact.path for fact in rows.checkpoints][:-MAX_CHECKPOINTS]:
        _remove(rows, path, now_s)
    if said.step > attempt.resume_step:
        attempt.saved = True


def _remove(rows: Rows, path: str, now_s: float) -> None:
    """Retention does."""
    save = rows.saves[path]
    let_go(save, CheckpointState.PRUNED, now_s)
    if not save.reader:
        del rows.saves[path]
