"""F25: a node that lies harms itself alone. A generated matrix of everything that an agent may send.

Each kind of event, each answer to an order, and each field of a hello, a frame, a proof and a new key is sent by node
B's own valid session and names what is node A's. All rows of all tables but those about B are the same before and
after. The lie is refused or counted, its dead letter is refused again when it is replayed, and what B says of itself
in the same batch is applied. `MAY` lists what members may say of their job. A new kind or field without a row fails.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from typing import Any, get_args

import msgspec
import pytest
from django.apps import apps
from django.db import connection, transaction
from msgspec import inspect
from msgspec.structs import replace

from agents.link.keys import NodeKey, rotation, unsigned_proof
from controlplane.access.models import AuditEntry
from controlplane.dispatch import services as dispatch
from controlplane.dispatch.models import Command
from controlplane.fleet import enrolment, identity, selectors
from controlplane.fleet.models import Node
from controlplane.jobs.models import Attempt, Job, Rank
from controlplane.jobs.services import submit_job
from controlplane.live import limits, proof
from controlplane.protocol import bounds, codec, commands, frames, handshake, launch, rank, samples, spec, states
from controlplane.protocol.errors import IdentityMismatch
from controlplane.recovery import ingest
from controlplane.recovery.models import DeadLetter, Decision, Incident, Recomputation, Signal, ViewRow
from controlplane.recovery.reconcile import reconcile_job
from controlplane.recovery.requests import evict
from controlplane.runtime.models import FrameCounter
from controlplane.sentinel import fleetmap, live_state
from tests.integration.backend import builders
from tests.integration.backend.builders import Fleet, hello, live_ranks, ref_of
from tests.integration.backend.conftest import job_spec

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(240)]

TABLES = [m for m in apps.get_models() if m.__module__.startswith("controlplane.") and m.__name__ != "EventStream"]
NOT_COMPARED = {"Job": {"due_at"}, "Event": {"patch", "data"}}
"""When a job is looked at next is a hint, by which nothing is decided; an event is immutable, a new one is seen."""
NAMING = [
    inspect.type_info(getattr(bounds, name))
    for name in ("Id", "IdOrNone", "NodeName", "Path", "PublicKey", "Holders", "Index", "IndexOrAll", "DeviceIndex")
]
"""Types of fields that say which node, job, rank, device, order or file is meant."""
KINDS: dict[str, tuple[Any, Any]] = {
    f"{event.tag} {report.tag}" if report else event.tag: (event, report)
    for event in inspect.type_info(frames.EventBody).types  # type: ignore[attr-defined]
    for report in next((part.type.types for part in event.fields if part.name == "report"), (None,))
}
"""Every kind of event, and of a rank's reports, as the protocol's union has them."""
IN_JOB, ALL_IN_JOB = ("member", "neighbour"), ("member", "neighbour", "evicted")
WHO = ("stranger", *ALL_IN_JOB)
"""What B is to A: without a rank in its job; in another replica of it; in A's own replica; in one that is out."""
STATE = "Checkpoint.state Checkpoint.state_reason"
MAY = {
    "rank_exited": ("what it began from, and cannot load, is read back", ALL_IN_JOB, "Checkpoint.doubt"
                    " Checkpoint.verify_due_at Event:checkpoint.doubted+"),
    "rank_said step": ("a step is committed by all, and each tells of it", IN_JOB, "Job.committed_step JobPace.pace"
        " JobPace.spent JobPace.trained_s StepRecord+ LedgerRun+ ViewRow.resumed_at own:Replica.committed_step"),
    "rank_said flush": ("its own answer to the view", IN_JOB, "own:FlushRow+"),
    "rank_said caught_up": ("for its replica", IN_JOB, "own:Replica.caught_up Event:replica.caught_up+"),
    "rank_said view_installed": ("the first member of a view says that it is in", IN_JOB, "ViewRow.installed_at"),
    "rank_said checkpoint": ("saves are the job's, below its own directory", IN_JOB,
                             f"Checkpoint+ {STATE} Event:checkpoint.writing+ Event:checkpoint.corrupt+"),
    "rank_said pruned": ("one rank removes for all of them", IN_JOB, f"{STATE} Checkpoint.verify_due_at"),
    "rank_said timings": ("ranks are compared once all have told a window", IN_JOB, "RankSpeed.best_s RankSpeed.fresh"
                          " RankSpeed.late_s RankSpeed.relative RankSpeed.scored_at RankSpeed.scored_epoch"),
    "rank_said done": ("all are done when one is", IN_JOB, "Job.trained Recomputation.due_at Event:job.trained+"),
    "rank_said recomputed": ("each rank of the replica that has the order", ("neighbour",), "own:RecomputedRank+"),
    "stacks_collected": ("its own rank, as it was ordered to look", ALL_IN_JOB, "Incident.findings own:RankLook+"),
    "log_marked": ("lines of its rank's log are counted by job", ALL_IN_JOB, "MarkedLines+"),
    "host_exited": ("the job had ranks there, and is told", ALL_IN_JOB, "Event:host.exited+"),
}  # fmt: skip
"""Kind -> why it may say something of more than itself, who may, and all that it changes."""
HARMLESS = {
    "rank_said caught_up": "from whom it had its state: kept with its own replica alone",
    "rank_said checkpoint": "who names a save of its own job is in it",
    "rank_said recomputed": "the neighbour was asked too: the order is its replica's",
}
"""Kind -> why, of who is in the job, naming what is A's is neither refused nor counted."""
TRUE = frames.NodeChecked((frames.NodeCheck("driver", "it is old"),))
SOME = ingest.MAX_ASIDE_A_TURN - 1
AHEAD = {"Job.ahead", "Event:job.set_back+"}
"""Any node may tell of a later attempt: the next one's numbers are above it, as after a restored backup (F29)."""
FIELDS: dict[Any, tuple[set[str], set[str]]] = {
    frames.AgentHello: ({"node_name", "boot_id", "journal_id", "devices", "ranks", "jobs"},
                        {"protocol_min", "protocol_max", "agent_version", "first_unacked_seq", "segment"}),
    frames.AgentFrame: ({"devices", "ranks", "events"}, {"seq", "uptime_s", "cpu_ratio", "rss_bytes", "age_s"}),
    handshake.Proof: ({"node_id", "boot_id", "journal_id", "machine_id"},
                      {"counter", "protocol_min", "protocol_max", "server_host", "signature", "tls_certificate"}),
    handshake.NewKey: ({"public_key"}, {"by_old", "by_new"}),
}  # fmt: skip
"""Of every message of an agent: fields with which a lie is told below, and those that name nobody."""


