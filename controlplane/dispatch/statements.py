"""What a command says, under our signature: how its statement comes into its row, and out of it.

What many nodes are told alike (a view, an install) is one row, `SharedBody`: of each of the commands rests what is its
own, the statement with the body cut out, and what travels is put together again byte for byte as it was signed.
"""

import msgspec
from django.conf import settings

from controlplane.changes.outbox import INSTALLS, STARTS, VIEWS
from controlplane.dispatch.models import Command, SharedBody, Unmade
from controlplane.protocol.commands import Body, CommandStatement, SignedCommand, StartRanks
from controlplane.protocol.errors import ProtocolError
from controlplane.protocol.signing import Alike, decode_statement, encode_alike, encode_body, encode_statement
from controlplane.protocol.store_keys import store_token
from controlplane.runtime import at_rest, keys

SHARED = (VIEWS, INSTALLS)
"""Kinds that all of a job's nodes are told, and into whose bodies no query looks."""
_HEAD_BYTES = 2
"""Of the length of what stands before the body."""


class Copies:
    """What is signed for one node after the other, of a command that says the same to all: `like` is it, with any
    id and node, `packed` what it says. `secret`: its statements rest sealed; `shared`: without what they say."""

    def __init__(self, like: Command, packed: bytes, *, secret: bool = False, shared: bool = False) -> None:
        self._said, self._packed, self._secret, self._shared = alike(like, packed), packed, secret, shared
        self._key_id, self._sign = keys.command_signer()

    def check(self) -> None:
        """Raises MalformedFrame for what no agent could decode: it fails where it was decided, not on the node."""
        decode_statement(self._for(self._said.command_id, self._said.node_id))

    def signed(self, command_id: str, node_id: str) -> tuple[bytes, str, bytes]:
        """(the statement as it rests in the row, the key's id, its signature)."""
        statement = self._for(command_id, node_id)
        return self._resting(statement, command_id), self._key_id, self._sign(statement)

    def unsigned(self, command_id: str, node_id: str) -> tuple[bytes, str, bytes]:
        """As `signed`, of what none of ours has decided: its agent refuses it, and tells us."""
        return self._resting(self._for(command_id, node_id), command_id), "", b""

    def _for(self, command_id: str, node_id: str) -> bytes:
        return encode_alike(self._said, command_id=command_id, node_id=node_id)

    def _resting(self, statement: bytes, command_id: str) -> bytes:
        if self._secret:
            return at_rest.seal_bytes(statement, _place(command_id))
        return _cut(statement, self._packed) if self._shared else statement


def copies_of(like: Command, body: Body, *, shared: bool) -> Copies:
    """Of a command that is decided now. Raises MalformedFrame for what no agent could decode."""
    copies = Copies(like, encode_body(body), secret=_is_secret(body), shared=shared)
    copies.check()
    return copies


def shared_body(body_id: str, like: Command, body: Body) -> SharedBody:
    """What commands that are alike refer to; not saved yet."""
    return SharedBody(id=body_id, body=shown(body), packed=encode_body(body), created_at=like.created_at)


def shown(body: Body) -> object:
    """As it stands in the row for people."""
    return msgspec.to_builtins(_without_values(body))


def alike(like: Command, packed: bytes) -> Alike:
    """The statement of this row, which says what is packed so."""
    return Alike(
        command_id=like.id,
        node_id=like.node_id,
        epoch=like.epoch,
        issued_at_s=like.created_at.timestamp(),
        ttl_s=like.ttl_s,
        body=msgspec.Raw(packed),
        job_id=like.job_id or "",
        attempt=like.attempt,
        decision_id=like.decision_id,
    )


def sign(command: Command, body: Body) -> None:
    """Put the statement of this row, and our signature of it, into its columns. Raises
    MalformedFrame for what no agent could decode: it fails where it was decided, not on the node."""
    statement = encode_statement(_statement(command, body))
    decode_statement(statement)
    command.key_id, command.signature = keys.sign_command(statement)
    _put(command, statement, body)


def sign_again(command: Command) -> None:
    """The same order, signed as the row's columns are now. Raises MalformedFrame."""
    sign(command, decode_statement(_said(command)).body)


def reseal(command: Command, *, opened: bool) -> None:
    """What it carries rests sealed with the present key, or in clear. Raises ProtocolError."""
    statement = _said(command)
    body = decode_statement(statement).body
    _put(command, statement, body)
    if opened:
        command.body, command.statement = msgspec.to_builtins(body), statement


