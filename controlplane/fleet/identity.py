"""Is this the node, or a copy of it? Judged once a session, after its proof was verified.

Theory of operation. A key can be copied; three things then give the copy away. Boot ids never
come back: a boot that had ended and speaks again is another machine. The session counter only
grows: one that does not was set back (a restored snapshot) or is a copy's. And two cannot both
be live: who comes while another session of the node is live, from another boot or journal, waits
until that one was asked to prove itself again; if it does, there are two.

Not a copy: a new process on the same journal, a reboot (a boot never seen), a new journal of the
same boot, an old socket that is half open. A session that pushes out a live one of the same
journal gets no starts for `HOLD_S`, in which the one that was pushed out would be back.

Found: the node is quarantined with the reason, audited, told as an event. The life that was
known first keeps the session, so that its ranks and events go on; the later one is barred. Until
an administrator confirms, neither gets orders that begin anything (`dispatch`). The same holds for
a node that enrolled with a token that holds, whoever it is (`fleet.enrolment`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from django.db.models import F, Q

from controlplane.access import services as access
from controlplane.access.actors import in_words
from controlplane.fleet.capable import node_acts
from controlplane.fleet.models import Node, NodeLife
from controlplane.fleet.services import heal_devices, publish_node, transition_node
from controlplane.protocol.states import NodeState
from controlplane.runtime import bulk, events
from controlplane.runtime.clock import after, age_s, ago, now
from controlplane.runtime.errors import NotFound, refuse
from controlplane.runtime.locks import lock_row, lock_rows, retrying
from controlplane.runtime.logs import get
from controlplane.runtime.outages import raise_if_outage
from controlplane.runtime.prepared import TEXT, Prepared, Several

HOLD_S = 5.0
ASK_S = 6.0
ASK_FORGET_S = 60.0
ASK_AGAIN_S = 2.0
BARRED_RETRY_S = 60.0
REVOKED_RETRY_S = 60.0
MAX_LIVES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a verified proof and its hello say of who speaks. `devices`: uuids, () for none."""

    boot_id: str
    journal_id: str
    machine_id: str
    counter: int
    address: str = ""
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """`verdict`: admit; prove_again (on the same socket, then ask with `again`); refuse, with
    `code` and `detail` for the agent. `found`: why there are two machines, "" for nothing new."""

    verdict: Literal["admit", "prove_again", "refuse"]
    code: str = ""
    detail: str = ""
    retry_after_s: float | None = None
    found: str = ""


_log = get(__name__)
_LIVES: Prepared[tuple[str, int]] = Prepared(
    lambda nodes: NodeLife.objects.filter(
        node__in=nodes, boot_id=F("node__boot_id"), journal_id=F("node__journal_id"), barred=False
    ).values_list("node_id", "id"),
    nodes=Several(TEXT),
)
"""Of each node its newest life, where that is not barred."""
_KNOWN: Prepared[str] = Prepared(
    lambda nodes: NodeLife.objects.filter(node__in=nodes).values_list("node_id", flat=True), nodes=Several(TEXT)
)
"""Those that have a life."""
ADMIT = Admission(verdict="admit")
AGAIN = Admission(verdict="prove_again")


def admit(node_id: str, shown: Shown, *, again: bool = False) -> Admission:
    """Judge a new session. `again`: this is its second proof, on a fresh challenge, so that it is
    no late message of a socket that its agent has left."""
    return retrying(lambda: _admit(node_id, shown, again=again), "admit a session")


def admit_plain(asked: Sequence[tuple[str, Shown]]) -> list[Admission | None]:
    """Of each, in their order: `ADMIT` for one that comes back as it was, or for the first time, as `admit` says of it
    too, and None for one that is to be judged by `admit` itself. In as many statements for a thousand as for one.
    Raises the error of a database that is away."""
    first: dict[str, Shown] = {}
    for node_id, shown in asked:
        first.setdefault(node_id, shown)
    try:
        plain = retrying(lambda: _admit_plain(first), "admit sessions")
    except Exception as error:
        raise_if_outage(error)
        _log.exception("sessions could not be judged together: one by one", number=len(first))
        plain = set()
    return [ADMIT if shown is first[node_id] and node_id in plain else None for node_id, shown in asked]


