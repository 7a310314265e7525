"""Who is at the agents' door: challenge, proof, admission; and the same again later.

Called by the agents' socket once a session, and by the sweep for sessions that are asked again.
Nothing but the proof counts: no header, no part of a URL. (One header says what the agent can do, so
that it is asked for it; who drops it gains nothing.) A peer that proves nothing learns nothing: a node
that does not exist costs the same work and gets the same answer.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.http.request import validate_host

from controlplane.access.refusals import refusals
from controlplane.fleet import enrolment, identity
from controlplane.fleet.identity import Admission, Shown
from controlplane.fleet.keys import key_that_signed
from controlplane.fleet.models import Node
from controlplane.live.limits import Place
from controlplane.live.links import AgentLink
from controlplane.protocol.codec import decode_from_agent
from controlplane.protocol.errors import FrameTooLarge, MalformedFrame, ProtocolError
from controlplane.protocol.frames import PROTOCOL_MAX, PROTOCOL_MIN, AgentHello
from controlplane.protocol.handshake import (
    CHANNEL_CERTIFICATE,
    CHANNEL_HEADER,
    MAX_PROOF_BYTES,
    NONCE_BYTES,
    Challenge,
    KeyAccepted,
    NewKey,
    Proof,
    RotateKey,
    session_statement,
)
from controlplane.recovery import doubts
from controlplane.runtime import channel
from controlplane.runtime.address import client_address
from controlplane.runtime.clock import now
from controlplane.runtime.requests import on_behalf_of

if TYPE_CHECKING:
    from controlplane.live.process import WebProcess

# Less than an agent waits for its welcome: what is judged is never a socket that it has left.
PROOF_TIMEOUT_S = 8.0
UNKNOWN_RETRY_S = 60.0
PUSHED_OUT_RETRY_S = 1.0
# Mended at the server as a rule: its agents are to be back soon after.
UNBOUND_RETRY_S = 30.0

Receive = Callable[[], Awaitable[dict[str, Any]]]


class Entrance:
    """One socket from its challenge to its admission, and whatever it proves later."""

    def __init__(self, process: "WebProcess", link: AgentLink, receive: Receive, scope: dict[str, Any]) -> None:
        self._process, self._link, self._receive = process, link, receive
        self._address = client_address(scope)
        self._proof: Proof | None = None
        self._challenged_s = 0.0
        self._offered = offers_channel(scope)
        link.bind_tls = process.certificates.required and self._offered

    @property
    def newer(self) -> bool:
        """The agent speaks a newer revision than this server: fields unknown here are no fault."""
        return self._proof is not None and self._proof.protocol_max > PROTOCOL_MAX

    async def prove(self, place: Place) -> bool:
        """Challenge the socket that has `place`; True when a node of ours has signed. Else the socket was
        told why and closed."""
        said = await self._challenged(place)
        if said is None:
            return False
        nonce, self._link.challenge = self._link.challenge, b""
        node = await self._process.signers((said, nonce))
        if node is None:
            await self._failed("?", "unknown_key", f"node {said.node_id}")
            await self._link.refuse(
                "unknown_node", "no node is known by this id and key; enrol again with a join token", UNKNOWN_RETRY_S
            )
            return False
        self._link.node_id, self._link.node_name = node.id, node.name
        if not is_our_name(said.server_host):
            await self._failed(node.name, "other_host", said.server_host)
            await self._link.refuse(
                "bad_protocol",
                f"the agent dialled {said.server_host!r}, which is no name of this server (HOLDFAST_ALLOWED_HOSTS):"
                " the proof may have been passed on by somebody else",
            )
            return False
        if why := await self._unbound(said):
            await self._failed(
                node.name, "other_certificate", f"{said.tls_certificate or 'none'} of {said.server_host}"
            )
            await self._link.refuse("bad_protocol", why, UNBOUND_RETRY_S)
            return False
        self._proof = said
        return True

    async def admitted(self, said: AgentHello) -> bool:
        """Whether this session may open; a late or doubtful one proves itself once more first."""
        first = self._proof
        assert first is not None, "prove comes before"
        if (said.boot_id, said.journal_id) != (first.boot_id, first.journal_id):
            await self._link.refuse("identity_mismatch", "hello and proof speak of different boots or journals")
            return False
        admission = await self._ask(said, again=False)
        if admission.verdict == "prove_again":
            with self._process.intake.outside():
                repeated = await self._challenged(Place(self._address))
            if repeated is None:
                return False
            nonce, self._link.challenge = self._link.challenge, b""
            if not await self._is_same(repeated, nonce):
                await self._link.refuse("unknown_node", "the second proof is not as the first", UNKNOWN_RETRY_S)
                return False
            admission = await self._ask(said, again=True)
        if admission.found:
            await self._process.in_thread(doubts.tell, self._link.node_id, admission.found)
        if admission.verdict == "admit":
            return True
        if admission.code == "in_doubt":
            self._process.outbox_wakeup.set()
        else:
            await self._failed(self._link.node_name, admission.code, self._address)
        await self._link.refuse(admission.code, admission.detail, admission.retry_after_s)
        return False

    def answered(self, said: Proof | NewKey) -> None:
        """In a live session: what it was asked for. Raises MalformedFrame for what nobody asked for."""
        link = self._link
        if isinstance(said, Proof) and link.challenge:
            nonce, link.challenge = link.challenge, b""
            link.spawn(self._live_proof(said, nonce))
        elif isinstance(said, NewKey) and link.rotation:
            nonce, link.rotation = link.rotation, b""
            link.spawn(self._new_key(said, nonce))
        else:
            raise MalformedFrame("a proof or a key that nobody asked for")

    async def _challenged(self, place: Place) -> Proof | None:
        """Send a challenge and read its answer; None when there was none worth the name."""
        link = self._link
        link.challenge = os.urandom(NONCE_BYTES)
        self._challenged_s = time.monotonic()
        try:
            async with asyncio.timeout(PROOF_TIMEOUT_S) as patience:
                with place.waiting(patience):
                    told = await link.tell(Challenge(link.challenge, bind_tls=link.bind_tls))
                    data = await next_bytes(self._receive) if told else None
        except TimeoutError:
            if place.pushed_out:
                await self._process.count("?", "unknown_sockets", "one that said nothing made room for another")
                await link.refuse("overloaded", "it said nothing, and others wait for its place", PUSHED_OUT_RETRY_S)
                return None
            await link.refuse("bad_protocol", f"no proof of identity within {PROOF_TIMEOUT_S:.0f} s", 1.0)
            return None
        if data is None:
            return None
        try:
            if len(data) > MAX_PROOF_BYTES and self._proof is None:
                raise FrameTooLarge(
                    f"the first message is {len(data)} bytes, a proof has at most {MAX_PROOF_BYTES}; an agent older"
                    " than this server must be upgraded"
                )
            said = decode_from_agent(data)
        except ProtocolError as error:
            await self._process.count(link.node_name, error.code, str(error))
            await link.refuse(error.code, str(error))
            return None
        if not isinstance(said, Proof):
            ours = f"{PROTOCOL_MIN} to {PROTOCOL_MAX}"
            await link.refuse(
                "bad_protocol",
                f"the first message of a session is the answer to our challenge (protocol {ours}): the agent is older"
                " than this server, upgrade it",
            )
            return None
        return said

    async def _unbound(self, said: Proof) -> str:
        """Why the proof is not bound to a TLS certificate of ours; "" if it is or need not be. Asked of
        a session's first proof only: later ones must be like it, whatever was renewed meanwhile."""
        if not self._process.certificates.required:
            return ""
        good = await self._process.in_thread(self._process.certificates.good)
        return channel.fault(said, good, offered=self._offered)

    async def _ask(self, said: AgentHello, *, again: bool) -> Admission:
        proof = self._proof
        assert proof is not None, "prove comes before"
        if time.monotonic() - self._challenged_s > PROOF_TIMEOUT_S:
            return Admission(
                verdict="refuse", code="overloaded", detail="the proof could not be judged in time", retry_after_s=1.0
            )
        shown = Shown(
            boot_id=proof.boot_id,
            journal_id=proof.journal_id,
            machine_id=proof.machine_id,
            counter=proof.counter,
            address=self._address,
            devices=tuple(device.uuid[:80] for device in said.devices[:64]),
        )
        plain = None if again else await self._process.admissions((self._link.node_id, shown))
        if plain is not None:
            return plain
        return await self._process.in_thread(lambda: identity.admit(self._link.node_id, shown, again=again))

    async def _is_same(self, said: Proof, nonce: bytes) -> bool:
        """Signed by the node of the first proof, and of the same session of it."""
        node = await self._process.signers((said, nonce))
        if node is not None and self._proof is not None and _unsigned(said) == _unsigned(self._proof):
            return True
        await self._failed(self._link.node_name, "unknown_key", "asked again, it did not prove itself")
        return False

    async def _live_proof(self, said: Proof, nonce: bytes) -> None:
        if not await self._is_same(said, nonce):
            return
        why = await self._process.in_thread(identity.live_one_answered, self._link.node_id, self._link.session_id)
        if why:
            await self._process.in_thread(doubts.tell, self._link.node_id, why)

    async def _new_key(self, said: NewKey, nonce: bytes) -> None:
        if await self._process.in_thread(enrolment.take_new_key, self._link.node_id, nonce, said):
            await self._link.tell(KeyAccepted(said.public_key))
            return
        await self._failed(self._link.node_name, "bad_new_key", "the old and the new key have not both signed")

    async def _failed(self, name: str, reason: str, detail: str) -> None:
        await self._process.count(name, reason, detail)
        await self._process.in_thread(_audit, name, reason, detail, self._address)