@dataclass
class Scene:
    """`senders`: B's rank, by what B is; `mine`: what each may truthfully name; `names`: what is A's."""

    job: Job
    a: Rank
    senders: dict[str, Rank]
    mine: dict[str, dict[str, Any]]
    names: dict[str, Any]
    known: dict[str, dict[Any, dict[str, Any]]] = field(default_factory=dict)


def trains(fleet: Fleet, name: str, *, nodes: int, spares: int) -> Job:
    """A job of two-rank replicas over nodes of one device each, after its first step."""
    room = spec.Resources(nodes=nodes, gpus_per_node=1, min_replicas=1, spares=spec.Spares(gpus=spares))
    job = submit_job(replace(job_spec(resources=room), metadata=spec.Metadata(name=name)), owner="ada", actor="ada")
    for tell_all in (builders.join_all, builders.flush_all, builders.install_all):
        reconcile_job(job.id)
        tell_all(fleet, job)
    builders.commit_step(fleet, job, 0)
    return Job.objects.get(pk=job.id)


def truth(row: Rank, incident: Incident) -> dict[str, Any]:
    """What a node may name without a lie, by the names of the protocol's fields; it was ordered to look."""
    ref, home, why = ref_of(row), row.replica.attempt.checkpoint_dir, Decision.objects.get(incident=incident)
    look = commands.CollectStacks(ref.job_id, ref.replica, ref.incarnation, look="flight_recorder")
    decision_id = why.id if why.job_id == ref.job_id else ""
    order = dispatch.enqueue(look, node_id=row.node_id, job_id=ref.job_id, attempt=1, decision_id=decision_id)
    return msgspec.to_builtins(ref) | {
        "ref": ref, "command_id": order.id, "order_id": "rec_none", "path": f"{home}/step_77", "index": 0,
        "device_index": 0, "uuid": row.device.uuid, "holders": ((row.node_id,),), "donor": ref.replica,
        "donor_count": 1, "epoch": 3, "step": 50, "oldest_kept": (9, 9), "look": "flight_recorder",
        "expected": False, "exit_code": 74, "signal": None, "count": 20,
    }  # fmt: skip


