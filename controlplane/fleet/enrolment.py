"""How nodes come, go and change their keys: enrolment, rotation, revocation, removal.

Called by the enrolment door, the agents' socket (rotation) and an administrator's orders. The
server keeps public keys only: nothing in these rows lets anybody speak as a node.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from controlplane.access import join_tokens
from controlplane.access import services as access
from controlplane.access.actors import in_words
from controlplane.access.models import JoinToken
from controlplane.access.services import Shown
from controlplane.fleet.capable import node_acts
from controlplane.fleet.keys import key_that_signed, verifies
from controlplane.fleet.models import Node, NodeLife
from controlplane.fleet.services import publish_node, sync_devices, transition_node
from controlplane.protocol.handshake import NewKey, enrolment_statement, rotation_statement
from controlplane.protocol.samples import DeviceInfo
from controlplane.protocol.states import NodeState
from controlplane.runtime import events
from controlplane.runtime.clock import after, now
from controlplane.runtime.errors import Conflict, Denied, NotFound, refuse
from controlplane.runtime.ids import new_id
from controlplane.runtime.locks import lock_row

KEY_OVERLAP_S = 600.0
_REMOVED = ".removed."


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolment:
    """What an agent asks with. `proof` is by the new key, `old_key_proof` (b"" without) by the one
    under which the node is known; `address` is where it comes from."""

    name: str
    join_token: str
    public_key: str
    proof: bytes
    old_key_proof: bytes = b""
    boot_id: str = ""
    machine_id: str = ""
    segment: str = ""
    version: str = ""
    address: str = ""
    devices: Sequence[DeviceInfo] = field(default=())

    @property
    def statement(self) -> bytes:
        """What both proofs sign."""
        digest = join_tokens.digest(self.join_token)
        return enrolment_statement(
            token_sha256=digest, node_name=self.name, public_key=self.public_key, boot_id=self.boot_id
        )


def enroll_node(asked: Enrolment) -> str:
    """Store the public key of a new node, or of a known one that may have another; its id. The same
    request again (its answer was lost) costs no second use. Raises Denied (token, proof) or
    Conflict (the name or the key is somebody else's), with what to do."""
    if not verifies(asked.public_key, asked.proof, asked.statement):
        raise Denied("the request is not signed by the key that it names")
    with events.unit_of_work():
        node = Node.objects.select_for_update().filter(name=asked.name).first()
        if node is not None and _is_repeat(node, asked):
            return node.id
        token = join_tokens.spend(asked.join_token, name=asked.name, segment=asked.segment, address=asked.address)
        other = Node.objects.filter(public_key=asked.public_key).exclude(name=asked.name).first()
        if other is not None:
            raise Conflict(
                f"this key is node {other.name!r}'s: the disk or image was copied with its state directory; remove that"
                " directory here, so that the node makes a key of its own"
            )
        if node is None:
            node = Node.objects.create(id=new_id("node"), name=asked.name, **_columns(asked, token))
        else:
            _check_takeover(node, token, asked)
            _give_key(node, asked, token)
        found = sync_devices(node, asked.devices)
        access.audit(
            f"join_token:{token.id}",
            "node.enroll",
            node.id,
            data={
                "name": asked.name,
                "public_key": asked.public_key,
                "address": asked.address,
                "hold": token.hold,
            },
        )
        has = f" It has {found}." if found else ""
        publish_node(node, "node.enrolled", f"Node {asked.name} enrolled.{has}")
        if token.hold:
            _hold(node, token)
    return node.id


def _is_repeat(node: Node, asked: Enrolment) -> bool:
    spent = JoinToken.objects.filter(sha256=join_tokens.digest(asked.join_token)).values_list("id", flat=True).first()
    return (
        spent is not None
        and node.join_token_id == spent
        and node.public_key == asked.public_key
        and node.revoked_at is None
        and node.session_counter == 0
    )


def _check_takeover(node: Node, token: JoinToken, asked: Enrolment) -> None:
    """A known name goes to another key only if the old key or an administrator says so (V15)."""
    if token.takeover and token.name == node.name:
        return
    if node.revoked_at is None and key_that_signed(node, asked.old_key_proof, asked.statement, now()):
        return
    if node.revoked_at is not None:
        raise Conflict(
            f"node {node.name!r} was revoked: an administrator lets it back with `holdfast node restore {node.name}`,"
            f" or gives it a new key with `holdfast node re-enrol {node.name}`"
        )
    raise Conflict(
        f"node {node.name!r} is known by another key. If its disk was lost or replaced, an administrator runs"
        f" `holdfast node re-enrol {node.name}`, which shows a join token for this node alone; if this is another"
        " machine, choose another name"
    )


def _columns(asked: Enrolment, token: JoinToken) -> dict[str, object]:
    return {
        "public_key": asked.public_key,
        "key_since": now(),
        "machine_id": asked.machine_id[:64],
        "agent_version": asked.version[:40],
        "join_token_id": token.id,
        "pool": token.pool,
    }


def _give_key(node: Node, asked: Enrolment, token: JoinToken) -> None:
    """A new life: the old key is worth nothing from now on, its session is closed by the sockets'
    sweep, what its lives had shown is forgotten, and an old doubt with them."""
    NodeLife.objects.filter(node=node).delete()
    columns = _columns(asked, token) | {
        "old_public_key": "",
        "old_key_until": None,
        "key_wanted_at": None,
        "session_counter": 0,
        "session_id": "",
        "connected": False,
        "boot_id": "",
        "journal_id": "",
        "last_event_seq": 0,
        "doubt": "",
        "challenger": None,
        "asked_at": None,
        "revoked_at": None,
    }
    doubtful = bool(node.doubt) and node.state == NodeState.QUARANTINED and not node.held
    Node.objects.filter(pk=node.pk).update(**columns)
    node.refresh_from_db()
    if doubtful:
        transition_node(node, NodeState.READY, "it enrolled again with a new key")


def _hold(node: Node, token: JoinToken) -> None:
    """No work until an administrator confirms it, whatever it was before: the token says so. Only
    `fleet.identity.confirm` ends it."""
    if node.held:
        return
    Node.objects.filter(pk=node.pk).update(held=True)
    node.held = True
    why = (
        f"it enrolled with join token {token.id}, which holds: it waits for an administrator"
        f" (holdfast node confirm {node.name})"
    )
    if node.state != NodeState.QUARANTINED:
        transition_node(node, NodeState.QUARANTINED, why)
        return
    node.state_reason = f"{node.state_reason}; {why}"
    node.save(update_fields=["state_reason"])


def reissue(node_id: str, *, actor: str, reason: str, ttl_s: float, request_id: str = "") -> Shown:
    """A join token with which this node, and nobody else, gets another key. Raises NotFound."""
    with events.unit_of_work():
        node = get(node_id)
        bound = join_tokens.Binding(name=node.name, pool=node.pool, takeover=True)
        shown = join_tokens.create(bound, ttl_s=ttl_s, actor=actor)
        refuse(node_acts(node)["re-enrol"])
        access.audit(actor, "node.re_enrol", node_id, reason=reason, request_id=request_id, data={"token": shown.id})
        publish_node(
            node, "node.re_enrol", f"Node {node.name} may enrol again with a new key. {reason} ({in_words(actor)})"
        )
    return shown


def revoke(node_id: str, *, actor: str, reason: str = "", request_id: str = "") -> Node:
    """Its key is worth nothing from now on; a live session is closed by the sockets' sweep. Revoking
    twice is no error. Raises NotFound."""
    with events.unit_of_work():
        node = get(node_id)
        refuse(node_acts(node)["revoke"])
        access.audit(actor, "node.revoke", node_id, reason=reason, request_id=request_id)
        if node.revoked_at is None:
            if node.state == NodeState.DRAINING:
                transition_node(node, NodeState.CORDONED, "revoked while it was drained")
            Node.objects.filter(pk=node.pk).update(revoked_at=now())
            publish_node(node, "node.revoked", f"Node {node.name} was revoked: {reason}")
    return node


def restore(node_id: str, *, actor: str, reason: str, request_id: str = "") -> Node:
    """The same key counts again. Raises NotFound."""
    with events.unit_of_work():
        node = get(node_id)
        refuse(node_acts(node)["restore"])
        access.audit(actor, "node.restore", node_id, reason=reason, request_id=request_id)
        if node.revoked_at is not None:
            Node.objects.filter(pk=node.pk).update(revoked_at=None)
            publish_node(node, "node.restored", f"Node {node.name} may connect again. {reason} ({in_words(actor)})")
    return node


def remove(node_id: str, *, actor: str, reason: str, request_id: str = "") -> Node:
    """Forget a node: its name is free, its key worth nothing; what ran there stays in the history.
    Raises NotFound, or Conflict while ranks are placed there."""
    with events.unit_of_work():
        node = get(node_id)
        refuse(node_acts(node)["remove"])
        name = node.name
        access.audit(actor, "node.remove", node_id, reason=reason, request_id=request_id, data={"name": name})
        moment = now()
        Node.objects.filter(pk=node.pk).update(
            name=f"{name[:60]}{_REMOVED}{node.id[-26:]}",
            removed_at=moment,
            revoked_at=node.revoked_at or moment,
            public_key=None,
            old_public_key="",
            old_key_until=None,
            connected=False,
        )
        publish_node(node, "node.removed", f"Node {name} was removed. {reason} ({in_words(actor)})")
    return node


def want_new_key(node_id: str, *, actor: str, reason: str, request_id: str = "") -> Node:
    """Its agent is told to make a new key: at once if it is connected, else when it is. Raises
    NotFound or Conflict (revoked: it cannot connect)."""
    with events.unit_of_work():
        node = get(node_id)
        refuse(node_acts(node)["rotate-key"])
        access.audit(actor, "node.rotate_key", node_id, reason=reason, request_id=request_id)
        Node.objects.filter(pk=node.pk).update(key_wanted_at=now())
        publish_node(node, "node.rotate_key", f"Node {node.name} is to make a new key. {reason} ({in_words(actor)})")
    return node


def take_new_key(node_id: str, nonce: bytes, said: NewKey) -> bool:
    """Old and new key have signed: the new one counts from now on, the old one for an overlap more.
    False when they have not."""
    statement = rotation_statement(nonce=nonce, node_id=node_id, new_key=said.public_key)
    with events.unit_of_work():
        node = lock_row(Node, node_id)
        if node is None or node.revoked_at is not None or not verifies(said.public_key, said.by_new, statement):
            return False
        signer = key_that_signed(node, said.by_old, statement, now())
        if not signer or Node.objects.filter(public_key=said.public_key).exclude(pk=node_id).exists():
            return False
        if said.public_key == node.public_key:
            return True
        Node.objects.filter(pk=node_id).update(
            public_key=said.public_key,
            key_since=now(),
            key_wanted_at=None,
            old_public_key=node.public_key or "",
            old_key_until=after(KEY_OVERLAP_S),
        )
        access.audit(f"node:{node.name}", "node.key_rotated", node_id, data={"public_key": said.public_key})
        publish_node(node, "node.key_rotated", f"Node {node.name} has a new key.")
    return True


def wants_new_key(node: Node, moment: datetime, max_age: timedelta) -> bool:
    """It was asked for, or the key is that old."""
    return node.key_wanted_at is not None or (node.key_since is not None and moment - node.key_since > max_age)


def get(node_id: str) -> Node:
    """Locked. Raises NotFound, for removed ones too."""
    node = lock_row(Node, node_id)
    if node is None or node.removed_at is not None:
        raise NotFound(f"no node {node_id!r}")
    return node
