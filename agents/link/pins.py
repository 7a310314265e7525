"""The server's keys as this node knows them, and the door at which commands are verified.

Called by the link for each `Order`, before anything reaches the core. The keys were pinned
at enrolment and are kept beside the credential; another set is taken only with the
signature of a pinned key. Without a pinned key every command is refused. It reads no clock
of this node: a command's age is told by the server's time, which comes with the `Order`.
"""

import time
from collections.abc import Callable

import msgspec

from agents.errors import SignatureRejected
from controlplane.protocol.commands import Body, CommandEnvelope, SignedCommand, StartRanks
from controlplane.protocol.errors import ProtocolError
from controlplane.protocol.signing import (
    KEY_BYTES,
    MAX_AHEAD_S,
    MAX_KEYS,
    SIGNATURE_BYTES,
    decode_statement,
    from_text,
    key_id,
    longest_ttl_s,
    signed_command,
    signed_keys,
)

# The server's processes take a new key up within this time, and may sign with the old one.
OVERLAP_S = 600.0


class Pins:
    """`node_id` as the credential has it; `keep` stores a renewed set with it."""

    def __init__(
        self, keys: tuple[str, ...], *, node_id: str, keep: Callable[[tuple[str, ...]], None] = lambda keys: None
    ) -> None:
        self.keys = keys
        self.node_id = node_id
        self._keep = keep
        self._retired: dict[str, float] = {}

    def verify(self, command: SignedCommand, server_time_s: float) -> CommandEnvelope:
        """The command, if the server gave it to this node. Raises SignatureRejected."""
        if not self.keys:
            raise SignatureRejected("no key of the server is pinned on this node: enrol it again")
        known = {key_id(key): key for key in (*self._still_good(), *self.keys)}
        public = known.get(command.key_id)
        if public is None or not signed_by(public, command.signature, signed_command(command.statement)):
            raise SignatureRejected("no key of the server that is pinned here has signed it")
        try:
            said = decode_statement(command.statement)
        except ProtocolError as error:
            raise SignatureRejected(f"signed, but not understood: {error}") from error
        if said.node_id != self.node_id:
            raise SignatureRejected(f"signed for {said.node_id}, not for this node")
        if said.command_id != command.command_id:
            raise SignatureRejected(f"signed as {said.command_id}")
        age_s = server_time_s - said.issued_at_s
        if not 0.0 < said.ttl_s <= longest_ttl_s(said):
            raise SignatureRejected(f"lives {said.ttl_s:.0f} s, at most {longest_ttl_s(said):.0f} s are allowed")
        if not age_s >= -MAX_AHEAD_S:
            raise SignatureRejected(
                f"issued {-age_s:.0f} s after it was sent: set the clocks of the server's machines right"
            )
        return CommandEnvelope(
            command_id=said.command_id,
            node_id=said.node_id,
            epoch=said.epoch,
            age_s=max(0.0, age_s),
            ttl_s=said.ttl_s,
            body=_with_store_token(said.body, command.store_token),
            job_id=said.job_id,
            attempt=said.attempt,
            decision_id=said.decision_id,
        )

    def renew(self, keys: tuple[str, ...], signature: str) -> bool:
        """Take another set if a pinned key has signed it. True when it was taken."""
        if keys == self.keys or not 0 < len(keys) <= MAX_KEYS or not all(_is_key(key) for key in keys):
            return False
        try:
            made = from_text(signature, SIGNATURE_BYTES)
        except ValueError:
            return False
        if not any(signed_by(public, made, signed_keys(keys)) for public in self.keys):
            return False
        until_s = time.monotonic() + OVERLAP_S
        self._retired = {key: until_s for key in self.keys if key not in keys}
        self._keep(keys)
        self.keys = keys
        return True

    def _still_good(self) -> tuple[str, ...]:
        """Keys replaced a moment ago."""
        now_s = time.monotonic()
        return tuple(key for key, until_s in self._retired.items() if now_s < until_s)


def _with_store_token(body: Body, token: str) -> Body:
    """The job's secret at the rendezvous store comes beside a start, as no row holds it."""
    if not isinstance(body, StartRanks) or not token:
        return body
    config = msgspec.structs.replace(body.launch.config, store_token=token)
    return StartRanks(msgspec.structs.replace(body.launch, config=config))


def signed_by(public: str, signature: bytes, data: bytes) -> bool:
    """Whether that key (base64url) has signed the data. False for a key that is none."""
    # Imported here: an agent that is given no command loads no cryptography.
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(from_text(public, KEY_BYTES)).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def _is_key(text: str) -> bool:
    try:
        return len(from_text(text, KEY_BYTES)) == KEY_BYTES
    except ValueError:
        return False