@pytest.fixture
def scene() -> Scene:
    """A's job is between a view and its install, one of its three replicas is evicted; another job trains."""
    fleet = Fleet()
    for name in (f"n{number:02d}" for number in range(1, 11)):
        fleet.nodes[name] = Node.objects.create(id=f"node_{name}", name=name, public_key=NodeKey.fresh().public_key)
        ingest.open_session(f"node_{name}", f"web.{name}", hello(name, devices=1))
    job = trains(fleet, "mine", nodes=6, spares=2)
    ranks = {(row.replica.index, row.rank): row for row in live_ranks(job)}
    a, home = ranks[0, 0], job.attempts.get().checkpoint_dir
    job.attempts.update(resume_path=f"{home}/step_3")
    for step, state in ((3, "complete"), (9, "writing")):
        said = rank.CheckpointReport(step, f"{home}/step_{step}", state, "scheduled", 2, digest="d")
        fleet.tell(a.node.name, frames.RankSaid(ref_of(a), said))
    for row in (row for row in ranks.values() if row.replica.index < 2):
        fleet.tell(row.node.name, body_of("rank_said timings", {"ref": ref_of(row), "epoch": 2, "count": 20}))
    builders.kill_rank(fleet, ranks[2, 0])
    reconcile_job(job.id)
    evict(job, 0, reason="it is slow", actor="user:ada")
    other = trains(fleet, "other", nodes=2, spares=0)
    ingest.open_session(a.node_id, f"web.{a.node.name}", hello(a.node.name))  # It has a device more now.
    incident = Incident.objects.get(job=job)
    asked = {"attempt": 1, "replica": 0, "incarnation": 1, "ranks": 2, "from_step": 0, "until_step": 1}
    Recomputation.objects.create(id="rec_a", incident=incident, job=job, path=f"{home}/step_3", **asked)
    senders = dict(zip(WHO, (live_ranks(other)[1], ranks[1, 1], ranks[0, 1], ranks[2, 1]), strict=True))
    mine = {who: truth(row, incident) for who, row in senders.items()}
    more = {"path": f"{home}/step_9", "order_id": "rec_a", "device_index": 1, "index": 1, "uuid": "GPU-n01-1"}
    return Scene(job, a, senders, mine, truth(a, incident) | more)


def body_of(kind: str, names: dict[str, Any]) -> Any:
    """A well-formed event of the kind that names those things."""
    event, report = KINDS[kind]
    return made(event, names if report is None else names | {"report": made(report, names)})


def made(info: Any, names: dict[str, Any]) -> Any:
    """A message of the type. Of what names something it is said whose; the rest is anything that is allowed."""
    values = {}
    for part in info.fields:
        struct = isinstance(part.type, inspect.StructType) and part.type.cls is not launch.RankRef
        assert struct or part.name in names or part.type not in NAMING, f"whose is {info.cls.__name__}.{part.name}?"
        values[part.name] = names[part.name] if part.name in names and not struct else anything(part.type, names)
    return info.cls(**values)


def anything(info: Any, names: dict[str, Any]) -> Any:
    assert info not in NAMING[:5], f"whose is {info}?"
    makers = {
        inspect.UnionType: lambda: anything(next(p for p in info.types if not isinstance(p, inspect.NoneType)), names),
        inspect.StructType: lambda: made(info, names),
        inspect.EnumType: lambda: next(iter(info.cls)),
        inspect.LiteralType: lambda: info.values[1],
        inspect.VarTupleType: lambda: (anything(info.item_type, names),),
        inspect.TupleType: lambda: tuple(anything(part, names) for part in info.item_types),
    }
    simple = {inspect.StrType: "x", inspect.IntType: 1, inspect.FloatType: 1.0, inspect.BoolType: True}
    return simple[type(info)] if type(info) in simple else makers[type(info)]()


