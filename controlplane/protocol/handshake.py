"""Proof of a node's identity: who speaks, shown with the key that was made on the node.

1. The server sends a `Challenge` as the first message of every session; 2. the agent answers
with a `Proof`, signed with its Ed25519 key, and goes on with its hello. The server may
challenge again at any time. `RotateKey`, `NewKey` and `KeyAccepted` replace the key. No
credential ever travels; what is signed is built by the functions of this module, on both
sides. Pure: keys and signatures are made in `agents.link.keys` and `controlplane.fleet.keys`.

Channel binding (RFC 5056, as `tls-server-end-point` of RFC 5929 with SHA-256 throughout): an agent
on TLS says `CHANNEL_HEADER` when it connects, a server that wants it sets `bind_tls`, and the proof
has `tls_certificate`. Both fields are left out where they say nothing, and an empty
`tls_certificate` is not part of what is signed, so that neighbouring releases never meet them.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Annotated

import msgspec
from msgspec import Meta

from controlplane.protocol.bounds import MAX_INT, DialledHost, Fingerprint, Id, IdOrNone, PublicKey

KEY_BYTES = 32
SIGNATURE_BYTES = 64
NONCE_BYTES = 32
MAX_PROOF_BYTES = 4096
SESSION_CONTEXT = "holdfast-agent-v1"
ENROLMENT_CONTEXT = "holdfast-enrol-v1"
ROTATION_CONTEXT = "holdfast-node-key-v1"
CHANNEL_HEADER = "X-Holdfast-Channel"
CHANNEL_CERTIFICATE = "tls-certificate"
"""Name and value by which an agent offers to bind its proof; an offer, and no proof of anything."""

Nonce = Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
Signature = Annotated[bytes, Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]
Version = Annotated[int, Meta(ge=0, le=1_000_000)]

_pack = msgspec.msgpack.Encoder().encode


class Challenge(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type", tag="challenge"
):
    """Sign this. `nonce` is random and good for one answer on this session. `bind_tls`: with the
    server's TLS certificate, as this connection shows it; asked only of agents that offered it."""

    nonce: Nonce
    bind_tls: bool = False


class Proof(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    kw_only=True,
    tag_field="type",
    tag="proof",
):
    """The answer to a `Challenge`. `counter` grows with every session of this key, durably;
    `server_host` is the host name that the agent dialled; `signature` is over
    `session_statement`. `machine_id` "" where the machine has none. `tls_certificate`: of the
    server's end of the agent's own TLS connection, "" where it was not asked for or there is no TLS."""

    node_id: Id
    boot_id: Id
    journal_id: Id
    machine_id: IdOrNone = ""
    counter: Annotated[int, Meta(ge=1, le=MAX_INT)]
    protocol_min: Version
    protocol_max: Version
    server_host: DialledHost
    signature: Signature
    tls_certificate: Fingerprint = ""


class RotateKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="rotate_key"):
    """Make a new key pair and answer with a `NewKey` for this `nonce`."""

    nonce: Nonce


class NewKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="type", tag="new_key"):
    """The node's next public key; the old key and the new one both sign `rotation_statement`."""

    public_key: PublicKey
    by_old: Signature
    by_new: Signature


class KeyAccepted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="key_accepted"):
    """This is the node's key now. The older one is good for a short time more, and only then
    may the agent forget it."""

    public_key: PublicKey


def session_statement(nonce: bytes, proof: Proof) -> bytes:
    """What a `Proof` signs: every field of it and the challenge; the certificate only where there is one."""
    fields = [
        SESSION_CONTEXT, nonce, proof.node_id, proof.boot_id, proof.journal_id, proof.machine_id, proof.counter,
        proof.protocol_min, proof.protocol_max, proof.server_host,
    ]  # fmt: skip
    if proof.tls_certificate:
        fields.append(proof.tls_certificate)
    return _pack(fields)


def enrolment_statement(*, token_sha256: str, node_name: str, public_key: str, boot_id: str) -> bytes:
    """What an enrolment signs with the new key (and, for a known node, with its old one)."""
    return _pack([ENROLMENT_CONTEXT, token_sha256, node_name, public_key, boot_id])


def rotation_statement(*, nonce: bytes, node_id: str, new_key: str) -> bytes:
    """What old and new key sign when the one replaces the other."""
    return _pack([ROTATION_CONTEXT, nonce, node_id, new_key])


def encode_bytes(data: bytes) -> str:
    """Base64url without padding."""
    return urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def decode_bytes(text: str, length: int) -> bytes:
    """The inverse. Raises ValueError unless it is `length` bytes in exactly this spelling."""
    data = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    if len(data) != length or encode_bytes(data) != text:
        raise ValueError(f"not {length} bytes in base64url")
    return data
