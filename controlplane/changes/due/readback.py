"""Checkpoints are read back by whoever has the bytes: a node of the job, else the server's own machine.

`policy.readers` chooses. The order is a signed command as any other, and a checkpoint's `reader` is the only one that
counts for it, so what comes late or twice changes nothing. A reader that says nothing any more is called off and
another is asked. Nothing waits here, and no restart waits for any of it.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from controlplane.changes.answers import Answered
from controlplane.changes.due.kinds import AskReader, EndReading, MoveSave, ObserveSave, ReadHere, Reads
from controlplane.changes.due.rows import ReadingRows, Save
from controlplane.changes.outbox import LIVE
from controlplane.policy import readers as policy
from controlplane.protocol.commands import VerifyCheckpoint
from controlplane.protocol.readback import Verdict
from controlplane.protocol.states import CheckpointState, CommandState

READABLE = (CheckpointState.COMPLETE, CheckpointState.VERIFIED, CheckpointState.RESTORE_TESTED)
VERIFY_DELAY_S = 0.5
"""Between one rung and the next."""
AGAIN_S = 1.0
LEASE_S = 600.0
"""How long a checkpoint that somebody inspects counts as taken; then another worker begins anew."""
SAID_CHARS = 200
NOBODY = "not verified: nobody who is connected has the bytes, or can read them"


def due(rows: ReadingRows, save_id: str) -> Iterator[Reads | ReadHere]:
    """Of a checkpoint whose time has come, which the caller has claimed."""
    save = rows.saved(save_id)
    if save is None:
        return
    if save.state not in READABLE:
        yield from _dropped(rows, save)
        return
    if save.reader:
        heard_s = rows.now_s - (save.heard_s if save.heard_s is not None else rows.now_s)
        if not policy.is_silent(heard_s=heard_s):
            yield _again(rows, save, policy.SILENT_S - heard_s)
            return
        yield from _called_off(rows, save)
        yield _handed(rows, save, "", save.reason, within_s=policy.SILENT_S)
    if _is_for_nodes(save) and save.ours and not save.here:
        if save.round_s is None:
            yield ObserveSave(save.id, {"round_s": rows.now_s})
        match policy.next_reader(rows.holders(save.id)):
            case policy.Ask(node_id=node_id):
                words = f"node {rows.node_name(node_id)} was asked to read it back"
                yield AskReader(save.id, node_id, _command(save), save.attempt, words, policy.SILENT_S)
                return
            case policy.Wait():
                yield _again(rows, save, AGAIN_S)
                return
    again = policy.is_worth_another_round(rows.holders(save.id)) and not save.over
    yield ReadHere(save.id, _said(rows, save), policy.LATER_S if again else None)


def answered(rows: ReadingRows, command: Answered) -> Iterator[Reads]:
    """Its agent says how far it is, or the end; or nobody answered in time. Only the command that the checkpoint waits
    for counts, and of one that is gone or off the ladder (retention has removed it meanwhile) no word does."""
    save = rows.save_of(command.id)
    if save is None:
        return
    if save.state not in READABLE:
        yield from _dropped(rows, save)
        return
    if command.state == CommandState.ACKNOWLEDGED:
        words = f"node {command.node} is reading it back" + (f": {command.detail}" if command.data else "")
        yield _handed(rows, save, command.id, words, within_s=policy.SILENT_S)
        return
    found = rows.verdict(command.data) if command.state == CommandState.SUCCEEDED else None
    wrote = command.node_id == save.written_on
    if found is None or not policy.is_believed(ok=found.ok, absent=found.absent, wrote_it=wrote):
        yield _handed(rows, save, "", save.reason, within_s=0.0)
        return
    yield from judged(rows, save, Verdict(ok=found.ok, detail=f"{found.detail}, on node {command.node}"))


def found_here(rows: ReadingRows, wanted: ReadHere, verdict: Verdict | None) -> Iterator[Reads]:
    """By this machine. None: it is reading still, or waits its turn."""
    save = rows.saved(wanted.save)
    if save is None:
        return
    if verdict is None:
        yield _again(rows, save, AGAIN_S)
        return
    if verdict.ok is None and _is_for_nodes(save):
        said = "; ".join(filter(None, (wanted.others, f"the control plane: {verdict.detail}")))
        verdict = Verdict(ok=None, detail=f"{NOBODY}: {said}")
    yield from judged(rows, save, verdict, again_s=wanted.again_s if verdict.ok is None else None)


def judged(rows: ReadingRows, save: Save, verdict: Verdict, *, again_s: float | None = None) -> Iterator[Reads]:
    """The round ends with this verdict: up, or off the ladder; next is the rung above, if the job wants that. What
    cannot be judged from here stays where it is, with the reason, unless its ranks could not load it."""
    over: dict[str, Any] = {"round_s": None, "reader": "", "heard_s": None, "doubt": ""}
    if verdict.ok and verdict.took_s is not None:
        over["read_s"] = max(verdict.took_s, save.read_s or 0.0)
    yield ObserveSave(save.id, over)
    if save.state not in READABLE:
        yield _again(rows, save, None)
        return
    if save.doubt and verdict.ok is None:
        words = f"its ranks refused it: {save.doubt}; from here {verdict.detail}"
        verdict = msgspec.structs.replace(verdict, ok=False, detail=words)
    if verdict.ok is None:
        yield ObserveSave(save.id, {"state_reason": verdict.detail}, publish="checkpoint.unseen")
    elif not verdict.ok:
        yield MoveSave(save.id, CheckpointState.CORRUPT, verdict.detail)
    else:
        yield from _climbs(save, verdict)
    verified = save.state in (CheckpointState.COMPLETE, CheckpointState.VERIFIED)
    next_rung = bool(verdict.ok) and verified and not verdict.loaded and save.loads
    yield _again(rows, save, VERIFY_DELAY_S if next_rung else again_s)


def _climbs(save: Save, verdict: Verdict) -> Iterator[Reads]:
    if save.state == CheckpointState.COMPLETE:
        yield MoveSave(save.id, CheckpointState.VERIFIED, verdict.detail)
    elif not verdict.loaded:
        yield ObserveSave(save.id, {"state_reason": verdict.detail}, publish="checkpoint.reading")
    if verdict.loaded and save.state != CheckpointState.RESTORE_TESTED:
        yield MoveSave(save.id, CheckpointState.RESTORE_TESTED, verdict.detail)


def _is_for_nodes(save: Save) -> bool:
    """What is to be loaded next is loaded here."""
    return save.shared and not (save.state == CheckpointState.VERIFIED and save.loads)


def _command(save: Save) -> VerifyCheckpoint:
    """No fence: whether bytes are as they were committed is right to ask at any time."""
    return VerifyCheckpoint(
        job_id=save.job_id, path=save.path, step=save.step, epoch=save.epoch, limit_s=save.limit_s, user=save.owner
    )


def _handed(rows: ReadingRows, save: Save, command: str, words: str, *, within_s: float) -> ObserveSave:
    """A node reads it by that command; with an empty one nobody does."""
    heard_s = rows.now_s if command else None
    due_s = rows.now_s + within_s
    columns = {"reader": command, "heard_s": heard_s, "verify_due_s": due_s, "state_reason": words}
    return ObserveSave(save.id, columns, publish="checkpoint.reading" if words != save.reason else "")


def _again(rows: ReadingRows, save: Save, in_s: float | None) -> ObserveSave:
    """None: not of itself."""
    return ObserveSave(save.id, {"verify_due_s": None if in_s is None else rows.now_s + in_s})


def _dropped(rows: ReadingRows, save: Save) -> Iterator[Reads]:
    """It left the ladder: whoever reads it may stop."""
    yield from _called_off(rows, save)
    yield ObserveSave(save.id, {"round_s": None, "reader": "", "heard_s": None, "verify_due_s": None})


def _called_off(rows: ReadingRows, save: Save) -> Iterator[Reads]:
    """The order that it waits for is at work, or not even received, for nothing."""
    command = rows.command(save.reader) if save.reader else None
    if command is not None and command.state in LIVE:
        yield EndReading(save.reader, command.node_id)


def _said(rows: ReadingRows, save: Save) -> str:
    """What the nodes that were asked have made of it, for people."""
    words = []
    for reading in rows.readings(save.id):
        done = reading.detail if not reading.live else ""
        why = reading.verdict.detail if reading.verdict is not None else done or "it says nothing any more"
        words.append(f"node {reading.node}: {why[:SAID_CHARS]}")
    return "; ".join(words)