def rows_of_others(scene: Scene, who: str) -> dict[Any, dict[str, Any]]:
    """Every row of every table that is not about B: its node, its ranks, its counters and letters, its own acts
    and, of a stranger, its own job. An event of A's job is about B where that has ranks in it."""
    b, place = scene.senders[who], msgspec.to_builtins(ref_of(scene.senders[who]))
    other = Attempt.objects.filter(pk=b.replica.attempt_id).exclude(job=scene.job)
    own: dict[str, set[Any]] = {
        "node_id": {b.node_id}, "node_name": {b.node.name}, "actor": {f"node:{b.node.name}"}, "rank_id": {b.pk},
        "attempt_id": {row.pk for row in other}, "job_id": {row.job_id for row in other},
        "view_id": {row.pk for row in ViewRow.objects.filter(job__attempts__in=other)},
    }  # fmt: skip
    found, cursor = {}, connection.cursor()
    for model in TABLES:
        table, hidden = model.__name__, NOT_COMPARED.get(model.__name__, ())
        cursor.execute(f'SELECT * FROM "{model._meta.db_table}"')
        columns = [column[0] for column in cursor.description]
        for row in (dict(zip(columns, values, strict=True)) for values in cursor.fetchall()):
            about_b = any(row.get(column) in whose for column, whose in own.items())
            about_b |= table in ("Node", "Job") and row["id"] in own["node_id"] | own["job_id"]
            label = f"own:{table}" if table == "Replica" and row["id"] == b.replica_id else table
            if table in ("FlushRow", "RankLook", "RecomputedRank"):
                said = msgspec.json.decode(row["flush"]) if table == "FlushRow" else row
                label = f"own:{table}" if all(said.get(name, its) == its for name, its in place.items()) else table
            elif table == "Event":
                about_b &= not (who == "stranger" and row["job_id"] == scene.job.id)
                about_b, label = about_b or not row["sentence"], f"Event:{row['kind']}"
            if not about_b:
                found[label, row[model._meta.pk.attname]] = {c: row[c] for c in columns if c not in hidden}
    return found


def changed(before: dict[Any, Any], after: dict[Any, Any]) -> set[str]:
    """Columns that differ; "+" a row that is new, "-" one that is gone."""
    found = {f"{table}+" for table, _ in after.keys() - before.keys()}
    found |= {f"{table}-" for table, _ in before.keys() - after.keys()}
    for key in before.keys() & after.keys():
        found |= {f"{key[0]}.{column}" for column, value in before[key].items() if after[key][column] != value}
    return found


def refusals(node: Node) -> dict[str, int]:
    return dict(FrameCounter.objects.filter(node_name=node.name).values_list("reason", "count"))


def tell(scene: Scene, who: str, *bodies: Any) -> tuple[set[str], set[str], list[str]]:
    """One batch of B's, a true event about itself the last; undone afterwards. What changed, what was counted, and
    the kinds of what was refused."""
    b, counts = scene.senders[who], refusals(scene.senders[who].node)
    first = Node.objects.get(pk=b.node_id).last_event_seq + 1
    events = tuple(frames.AgentEvent(first + n, 0.0, body) for n, body in enumerate((*bodies, TRUE)))
    frame = codec.decode_from_agent(codec.encode_frame(frames.AgentFrame(seq=1, uptime_s=1.0, events=events)))
    assert frame.events == events, "they are well formed"  # type: ignore[union-attr]
    before = scene.known.get(who) or scene.known.setdefault(who, rows_of_others(scene, who))
    with transaction.atomic():
        outcome = ingest.apply_events(b.node_id, f"web.{b.node.name}", events)
        letters = list(DeadLetter.objects.filter(node=b.node).order_by("seq"))
        for letter in letters:
            with pytest.raises(IdentityMismatch):
                ingest.replay(letter.id)
        told = changed(before, rows_of_others(scene, who))
        counted = {reason for reason, count in refusals(b.node).items() if count != counts.get(reason)}
        applied = Signal.objects.filter(node=b.node, kind="node_check", evidence__checks="driver").exists()
        audited = AuditEntry.objects.filter(actor=f"node:{b.node.name}", action="agent.identity_mismatch").exists()
        transaction.set_rollback(True)  # The next lie finds the scene as this one did.
    assert applied and outcome.acked_seq == events[-1].seq, (
        f"{who}: what it says of itself is applied, whatever else it says"
    )
    assert outcome.aside == outcome.refused == len(letters), f"{who}: what is refused is kept"
    assert not letters or (audited and "identity_mismatch" in counted), f"{who}: what is refused is told"
    return told, counted, [letter.kind for letter in letters]


def test_no_kind_of_event_lets_a_node_speak_for_a_rank_of_another(scene: Scene) -> None:
    speaking = [kind for kind, (event, _) in KINDS.items() if any(part.name == "ref" for part in event.fields)]
    assert len(speaking) >= 19
    for who, first in product(WHO, range(0, len(speaking), SOME)):
        kinds = speaking[first : first + SOME]
        told, _, refused = tell(scene, who, *(body_of(kind, scene.names) for kind in kinds))
        assert (refused, told) == (kinds, set()), f"of a {who}"