def _admit_plain(asked: Mapping[str, Shown]) -> set[str]:
    """Those that have no session yet, or another of the same boot and journal, and are in no doubt: they are
    admitted. Of one that somebody else holds nobody else waits."""
    with events.unit_of_work():
        nodes = lock_rows(Node, asked, free_ones=True)
        lives, known = dict(_LIVES(nodes=nodes)), set(_KNOWN(nodes=[n.pk for n in nodes.values() if not n.boot_id]))
        plain = {
            node_id: node for node_id, node in nodes.items() if node_id in lives and _is_plain(node, asked[node_id])
        }
        first = {
            node_id: node for node_id, node in nodes.items() if node_id not in known and _is_first(node, asked[node_id])
        }
        held = [node.pk for node in plain.values() if node.connected]
        if held:
            Node.objects.filter(pk__in=held).update(hold_until=after(HOLD_S))
        shown = [(node, asked[node.pk]) for node in plain.values()]
        machines = [(lives[node.pk], said.machine_id, said.counter) for node, said in shown]
        bulk.update(NodeLife, {"barred": False, "last_seen_at": now()}, ("machine_id", "counter"), machines)
        _begin_lives({node_id: asked[node_id] for node_id in first})
        shown += [(node, asked[node.pk]) for node in first.values()]
        rows = [(node.pk, said.machine_id or node.machine_id, said.counter) for node, said in shown]
        bulk.update(Node, {"challenger": None, "asked_at": None}, ("machine_id", "session_counter"), rows)
    return plain.keys() | first.keys()


def _begin_lives(shown: Mapping[str, Shown]) -> None:
    same, names = {"barred": False, "first_seen_at": now(), "last_seen_at": now()}, ("machine_id", "counter")
    rows = [(node_id, s.boot_id, s.journal_id, s.machine_id, s.counter) for node_id, s in shown.items()]
    bulk.insert(NodeLife, same, ("node_id", "boot_id", "journal_id", *names), rows)


def _is_plain(node: Node, shown: Shown) -> bool:
    """Whatever `_admit` asks besides has been asked of its life."""
    here = node.removed_at is None and node.revoked_at is None
    same = node.boot_id != "" and (node.boot_id, node.journal_id) == (shown.boot_id, shown.journal_id)
    return here and same and shown.counter > node.session_counter


def _is_first(node: Node, shown: Shown) -> bool:
    """It has no life yet, which is asked beside; `_admit` asks nothing else of it."""
    here = node.removed_at is None and node.revoked_at is None
    return here and node.boot_id == "" and shown.counter > node.session_counter


def _admit(node_id: str, shown: Shown, *, again: bool) -> Admission:
    with events.unit_of_work():
        node = lock_row(Node, node_id)
        if node is None or node.removed_at is not None:
            return _refuse("unknown_node", "this node was removed; enrol again with a join token")
        if node.revoked_at is not None:
            return _revoked(node)
        life = node.lives.filter(boot_id=shown.boot_id, journal_id=shown.journal_id).first()
        if life is not None and life.barred:
            return _barred(node)
        if shown.counter <= node.session_counter:
            if not again:
                return AGAIN
            went = f"its session counter went back from {node.session_counter} to {shown.counter}"
            return _two(node, shown, life, went)
        return _advancing(node, shown, life)


