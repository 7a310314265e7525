"""What looks at ranks found, kept as rows, and what the Flight Recorders among them say.

Looks arrive one by one from agents (`facts`). Those ordered by a decision belong to its
incident; there the dumps of one replica are read together again with each that arrives,
so that the finding is never older than what is known.
"""

from datetime import datetime

import msgspec

from controlplane.changes.outbox import LIVE
from controlplane.dispatch.models import Command
from controlplane.jobs.models import Rank, Replica
from controlplane.policy.flight import FlightFinding, MatchState, analyse
from controlplane.policy.stack_groups import NO_STACK, place_of
from controlplane.protocol.diagnostics import FLIGHT_RECORDER, NOT_GOT, STACKS
from controlplane.protocol.errors import IdentityMismatch, MalformedFrame
from controlplane.protocol.flight import FlightDump, decode_dump
from controlplane.protocol.frames import StacksCollected
from controlplane.protocol.states import LIVE_INCIDENT, CommandState
from controlplane.recovery.incident_evidence import stack_groups
from controlplane.recovery.models import Decision, Incident, RankLook
from controlplane.runtime import events
from controlplane.runtime.clock import ago, iso
from controlplane.runtime.ids import new_id
from controlplane.runtime.models import Event

TEXT_MAX = 60_000
MAX_LOOKS_PER_JOB = 256
MAX_PLACES_PER_JOB = 20_000
FORGOTTEN_AT_ONCE = 1_000
PLACE_MAX = 200
TEXTS_OF_A_PLACE = 2
SCHEDULED = "look"
"""The rule whose decisions order looks on schedule (policy.rules.look)."""
UNHEARD = "incident.stacks"
GIVEN_UP = (CommandState.FAILED, CommandState.EXPIRED)
MISMATCHES = (
    MatchState.COLLECTIVE_TYPE_MISMATCH,
    MatchState.SIZE_OR_SYNTAX_MISMATCH,
    MatchState.COLLECTIVE_DTYPE_MISMATCH,
)


def keep(rank: Rank, body: StacksCollected, *, at: datetime) -> None:
    """Store one look; a Flight Recorder of an incident may complete a finding. Raises IdentityMismatch
    where it was ordered from another node, or of another job: that one's incident is none of this rank's."""
    replica, job_id = rank.replica, body.ref.job_id
    order = Command.objects.filter(pk=body.command_id).values_list("node_id", "job_id").first()
    if order not in (None, (rank.node_id, job_id)):
        raise IdentityMismatch(f"diagnostic {body.command_id} was requested from another node, or of another job")
    decision = _decision_of(body.command_id)
    scheduled = decision if decision is not None and decision.rule == SCHEDULED else None
    incident = _incident_of(job_id, decision)
    look, method = body.look[:24], body.method[:80]
    place = "" if look != STACKS else NO_STACK if method == NOT_GOT else place_of(body.text)[0][:PLACE_MAX]
    # One of the many that were asked only for where they stand.
    beside = look == STACKS and decision is not None and scheduled is None and _asked(body.command_id) == STACKS
    RankLook.objects.create(
        id=new_id("look"),
        job_id=job_id,
        incident=incident,
        command_id=body.command_id[:32],
        replica=replica.index,
        incarnation=replica.incarnation,
        rank=rank.rank,
        look=look,
        method=method,
        place=place,
        text="" if beside and _known(incident, place) else body.text[:TEXT_MAX],
        at=at,
    )
    _forget_old(job_id, of_incidents=incident is not None)
    if scheduled is not None:
        if look == FLIGHT_RECORDER and not _given_up(body.command_id):
            _compare(scheduled, replica)
        return
    if beside:
        return
    how = f"could not be got: {body.text[:200]}" if method == NOT_GOT else f"got by {method}"
    events.publish(
        "rank.looked",
        f"{look.replace('_', ' ').capitalize()} of rank {rank.rank} of replica {replica.index}: {how}.",
        job_id=job_id,
        node_id=rank.node_id,
        data={"incident_id": incident.id if incident else None, "command_id": body.command_id[:32]},
    )
    if incident is not None and look == FLIGHT_RECORDER:
        _find(incident, replica, at)


def _asked(command_id: str) -> str:
    """What the order said to look at."""
    return str(Command.objects.values_list("body", flat=True).get(pk=command_id).get("look", ""))


def _known(incident: Incident | None, place: str) -> bool:
    """The incident has texts enough of ranks that stand there."""
    rows = RankLook.objects.filter(incident=incident, place=place).exclude(text="")
    return incident is not None and len(rows.values_list("id", flat=True)[:TEXTS_OF_A_PLACE]) == TEXTS_OF_A_PLACE


def _given_up(command_id: str) -> bool:
    """Its answer came after its end was told: what was read without it stands."""
    return Command.objects.filter(pk=command_id, state__in=GIVEN_UP).exists()


def _decision_of(command_id: str) -> Decision | None:
    """What ordered the look; None: a person did."""
    decision_id = Command.objects.filter(pk=command_id).values_list("decision_id", flat=True).first()
    return Decision.objects.filter(pk=decision_id).select_related("incident").first() if decision_id else None


def _incident_of(job_id: str, decision: Decision | None) -> Incident | None:
    """The incident whose decision ordered the look; a person's look joins what is open."""
    if decision is not None:
        return decision.incident
    return Incident.objects.filter(job_id=job_id, state__in=LIVE_INCIDENT).order_by("-opened_at").first()


