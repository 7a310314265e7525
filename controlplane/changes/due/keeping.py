"""The checkpoint from before a fault, kept from the moment the incident opens until it is judged.

Retention counts saves, and a recovery may outlast any number of them: the checkpoint from which a step is computed
again would be gone before anybody could ask for it. So it is written down when the incident opens, and one of the
job's ranks is ordered to keep these checkpoints beyond their time. At most `MAX_KEPT` a job; the oldest need gives
way, and its certificate says so. It is let go once the certificate is final, the need is given up, or the job ends.
"""

from collections.abc import Generator, Iterator

from controlplane.changes.due.kinds import KeepFor, KeepNext, Keeps, LetGo, Rebase
from controlplane.changes.due.rows import KeepingRows, Need
from controlplane.changes.kinds import Enqueue
from controlplane.policy.facts import TERMINAL_JOB
from controlplane.protocol.commands import KeepCheckpoints
from controlplane.protocol.keeping import KeptSave
from controlplane.protocol.states import QUEUED_JOB, CommandState

MAX_KEPT = 2
"""Checkpoints of a job, beyond its retention: each is a whole state on its storage."""
LOST = (CommandState.FAILED, CommandState.SUPERSEDED, CommandState.EXPIRED)
MAX_LOST = 6
"""So often one replica's rank may fail to be ordered."""
SOON_S, CALM_S = 1.0, 15.0
TTL_S = 60.0
Due = Generator[Keeps, None, float | None]


def needed(rows: KeepingRows, incident: str) -> Iterator[Keeps]:
    """Its fault may have to be judged from the checkpoint before it."""
    base = rows.base_before(incident)
    if base is None or rows.has_trained() or rows.job().state in TERMINAL_JOB:
        return
    yield KeepFor(incident, base)
    yield from _with_room(rows)
    yield from tended(rows)


def let_go(rows: KeepingRows, incident: str) -> Iterator[Keeps]:
    """Nobody computes from it any more: it was judged, or nothing will be."""
    if any(need.incident == incident and not need.let_go for need in rows.needs()):
        yield LetGo((incident,), "")
        yield from tended(rows)


def ended(rows: KeepingRows) -> Iterator[Keeps]:
    """The job ends otherwise than by its last step, or has ended: its ranks hear it before they leave."""
    needs = rows.needs()
    if not needs:
        return
    yield LetGo(tuple(need.incident for need in needs if not need.let_go), "the job ended before it was judged")
    if not rows.has_trained() and rows.job().state not in TERMINAL_JOB:
        yield from tended(rows)
    yield KeepNext(None, None)


def tended(rows: KeepingRows) -> Iterator[Keeps]:
    """A rank of the job is ordered to keep what it shall, where it was not yet or that was lost."""
    if rows.job().state in TERMINAL_JOB:
        yield from ended(rows)
        return
    yield from _rebased(rows)
    again_s = yield from _commanded(rows)
    yield KeepNext(again_s if again_s is not None else CALM_S, again_s)


def _commanded(rows: KeepingRows) -> Due:
    """Seconds until it is due again; None: the ranks keep what they shall."""
    saves = _saves(rows)
    sent = rows.keeps_sent(MAX_LOST)
    last = sent[0].body if sent else None
    handed_over = bool(sent) and sent[0].state == CommandState.SUCCEEDED
    if not saves and (last is None or (handed_over and not last.saves)):
        return None
    whom = rows.saver()
    if whom is None:
        return CALM_S if rows.job().state in QUEUED_JOB else SOON_S
    body = KeepCheckpoints(
        job_id=rows.job_id,
        attempt=whom.attempt,
        replica=whom.replica,
        incarnation=whom.incarnation,
        saves=saves,
    )
    if last == body and sent[0].state not in LOST:
        return None if handed_over else SOON_S
    if len(sent) == MAX_LOST and all(each.state in LOST and each.body == body for each in sent):
        why = f"the checkpoint from before the fault was not kept: the command to its ranks failed: {sent[0].detail}"
        yield LetGo(tuple(need.incident for need in _held(rows)), why)
        return None
    yield Enqueue(((whom.node_id, body),), whom.attempt, TTL_S)
    return SOON_S


def _saves(rows: KeepingRows) -> tuple[KeptSave, ...]:
    """What is to be kept, with who computes from it."""
    paths = sorted({need.path for need in _held(rows)})
    return tuple(KeptSave(path.rpartition("/")[2], tuple(sorted(rows.computing(path)))) for path in paths)


def _rebased(rows: KeepingRows) -> Iterator[Keeps]:
    """What a restart resumed from is what its recovery is judged from."""
    resumed = rows.resumed()
    if resumed is not None:
        number, base = resumed
        older = tuple(need.incident for need in _held(rows) if need.attempt < number and need.checkpoint != base)
        if older:
            yield Rebase(older, base)


def _with_room(rows: KeepingRows) -> Iterator[Keeps]:
    """The oldest need gives way, of those that nobody computes from already."""
    left = _held(rows)
    free = [need for need in left if not need.taken]
    while len({need.checkpoint for need in left}) > MAX_KEPT and free:
        gone = free.pop(0)
        left.remove(gone)
        yield LetGo(
            (gone.incident,),
            f"the checkpoint of step {gone.step} from before the fault was given up for those of other faults:"
            f" {MAX_KEPT} of a job are kept beyond its retention",
        )


def _held(rows: KeepingRows) -> list[Need]:
    return [need for need in rows.needs() if not need.let_go]
