"""What diagnostics of ranks found, and what the Flight Recorders among them say.

They arrive one by one from agents. Those that a decision commanded belong to its incident; there the dumps of
one replica are read together again with each that arrives, so that the finding is never older than what is
known. What is taken on schedule is read together once, when none of its commands is awaited any more.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from controlplane.changes.kinds import Change, IncidentKey, KeepDiagnostic, Observe, Publish
from controlplane.changes.rows import Command, Diagnostic, Rows
from controlplane.changes.speaker import Speaker, moment, rank_of
from controlplane.policy.flight import FlightFinding, MatchState, analyse
from controlplane.policy.stack_groups import NO_STACK, place_of
from controlplane.protocol.commands import CollectStacks
from controlplane.protocol.diagnostics import FLIGHT_RECORDER, NOT_GOT, STACKS
from controlplane.protocol.errors import IdentityMismatch, MalformedFrame
from controlplane.protocol.flight import FlightDump, decode_dump
from controlplane.protocol.frames import StacksCollected
from controlplane.protocol.states import CommandState

TEXT_CHARS = 60_000
PLACE_CHARS = 200
TEXTS_OF_A_PLACE = 2
SCHEDULED = "look"
"""The rule whose decisions command them on schedule (policy.rules.look)."""
GIVEN_UP = (CommandState.FAILED, CommandState.EXPIRED)
MISMATCHES = (
    MatchState.COLLECTIVE_TYPE_MISMATCH,
    MatchState.SIZE_OR_SYNTAX_MISMATCH,
    MatchState.COLLECTIVE_DTYPE_MISMATCH,
)


def _collected(rows: Rows, body: StacksCollected, speaker: Speaker) -> Iterator[Change]:
    """Kept; a Flight Recorder of an incident may complete a finding. Raises IdentityMismatch where it was requested
    from another node, or of another job: that one's incident is none of this rank's."""
    rank, command = rank_of(rows, body.ref, speaker), rows.command(body.command_id)
    if command is not None and (command.node_id, command.job_id) != (rank.node_id, rows.job_id):
        raise IdentityMismatch(f"diagnostic {body.command_id} was requested from another node, or of another job")
    decided, scheduled = command is not None and bool(command.rule), command is not None and command.rule == SCHEDULED
    incident = command.incident if command is not None and decided else rows.open_incident()
    what, method = body.look[:24], body.method[:80]
    place = "" if what != STACKS else NO_STACK if method == NOT_GOT else place_of(body.text)[0][:PLACE_CHARS]
    # One of the many that were asked only for where they stand.
    beside = what == STACKS and decided and not scheduled and command is not None and command.what == STACKS
    known = beside and incident != "" and rows.texts_of(incident, place) >= TEXTS_OF_A_PLACE
    found = Diagnostic(
        *(body.command_id[:32], rank.replica, rank.incarnation, rank.rank, what, method, place),
        text="" if known else body.text[:TEXT_CHARS],
        at_s=speaker.at_s,
        incident=incident,
    )
    yield KeepDiagnostic(found)
    if scheduled and command is not None:
        if what == FLIGHT_RECORDER and command.state not in GIVEN_UP:
            yield from _compared(rows, command, (rank.replica, rank.incarnation), found)
    elif not beside:
        yield _said(found, rank.node_id)
        if incident and what == FLIGHT_RECORDER:
            yield from _found(rows, rank.attempt, found)


def _said(found: Diagnostic, node_id: str) -> Publish:
    how = f"could not be got: {found.text[:200]}" if found.method == NOT_GOT else f"got by {found.method}"
    what = found.what.replace("_", " ").capitalize()
    sentence = f"{what} of rank {found.rank} of replica {found.replica}: {how}."
    data = {"incident_id": found.incident or None, "command_id": found.command_id}
    return Publish("rank.looked", sentence, beside=node_id, data=data)


def gave_up(rows: Rows, command_id: str, body: CollectStacks) -> Iterator[Change]:
    """A command failed or expired: what it belongs to may be whole without it."""
    command = rows.command(command_id)
    if command is not None and command.rule == SCHEDULED:
        yield from _compared(rows, command, (body.replica, body.incarnation), None)


def _compared(rows: Rows, command: Command, which: tuple[int, int], new: Diagnostic | None) -> Iterator[Change]:
    """A rank that has not come yet to what others wait in is everyday business in a job that moves; sizes, types and
    operations that differ are not."""
    commands = rows.commands_of(command.decision)
    kept = [*rows.recorders_of(command.decision), *([new] if new is not None else [])]
    answered, ranks = {found.command_id for found in kept}, _ranks(rows, command.attempt, which)
    if not ranks or any(state not in GIVEN_UP and each not in answered for each, state in commands):
        return
    dumps = dumps_of(kept)
    finding = analyse(dumps, ranks)
    odd = finding.state in MISMATCHES
    said = finding.sentence.rstrip(".") if odd else "nothing that does not fit"
    if len(dumps) < len(ranks):
        among = f"{len(dumps)} of its {len(ranks)} ranks gave one"
        said = f"{said} ({among})" if odd else f"not compared in full: {among}"
    sentence = f"Scheduled diagnostic of replica {which[0]}: {len(dumps)} of {len(commands)} recorders read; {said}."
    data = {"decision_id": command.decision, "state": str(finding.state), "odd": odd}
    yield Publish("job.looked", sentence, beside="", data=data)


def _found(rows: Rows, attempt: int, new: Diagnostic) -> Iterator[Change]:
    """Told once, when every rank has answered or said why it cannot."""
    which = (new.replica, new.incarnation)
    kept, ranks = [*rows.recorders(new.incident, *which), new], _ranks(rows, attempt, which)
    finding = analyse(dumps_of(kept), ranks)
    said = {"replica": which[0], "incarnation": which[1], "at": moment(new.at_s), **msgspec.to_builtins(finding)}
    others = [each for each in rows.verdicts(new.incident) if (each["replica"], each["incarnation"]) != which]
    yield Observe(IncidentKey(new.incident), {"findings": [*others, said]})
    if {found.rank for found in kept} == set(ranks):
        yield _verdict(new, finding)


def _verdict(found: Diagnostic, finding: FlightFinding) -> Publish:
    sentence = f"Flight Recorders of replica {found.replica}: {finding.sentence}"
    data = {"incident_id": found.incident, "state": str(finding.state), "culprits": list(finding.culprits)}
    return Publish("incident.finding", sentence, beside="", data=data)


def _ranks(rows: Rows, attempt: int, which: tuple[int, int]) -> tuple[int, ...]:
    return tuple(sorted(rank.rank for rank in rows.ranks(attempt, of=which)))


def dumps_of(kept: Iterable[Diagnostic]) -> tuple[FlightDump, ...]:
    """The readable ones among the newest of each rank; `kept` of one incarnation, oldest first."""
    newest = {found.rank: found for found in kept}
    return tuple(filter(None, map(_dump, newest.values())))


def _dump(found: Diagnostic) -> FlightDump | None:
    """None: it could not be got, or makes no sense; either way it is missing."""
    if found.method == NOT_GOT:
        return None
    try:
        dump = decode_dump(found.text)
    except MalformedFrame:
        return None
    # The row says whose it is; the text is untrusted.
    return msgspec.structs.replace(dump, rank=found.rank)


OF_DIAGNOSTICS: dict[type, Callable[[Rows, Any, Speaker], Iterator[Change]]] = {StacksCollected: _collected}