def _forget_old(job_id: str, *, of_incidents: bool) -> None:
    """The newest MAX_LOOKS_PER_JOB with a text of incidents stay, and as many of the others: what is
    looked at on schedule never pushes out an incident's evidence."""
    mine = RankLook.objects.filter(job_id=job_id, incident__isnull=not of_incidents).exclude(text="")
    old = mine.order_by("-at", "-id").values_list("id", flat=True)
    RankLook.objects.filter(id__in=list(old[MAX_LOOKS_PER_JOB : MAX_LOOKS_PER_JOB * 2])).delete()
    # Of the others of a whole job only the place is kept.
    places = RankLook.objects.filter(job_id=job_id, text="").order_by("-at", "-id").values_list("id", flat=True)
    RankLook.objects.filter(id__in=list(places[MAX_PLACES_PER_JOB : MAX_PLACES_PER_JOB + FORGOTTEN_AT_ONCE])).delete()


def forget_scheduled(older_than_s: float) -> None:
    """Decisions that did nothing but order a look on schedule; the job counts them."""
    Decision.objects.filter(rule=SCHEDULED, at__lt=ago(older_than_s)).delete()


def gave_up(command: Command) -> None:
    """An order to look failed or expired: the look it belongs to may be whole without it."""
    decision, body = _decision_of(command.id), command.body
    if decision is None:
        return
    if decision.rule != SCHEDULED:
        _count_heard(decision)
        return
    rows = Replica.objects.filter(attempt__job_id=command.job_id, attempt__number=command.attempt)
    replica = rows.filter(index=body["replica"], incarnation=body["incarnation"]).first()
    if replica is not None:
        _compare(decision, replica)


def _count_heard(decision: Decision) -> None:
    """With the last of its orders: of how many ranks of the incident nothing came, and none will."""
    left = Command.objects.filter(decision_id=decision.id, kind="collect_stacks", state__in=LIVE)
    if decision.incident is None or left.exists():
        return
    if Event.objects.filter(kind=UNHEARD, job_id=decision.job_id, data__decision_id=decision.id).exists():
        return
    counted = stack_groups(decision.incident)
    if counted is not None:
        data = {"incident_id": decision.incident_id, "decision_id": decision.id, "ranks": counted["ranks"]}
        events.publish(UNHEARD, f"Stacks: {counted['note']}", job_id=decision.job_id or "", data=data)


def _compare(scheduled: Decision, replica: Replica) -> None:
    """The recorders of a look on schedule, read together once none of its orders is awaited
    any more. A rank that has not come yet to what others wait in is everyday life in a job
    that moves; sizes, types and operations that differ are not."""
    orders = Command.objects.filter(decision_id=scheduled.id, kind="collect_stacks")
    rows = RankLook.objects.filter(command_id__in=list(orders.values_list("id", flat=True)), look=FLIGHT_RECORDER)
    awaited = orders.exclude(state__in=GIVEN_UP)
    if awaited.exclude(id__in=list(rows.values_list("command_id", flat=True))).exists():
        return
    ranks = tuple(sorted(replica.ranks.values_list("rank", flat=True)))
    newest = {row.rank: row for row in rows.order_by("at", "id")}
    dumps = tuple(filter(None, map(_dump, newest.values())))
    finding = analyse(dumps, ranks)
    odd = finding.state in MISMATCHES
    said = finding.sentence.rstrip(".") if odd else "nothing that does not fit"
    if len(dumps) < len(ranks):
        among = f"{len(dumps)} of its {len(ranks)} ranks gave one"
        said = f"{said} ({among})" if odd else f"not compared in full: {among}"
    events.publish(
        "job.looked",
        f"Scheduled diagnostic of replica {replica.index}: {len(dumps)} of {len(orders)} recorders read; {said}.",
        job_id=scheduled.job_id,
        data={"decision_id": scheduled.id, "state": str(finding.state), "odd": odd},
    )


def _newest(incident: Incident, replica: Replica) -> dict[int, RankLook]:
    rows = RankLook.objects.filter(
        incident=incident, replica=replica.index, incarnation=replica.incarnation, look=FLIGHT_RECORDER
    )
    return {row.rank: row for row in rows.order_by("at", "id")}


def dumps_of(incident: Incident, replica: Replica) -> tuple[FlightDump, ...]:
    """The newest readable dump of each rank of that life of the replica."""
    return tuple(filter(None, map(_dump, _newest(incident, replica).values())))


def _find(incident: Incident, replica: Replica, at: datetime) -> None:
    newest = _newest(incident, replica)
    ranks = tuple(sorted(replica.ranks.values_list("rank", flat=True)))
    finding = analyse(tuple(filter(None, map(_dump, newest.values()))), ranks)
    entry = {
        "replica": replica.index,
        "incarnation": replica.incarnation,
        "at": iso(at),
        **msgspec.to_builtins(finding),
    }
    others = [f for f in incident.findings if (f["replica"], f["incarnation"]) != _tag(replica)]
    Incident.objects.filter(pk=incident.pk).update(findings=[*others, entry])
    if set(newest) == set(ranks):
        _tell(incident, replica, finding)


def _tell(incident: Incident, replica: Replica, finding: FlightFinding) -> None:
    """Once, when every rank has answered or said why it cannot."""
    events.publish(
        "incident.finding",
        f"Flight Recorders of replica {replica.index}: {finding.sentence}",
        job_id=incident.job_id or "",
        data={"incident_id": incident.id, "state": str(finding.state), "culprits": list(finding.culprits)},
    )


def _dump(row: RankLook) -> FlightDump | None:
    """None: it could not be got, or makes no sense; either way it is missing."""
    if row.method == NOT_GOT:
        return None
    try:
        dump = decode_dump(row.text)
    except MalformedFrame:
        return None
    # The row says whose it is; the text is untrusted.
    return msgspec.structs.replace(dump, rank=row.rank)


def _tag(replica: Replica) -> tuple[int, int]:
    return (replica.index, replica.incarnation)