def test_what_an_event_names_of_another_is_refused_or_counted_and_members_say_what_is_listed(scene: Scene) -> None:
    wrong, lies, seen = [], 0, {kind: set() for kind in KINDS}
    for kind, who in product(KINDS, WHO):
        names, (_, whom, listed) = scene.mine[who], MAY.get(kind, ("", (), ""))
        true, lie = body_of(kind, names), body_of(kind, scene.names | {"ref": names["ref"]})
        for body in (true, lie) if lie != true else (true,):
            told, counted, _ = tell(scene, who, body)
            seen[kind] |= told
            wrong += [f"{kind} of a {who}: {told}"] * (not told <= set(listed.split() if who in whom else ()))
            noted = body is true or counted or (kind in HARMLESS and who in IN_JOB)
            wrong += [f"{kind} of a {who} is neither refused nor counted"] * (not noted)
            lies += body is lie
    assert lies >= 35 and not wrong, "\n".join(wrong)
    assert {kind: told for kind, told in seen.items() if told} == {kind: {*row[2].split()} for kind, row in MAY.items()}


def test_no_answer_to_an_order_of_another_node_is_taken_whatever_it_says(scene: Scene) -> None:
    orders = {order.kind: order.id for order in Command.objects.filter(node=scene.a.node, state__in=dispatch.LIVE)}
    assert orders.keys() >= {"start_ranks", "deliver_view", "collect_stacks"}
    for who, (kind, order) in product(WHO, orders.items()):
        answers = [frames.CommandAnswer(order, state, "", states.UNFIT) for state in get_args(frames.AnswerState)]
        told, _, refused = tell(scene, who, *answers)
        assert (told, len(refused)) == (set(), len(answers)), f"{kind}, answered by a {who}"


def say_hello(scene: Scene, who: str, **lies: Any) -> tuple[set[str], bool, set[str]]:
    """What a hello of B's changes, whether that was refused, counted or audited, and what is told of A's job."""
    node, before = scene.senders[who].node, rows_of_others(scene, who)
    counts, noted = (refusals(node), AuditEntry.objects.count()), True
    with suppress(IdentityMismatch):
        ingest.open_session(node.id, f"web.{node.name}", replace(hello(node.name, devices=1), **lies))
        noted = counts != (refusals(node), AuditEntry.objects.count())
    return changed(before, rows_of_others(scene, who)), noted, set(Job.objects.get(pk=scene.job.pk).ahead)


def status_of(ref: launch.RankRef, step: int = 1) -> frames.RankStatus:
    return made(inspect.type_info(frames.RankStatus), {"ref": ref, "device_index": 0, "step": step})


def lies_of_a_hello(scene: Scene) -> dict[str, Any]:
    """Field -> what is A's."""
    a, life = Node.objects.get(pk=scene.a.node_id), {"attempt": 8, "epoch": 90, "incarnations": {0: 7}}
    seen = frames.JobSeen(job_id=scene.job.id, end="cancelled", end_signature="A" * 86, **life)
    return {
        "node_name": a.name, "boot_id": a.boot_id, "journal_id": a.journal_id, "devices": hello(a.name).devices,
        "ranks": (status_of(ref_of(scene.a)),), "jobs": (seen,),
    }  # fmt: skip


def test_a_hello_that_names_what_is_anothers_changes_nothing_there(scene: Scene) -> None:
    assert lies_of_a_hello(scene).keys() == FIELDS[frames.AgentHello][0]
    for who, (name, value) in product(WHO, lies_of_a_hello(scene).items()):
        later = AHEAD | ({"Job.epoch"} if who in ALL_IN_JOB else set())  # Where it has ranks, the epoch too.
        with transaction.atomic():
            told, noted, ahead = say_hello(scene, who, **{name: value})
            assert told == (later if name == "jobs" else set()), f"{name} of a {who}"
            assert ahead <= {"attempt", "epoch"}, f"{who}: no end, and no life of a replica"
            assert noted == (name in ("node_name", "ranks", "jobs")), f"{name}: the others are columns of its own"
            transaction.set_rollback(True)
        if name == "jobs":  # And all of it in a new journal, which is believed more.
            more = lies_of_a_hello(scene) | {"jobs": (replace(value[0], end="succeeded", end_signature=""),)}
            with transaction.atomic():
                told, _, ahead = say_hello(scene, who, **more | {"node_name": scene.senders[who].node.name})
                ends = {"end", "node"} if who in IN_JOB else set()  # As it may say that all steps are trained.
                assert (told, ahead - {"attempt", "epoch"}) == (later, ends), who
                transaction.set_rollback(True)