def opens(command: Command) -> bool:
    """A key of this server opens it. One that none opens may still be sent by another process."""
    try:
        at_rest.open_bytes(bytes(command.statement), _place(command.id))
    except at_rest.Unreadable:
        return False
    return True


def signed(command: Command) -> SignedCommand:
    """The wire form: what was signed, as it was signed. A row that says something else than
    its statement goes without a signature, so that its agent refuses it and tells us."""
    statement = _said(command)
    signature = bytes(command.signature) if _agrees(command, statement) else b""
    token = store_token(settings.STORE_KEY, command.job_id or "") if command.kind == STARTS else ""
    return SignedCommand(
        command_id=command.id, key_id=command.key_id, signature=signature, statement=statement, store_token=token
    )


def is_genuine(command: Command) -> bool:
    """The row is what one of our processes has signed with a key of ours."""
    statement = _said(command)
    return _agrees(command, statement) and keys.is_ours(statement, bytes(command.signature), command.key_id)


def body_of(command: Command) -> Body | None:
    """As the row says it, of an environment the names alone. None: no agent could read that."""
    try:
        return msgspec.convert(_body(command), Body)
    except msgspec.ValidationError:
        return None


def waiting_body(row: Unmade) -> Body | None:
    """What a row that is not made its nodes' own yet says to each of them. None: no agent could read that."""
    shared = _shared(row)
    try:
        return msgspec.convert(shared.body if shared is not None else None, Body)
    except msgspec.ValidationError:
        return None


def _body(command: Command) -> object:
    if command.shared_id is None:
        return command.body
    shared = _shared(command)
    return shared.body if shared is not None else None


def _put(command: Command, statement: bytes, body: Body) -> None:
    command.body, command.shared = shown(body), None
    command.statement = at_rest.seal_bytes(statement, _place(command.id)) if _is_secret(body) else statement


def _is_secret(body: Body) -> bool:
    return isinstance(body, StartRanks) and bool(body.launch.env)


def _statement(command: Command, body: Body) -> CommandStatement:
    return CommandStatement(
        command_id=command.id,
        node_id=command.node_id,
        epoch=command.epoch,
        issued_at_s=command.created_at.timestamp(),
        ttl_s=command.ttl_s,
        body=body,
        job_id=command.job_id or "",
        attempt=command.attempt,
        decision_id=command.decision_id,
    )


def _cut(statement: bytes, body: bytes) -> bytes:
    """Without the body, and where it stood."""
    at = statement.index(body)
    return at.to_bytes(_HEAD_BYTES) + statement[:at] + statement[at + len(body) :]


def _whole(kept: bytes, body: bytes) -> bytes:
    """With it again. Of a row that is none of ours anything."""
    at = _HEAD_BYTES + int.from_bytes(kept[:_HEAD_BYTES])
    return kept[_HEAD_BYTES:at] + body + kept[at:]


def _said(command: Command) -> bytes:
    """The statement as it was signed; as it rests where it opens nowhere, which agrees with nothing."""
    kept = bytes(command.statement)
    if command.shared_id is not None:
        shared = _shared(command)
        return _whole(kept, bytes(shared.packed)) if shared is not None else kept
    try:
        return at_rest.open_bytes(kept, _place(command.id))
    except at_rest.Unreadable:
        return kept


def _shared(row: Command | Unmade) -> SharedBody | None:
    """None: somebody has deleted it."""
    try:
        return row.shared
    except SharedBody.DoesNotExist:
        return None


def _place(command_id: str) -> str:
    return f"command/{command_id}"


def _without_values(body: Body) -> Body:
    """As it stands in the row for people: of the environment the names alone."""
    if not isinstance(body, StartRanks):
        return body
    launch = msgspec.structs.replace(body.launch, env=dict.fromkeys(body.launch.env, ""))
    return msgspec.structs.replace(body, launch=launch)


def _agrees(command: Command, statement: bytes) -> bool:
    """The row's columns are those that were signed."""
    try:
        body, said = msgspec.convert(_body(command), Body), decode_statement(statement)
        told = msgspec.structs.replace(said, body=_without_values(said.body))
        return told == _statement(command, _without_values(body))
    except (ProtocolError, msgspec.ValidationError):
        return False