async def ask_again(process: "WebProcess") -> None:
    """Sessions whose node somebody else claims to be, or whose key is to be replaced."""
    ids = list(process.links)
    asked = await process.in_thread(identity.being_asked, ids)
    for node_id in asked:
        link = process.links.get(node_id)
        if link is not None and not link.challenge:
            link.challenge = os.urandom(NONCE_BYTES)
            await link.tell(Challenge(link.challenge, bind_tls=link.bind_tls))
    for node_id in await process.in_thread(_key_wanted, ids):
        link = process.links.get(node_id)
        if link is not None and not link.rotation:
            link.rotation = os.urandom(NONCE_BYTES)
            await link.tell(RotateKey(link.rotation))


def nodes_that_signed(asked: Sequence[tuple[Proof, bytes]]) -> list[Node | None]:
    """Of each proof and the nonce that it answers: the node that it names, if one of its keys signed it; revoked ones
    too. Constant work each."""
    rows = Node.objects.filter(pk__in={said.node_id for said, _ in asked}, removed_at=None)
    nodes, moment = {node.id: node for node in rows}, now()
    found = []
    for said, nonce in asked:
        node = nodes.get(said.node_id)
        signed = key_that_signed(node, said.signature, session_statement(nonce, said), moment)
        found.append(node if signed else None)
    return found