def _advancing(node: Node, shown: Shown, life: NodeLife | None) -> Admission:
    """The counter is as it should be: is the place?"""
    newest = (node.boot_id, node.journal_id)
    if node.boot_id == "" or newest == (shown.boot_id, shown.journal_id):
        if node.boot_id and node.connected:
            Node.objects.filter(pk=node.pk).update(hold_until=after(HOLD_S))
        return _take(node, shown)
    if shown.boot_id != node.boot_id:
        if node.lives.filter(boot_id=shown.boot_id).exists():
            return _two(node, shown, life, f"boot {shown.boot_id} speaks again after boot {node.boot_id} did")
        other = _other_machine(node, shown)
        if other:
            return _two(node, shown, life, other)
    if node.connected:
        waiting = _ask_the_live_one(node, shown)
        if waiting is not None:
            return waiting
        Node.objects.filter(pk=node.pk).update(hold_until=after(HOLD_S))
    return _take(node, shown)


def _other_machine(node: Node, shown: Shown) -> str:
    """What of the machine is another than it was; "" if nothing is."""
    if node.machine_id and shown.machine_id and node.machine_id != shown.machine_id:
        return f"its machine id was {node.machine_id} and is {shown.machine_id}"
    known = set(node.devices.filter(present=True).values_list("uuid", flat=True)) - {""}
    now_there = set(shown.devices) - {""}
    if known and now_there and not known & now_there:
        return "not one of its devices is one that it had"
    return ""


def _ask_the_live_one(node: Node, shown: Shown) -> Admission | None:
    """None: it was asked and did not answer, so it is gone. Else the newcomer waits."""
    mine = {"boot_id": shown.boot_id, "journal_id": shown.journal_id}
    waited_s = age_s(node.asked_at)
    asked = node.challenger is not None and {k: node.challenger.get(k) for k in mine} == mine
    if asked and waited_s is not None and ASK_S <= waited_s < ASK_FORGET_S:
        return None
    if not asked or waited_s is None or waited_s >= ASK_FORGET_S:
        Node.objects.filter(pk=node.pk).update(challenger=asdict(shown), asked_at=now())
    return _refuse(
        "in_doubt", "another session with this node's key is live and is being asked to prove itself", ASK_AGAIN_S
    )


def live_one_answered(node_id: str, session_id: str) -> str:
    """The session that was live has proved itself again while a newcomer waited: there are two.
    Returns why the node is in doubt from now on, "" if nobody waits."""
    with events.unit_of_work():
        node = lock_row(Node, node_id)
        if node is None or node.session_id != session_id or not node.challenger:
            return ""
        newcomer = Shown(**{**node.challenger, "devices": tuple(node.challenger.get("devices", ()))})
        _remember(node, newcomer, barred=True)
        Node.objects.filter(pk=node_id).update(challenger=None, asked_at=None)
        why = (
            f"two sessions with its key are live: boot {node.boot_id}, and boot {newcomer.boot_id}, journal"
            f" {newcomer.journal_id} from {newcomer.address or 'an unknown address'}"
        )
        _quarantine(node, newcomer, why)
    return why


def _two(node: Node, shown: Shown, life: NodeLife | None, why: str) -> Admission:
    """The key is used in two places, or was set back. The life known first goes on."""
    same = (shown.boot_id, shown.journal_id) == (node.boot_id, node.journal_id)
    newcomer = life is None and node.connected and not same
    if newcomer:
        _remember(node, shown, barred=True)
    elif life is not None and not same:
        # It was here before the one that took its place.
        node.lives.filter(boot_id=node.boot_id, journal_id=node.journal_id).update(barred=True)
    _quarantine(node, shown, why)
    if newcomer:
        barred = _barred(node)
        return Admission(
            verdict="refuse", code=barred.code, detail=barred.detail, retry_after_s=barred.retry_after_s, found=why
        )
    _take(node, shown)
    return Admission(verdict="admit", found=why)


