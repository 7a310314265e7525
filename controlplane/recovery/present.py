"""Incidents, decisions and signals as the API and the events' patches show them."""

from collections.abc import Iterable
from typing import Any

from controlplane.dispatch import selectors as dispatch
from controlplane.dispatch.present import command_summary
from controlplane.policy import capabilities, signals
from controlplane.policy.capabilities import IncidentFacts
from controlplane.protocol.diagnostics import FLIGHT_RECORDER, NOT_GOT, STACKS
from controlplane.protocol.errors import MalformedFrame
from controlplane.protocol.flight import decode_dump
from controlplane.recovery.models import Decision, Incident, RankLook, Signal
from controlplane.recovery.phases import recovery_s
from controlplane.runtime.clock import iso

Json = dict[str, Any]


def incident_summary(row: Incident) -> Json:
    """One line of the incident list; the detail adds what happened (`selectors.incident_detail`)."""
    return {
        "id": row.id,
        "job_id": row.job_id,
        "job_name": row.job.name if row.job else None,
        "node_id": row.node_id,
        "node_name": row.node.name if row.node else None,
        "title": row.title,
        "state": row.state,
        "opened_at": iso(row.opened_at),
        "resolved_at": iso(row.resolved_at),
        "recovered_at": iso(row.recovered_at),
        "recovery_s": recovery_s(row),
        "outcome": row.outcome,
        "resolution": row.resolution,
        "needs_hardware": row.needs_hardware,
        "acknowledged_at": iso(row.acknowledged_at),
        "acknowledged_by": row.acknowledged_by,
        "acknowledgement": row.acknowledgement,
        "phases": row.phases,
        "stall_s": row.stall_s,
        "stall_others_s": row.stall_others_s,
        "certificate": row.certificate,
        "shared": row.shared,
        "part_of": row.part_of_id,
        "capabilities": incident_acts(row),
    }


def incident_acts(row: Incident) -> Json:
    """What a person may do to it now, and why not."""
    by = (row.acknowledged_by or "somebody") if row.acknowledged_at is not None else ""
    facts = IncidentFacts(state=row.state, outcome=row.outcome or "", by=by, note=row.acknowledgement)
    return capabilities.incident(facts)


def pending_certificate(step: int) -> Json:
    """What stands in an incident until its certificate is first looked at."""
    return {
        "state": "pending",
        "judged": 0,
        "of": 0,
        "step": step,
        "checks": [],
        "repeated": None,
        "generated_at": None,
    }


def decision_summaries(decisions: Iterable[Decision]) -> list[Json]:
    """`decision_summary` of each; the commands are read for all of them at once."""
    rows = list(decisions)
    commands = dispatch.of_decisions([row.id for row in rows])
    return [
        decision_summary(row, commands=False) | {"commands": [command_summary(each) for each in commands[row.id]]}
        for row in rows
    ]


def decision_summary(row: Decision, *, commands: bool = True) -> Json:
    """One decision with the orders it caused (left out where `commands` is False)."""
    orders = [command_summary(c) for c in dispatch.of_decision(row.id)] if commands else []
    return {
        "id": row.id,
        "job_id": row.job_id,
        "job_name": row.job.name if row.job else None,
        "incident_id": row.incident_id,
        "at": iso(row.at),
        "rule": row.rule,
        "choice": row.choice,
        "reason_code": row.reason_code,
        "sentence": row.sentence,
        "evidence": row.evidence,
        "alternatives": row.alternatives,
        "actions": row.actions,
        "cost_gpu_s": row.cost_gpu_s,
        "routine": row.routine,
        "mode": row.mode,
        "applied": row.applied,
        "epoch_before": row.epoch_before,
        "epoch_after": row.epoch_after,
        "policy_version": row.policy_version,
        "policy_documents": row.policy_documents,
        "decide_s": row.decide_s,
        "verdict": row.verdict,
        "commands": orders,
    }


def look_view(row: RankLook) -> Json:
    """What one diagnostic of one rank found; a Flight Recorder dump as lines for people."""
    named = row.method if row.look == STACKS else f"{row.look.replace('_', ' ')}, {row.method}"
    return {
        "id": row.id,
        "rank": f"{row.replica}.{row.incarnation}/{row.rank}",
        "diagnostic": row.look,
        "method": named,
        "text": flight_lines(row.text) if row.look == FLIGHT_RECORDER and row.method != NOT_GOT else row.text,
        "at": iso(row.at),
        "command_id": row.command_id,
    }


def flight_lines(text: str) -> str:
    """A dump as one line an operation; a text that is none comes back as it is."""
    try:
        dump = decode_dump(text)
    except MalformedFrame:
        return text
    groups = [f"group {g.name} {g.desc} ranks {', '.join(map(str, g.ranks))}" for g in dump.groups]
    entries = [
        f"group {e.group} {'p2p ' if e.p2p else ''}{e.number} {e.operation} "
        f"{list(map(list, e.input_sizes))} {'/'.join(e.input_dtypes)} {e.state}"
        for e in dump.entries
    ]
    return "\n".join([*groups, *entries] or ["no collective was recorded"])


def signal_summary(row: Signal) -> Json:
    """One finding of a detector."""
    value, threshold = signals.shown(row.kind, row.value, row.threshold, row.evidence)
    return {
        "id": row.id,
        "kind": row.kind,
        "job_id": row.job_id,
        "node_id": row.node_id,
        "node_name": row.node.name if row.node else None,
        "replica": row.replica,
        "incarnation": row.incarnation,
        "rank": row.rank,
        "device_index": row.device_index,
        "value": value,
        "threshold": threshold,
        "evidence": row.evidence,
        "seen_at": iso(row.seen_at),
        "settled_at": iso(row.settled_at),
    }