def test_the_stop_of_ranks_that_a_node_only_claims_to_run_takes_back_no_order_about_them(scene: Scene) -> None:
    for who, b in scene.senders.items():
        say_hello(scene, who, ranks=(status_of(ref_of(b)), status_of(ref_of(scene.a))))
        stop = Command.objects.filter(node=b.node, kind="stop_ranks", decision_id="").latest("id")
        assert (stop.body["job_id"], stop.body["replica"]) == (scene.job.id, 0)
        for state in get_args(frames.AnswerState):
            assert tell(scene, who, frames.CommandAnswer(stop.id, state)) == (set(), set(), []), (who, state)


def test_a_frame_moves_the_picture_of_no_other_nodes_ranks_and_devices_and_is_counted(scene: Scene) -> None:
    a, tables, seen = ref_of(scene.a), fleetmap.read_map(), live_state.LiveState()
    seen.expect(tables.nodes, tables.devices, tables.placed)

    def take(row: Rank, seq: int, celsius: float, *said: frames.RankStatus) -> None:
        read = tuple(samples.DeviceSample(index=n, temperature_c=celsius) for n in (0, 1))
        frame = frames.AgentFrame(seq=seq, uptime_s=1.0, ranks=said, devices=read)
        frame = limits.only_listed(frame, selectors.device_indexes([row.node_id])[0])
        seen.take([live_state.Heard(node_id=row.node_id, session_id="s", at_s=10.0 * seq, frame=frame)])

    take(scene.a, 1, 40.0, status_of(a))
    for b, seq in product(scene.senders.values(), (1, 2)):
        take(b, seq, 99.0, status_of(a, 999), status_of(ref_of(b), 7))
    for b in scene.senders.values():
        assert seen.dropped[b.node_id, "unknown_rank"] == 1, "not at first: it may be a start that is news"
        assert (list(seen.nodes[b.node_id].samples), seen.ranks[ref_of(b)].status.step) == ([0], 7)
    assert (seen.ranks[a].node_id, seen.ranks[a].status.step) == (scene.a.node_id, 1)
    assert {sample.temperature_c for sample in seen.nodes[scene.a.node_id].samples.values()} == {40.0}


def test_a_proof_and_a_new_key_that_name_another_node_are_nobodys(scene: Scene) -> None:
    a, b, key, nonce = scene.a.node, scene.senders["neighbour"].node, NodeKey.fresh(), bytes(32)
    Node.objects.filter(pk=b.pk).update(public_key=key.public_key)
    before = rows_of_others(scene, "neighbour")
    life = {"boot_id": a.boot_id, "journal_id": a.journal_id, "machine_id": "machine-a", "counter": 9}
    for node_id, signer in ((a.id, None), (b.id, b)):
        said = unsigned_proof(node_id=node_id, protocol_min=2, protocol_max=3, server_host="127.0.0.1", **life)
        assert proof.nodes_that_signed([(key.proof(nonce, said), nonce)]) == [signer]
    identity.admit(b.id, identity.Shown(**life, devices=tuple(info.uuid for info in hello(a.name).devices)))
    signed = key.sign(handshake.rotation_statement(nonce=nonce, node_id=b.id, new_key=a.public_key))
    theirs = handshake.NewKey(public_key=a.public_key, by_old=signed, by_new=signed)
    for node, said in ((b, theirs), (a, rotation(key, NodeKey.fresh(), nonce=nonce, node_id=a.id))):
        assert not enrolment.take_new_key(node.id, nonce, said)
    assert changed(before, rows_of_others(scene, "neighbour")) == set()


def test_every_message_and_field_of_an_agent_has_its_row_here_and_a_new_one_without_fails() -> None:
    known = {kind: lies | others for kind, (lies, others) in FIELDS.items()}
    assert known == {kind: set(kind.__struct_fields__) for kind in get_args(frames.FromAgent)}
    assert MAY.keys() | HARMLESS.keys() <= KINDS.keys()
    for kind in (bounds.Id, bounds.DeviceIndex, bounds.Path):
        new = msgspec.defstruct("New", [("whose", kind)], frozen=True)
        with pytest.raises(AssertionError, match=r"whose is New\.whose"):
            made(inspect.type_info(new), {})