def _quarantine(node: Node, shown: Shown, why: str) -> None:
    access.audit(f"node:{node.name}", "node.identity_doubt", node.id, reason=why, data=asdict(shown))
    reason = f"in doubt which machine it is: {why}"
    if node.state == NodeState.QUARANTINED and not node.doubt:
        # Whoever confirms it ends both, and reads here what both are.
        Node.objects.filter(pk=node.pk).update(state_reason=f"{node.state_reason}; {reason}")
    Node.objects.filter(pk=node.pk).update(doubt=why)
    if node.state == NodeState.QUARANTINED:
        publish_node(node, "node.identity_doubt", f"Node {node.name} is {reason}.")
    else:
        transition_node(node, NodeState.QUARANTINED, reason)


def _take(node: Node, shown: Shown) -> Admission:
    _remember(node, shown, barred=False)
    columns: dict[str, Any] = {"session_counter": shown.counter, "challenger": None, "asked_at": None}
    if shown.machine_id:
        columns["machine_id"] = shown.machine_id
    Node.objects.filter(pk=node.pk).update(**columns)
    return ADMIT


def _remember(node: Node, shown: Shown, *, barred: bool) -> None:
    fields: Mapping[str, Any] = {
        "machine_id": shown.machine_id, "counter": shown.counter, "barred": barred, "last_seen_at": now()
    }  # fmt: skip
    NodeLife.objects.update_or_create(node=node, boot_id=shown.boot_id, journal_id=shown.journal_id, defaults=fields)
    kept = node.lives.order_by("-last_seen_at").values_list("pk", flat=True)[:MAX_LIVES]
    node.lives.exclude(Q(pk__in=list(kept)) | Q(boot_id=node.boot_id, journal_id=node.journal_id)).delete()


def confirm(node_id: str, *, actor: str, reason: str, request_id: str = "") -> Node:
    """An administrator vouches for what speaks as this node now (its newest life), or admits a node
    that waits since it enrolled; it may take work. Barred lives stay barred. Raises NotFound, or
    Conflict if it is not quarantined."""
    with events.unit_of_work():
        node = lock_row(Node, node_id)
        if node is None or node.removed_at is not None:
            raise NotFound(f"no node {node_id!r}")
        refuse(node_acts(node)["confirm"])
        data = {"doubt": node.doubt, "held": node.held}
        access.audit(actor, "node.confirm", node_id, reason=reason, request_id=request_id, data=data)
        vouched = node.lives.filter(boot_id=node.boot_id, journal_id=node.journal_id).first()
        counter = node.session_counter if vouched is None else vouched.counter
        Node.objects.filter(pk=node_id).update(
            doubt="", held=False, deaf=False, gap_since=None, challenger=None, asked_at=None, hold_until=None,
            session_counter=counter,
        )  # fmt: skip
        transition_node(node, NodeState.READY, f"{reason} ({in_words(actor)})")
        heal_devices(node)
    return node


def no_starts_for(moment: Any) -> Q:
    """Of commands: those whose node must not begin anything at this moment (`dispatch` leaves them queued)."""
    return ~Q(node__doubt="") | Q(node__held=True) | Q(node__hold_until__gt=moment)


def being_asked(node_ids: list[str]) -> set[str]:
    """Nodes whose live session must prove itself again because somebody else came."""
    rows = Node.objects.filter(pk__in=node_ids, challenger__isnull=False, asked_at__gt=ago(ASK_S))
    return set(rows.values_list("id", flat=True))


def _revoked(node: Node) -> Admission:
    return _refuse(
        "revoked",
        f"node {node.name} was revoked; an administrator lets it back with `holdfast node restore {node.name}`, or"
        f" gives it a new key with `holdfast node re-enrol {node.name}`",
        REVOKED_RETRY_S,
    )


def _barred(node: Node) -> Admission:
    return _refuse(
        "cloned",
        f"the key of node {node.name} is used by another machine too, which was here before: if this is the true one,"
        f" an administrator runs `holdfast node re-enrol {node.name}` and this machine enrols with that token",
        BARRED_RETRY_S,
    )


def _refuse(code: str, detail: str, retry_after_s: float | None = None) -> Admission:
    return Admission(verdict="refuse", code=code, detail=detail, retry_after_s=retry_after_s)
