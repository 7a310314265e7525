"""Signals, incidents, decisions, commands and certificates."""

from typing import Any

from controlplane.protocol.rest.base import Answer, Event, Json


class Alternative(Answer, frozen=True, kw_only=True):
    """What else could have been done, and why it was not."""

    action: str
    cost_gpu_s: float | None
    why_not: str


class Command(Answer, frozen=True, kw_only=True):
    """One order to an agent."""

    id: str
    node_id: str
    node_name: str
    kind: str
    state: str
    epoch: int
    created_at: str
    delivered_at: str | None
    acknowledged_at: str | None
    finished_at: str | None
    deliveries: int
    detail: str


class Decision(Answer, frozen=True, kw_only=True):
    """One decision with its evidence. `routine`: part of an orderly protocol."""

    id: str
    job_id: str
    incident_id: str | None
    at: str
    rule: str
    choice: str
    reason_code: str
    sentence: str
    evidence: Json
    alternatives: list[Alternative]
    actions: list[Json]
    cost_gpu_s: float | None
    routine: bool
    mode: str
    applied: bool
    epoch_before: int
    epoch_after: int
    policy_version: str
    decide_s: float
    commands: list[Command] = []


class Check(Answer, frozen=True, kw_only=True):
    """One check of a recovery certificate; `ok` None: could not be judged."""

    name: str
    ok: bool | None
    detail: str
    value: Any = None
    limit: Any = None


class Certificate(Answer, frozen=True, kw_only=True):
    """Whether a recovery kept what it promises; `state` pending, green or red."""

    state: str
    checks: list[Check]
    step: int | None = None
    generated_at: str | None = None


class Phase(Answer, frozen=True, kw_only=True):
    """One border in a recovery, `since_fault_s` after the fault."""

    name: str
    at: str
    since_fault_s: float | None


class Incident(Answer, frozen=True, kw_only=True):
    """Something to investigate."""

    id: str
    job_id: str | None
    job_name: str | None
    node_id: str | None
    title: str
    state: str
    opened_at: str
    resolved_at: str | None
    outcome: str
    phases: list[Phase]
    certificate: Certificate | None


class Signal(Answer, frozen=True, kw_only=True):
    """A detector's finding."""

    id: str
    kind: str
    job_id: str | None
    node_id: str | None
    node_name: str | None
    replica: int | None
    incarnation: int | None
    rank: int | None
    device_index: int | None
    value: float | None
    threshold: float | None
    evidence: Json
    seen_at: str
    settled_at: str | None


class RankLook(Answer, frozen=True, kw_only=True):
    """What one look at one rank found (untrusted text). `rank`: replica.incarnation/rank;
    `method`: how it was got."""

    id: str
    rank: str
    look: str
    method: str
    text: str
    at: str
    command_id: str


class IncidentDetail(Incident, frozen=True, kw_only=True):
    """An incident with all that belongs to it. `findings`: what the Flight Recorders of
    each hung replica say, with state, culprits, group, operation and sizes."""

    signals: list[Signal]
    decisions: list[Decision]
    stacks: list[RankLook]
    findings: list[Json] = []
    events: list[Event]
    as_of_seq: int