def is_our_name(host: str) -> bool:
    """Whether agents may call this server so; loopback always is."""
    return host in channel.LOOPBACK or validate_host(host, settings.ALLOWED_HOSTS)


def offers_channel(scope: dict[str, Any]) -> bool:
    """Whether the agent can bind its proof to its TLS connection, as it says when it connects."""
    offer = (CHANNEL_HEADER.lower().encode(), CHANNEL_CERTIFICATE.encode())
    return any((name.lower(), value.strip()) == offer for name, value in scope.get("headers", ()))


async def next_bytes(receive: Receive) -> bytes | None:
    """The next message as bytes (text counts as garbage of the same length); None at the end."""
    message = await receive()
    if message["type"] == "websocket.disconnect":
        return None
    data = message.get("bytes")
    return data if data is not None else (message.get("text") or "").encode()


def _key_wanted(node_ids: list[str]) -> list[str]:
    """Nodes of these whose key was asked to be replaced, or is too old."""
    max_age = timedelta(days=settings.NODE_KEY_DAYS)
    rows = Node.objects.filter(pk__in=node_ids, revoked_at=None).only("id", "key_wanted_at", "key_since")
    return [node.id for node in rows if enrolment.wants_new_key(node, now(), max_age)]


def _audit(name: str, reason: str, detail: str, address: str) -> None:
    """A row of the audit log; the same of the same node within a minute is counted."""
    why = f"{reason}: {detail} from {address or 'unknown'}"[:500]
    with on_behalf_of("", address):
        refusals.note(f"node:{name}", "agent.proof_refused", name, reason=why)


def _unsigned(said: Proof) -> tuple[object, ...]:
    return tuple(getattr(said, name) for name in said.__struct_fields__ if name != "signature")
