"""Orders to read a checkpoint back: one at a time, told now and then, answered with a verdict.

Called by `commands` and `step`. The reading is a process of its own (`agents.verify`), which
answers with events; nothing here waits for it.
"""

from agents.core.effects import ReadCheckpoint, StopReading
from agents.core.events import CheckpointProgress, CheckpointRead
from agents.core.state import CommandStage
from agents.core.turn import Turn
from controlplane.protocol.bounds import MAX_DETAIL_CHARS, fitted
from controlplane.protocol.commands import EndVerification, VerifyCheckpoint
from controlplane.protocol.frames import CommandAnswer


def verify_checkpoint(turn: Turn, command_id: str, body: VerifyCheckpoint) -> None:
    """Answered when it was read; refused while another is."""
    if turn.state.reading:
        turn.answer(command_id, CommandStage.FAILED, "another checkpoint is being read back on this node")
        return
    turn.set(reading=command_id)
    turn.do(ReadCheckpoint(command_id, body))


def end_verification(turn: Turn, command_id: str, body: EndVerification) -> None:
    """What is not at work here needs no end."""
    if turn.state.reading != body.order:
        turn.answer(command_id, CommandStage.SUCCEEDED, "that command is not running here")
        return
    turn.do(StopReading(body.order))
    turn.answer(command_id, CommandStage.SUCCEEDED, "its reader is ended")


def on_progress(turn: Turn, event: CheckpointProgress) -> None:
    """Told as a repeated acknowledgement; while nobody hears it, it is not kept."""
    if turn.state.reading == event.command_id and turn.state.link.up:
        said, data = f"{event.read_bytes} bytes are read", f'{{"read_bytes": {event.read_bytes}}}'
        turn.report(CommandAnswer(event.command_id, "acknowledged", said, data))


def on_read(turn: Turn, event: CheckpointRead) -> None:
    """The reader has ended; without a verdict `error` says why."""
    if turn.state.reading == event.command_id:
        turn.set(reading="")
    stage = CommandStage.FAILED if event.error else CommandStage.SUCCEEDED
    detail = event.error or "it was read back"
    turn.answer(event.command_id, stage, fitted(detail, MAX_DETAIL_CHARS), event.verdict)
