"""What the server's signature covers, as bytes. The server signs them, agents verify them.

A command is signed where it is decided, as a `CommandStatement` in MessagePack; those very
bytes travel and are verified before they are decoded, so no two sides need agree on a
canonical form. Each use of the key has a context of its own in front, so that a signature
given for one thing is none for another. This module holds no key and calculates nothing.
"""

import base64
import binascii

import msgspec

from controlplane.protocol.codec import check_config, decoded
from controlplane.protocol.commands import Body, CommandStatement, StartRanks, StopRanks
from controlplane.protocol.frames import MAX_SERVER_MESSAGE_BYTES

COMMAND_CONTEXT = b"holdfast-command-v1"
BROADCAST_CONTEXT = b"holdfast-broadcast-v1"
KEYS_CONTEXT = b"holdfast-server-keys-v1"
END_CONTEXT = b"holdfast-job-end-v1"
KEY_BYTES = 32
SIGNATURE_BYTES = 64
MAX_KEYS = 4
KEY_ID_CHARS = 16
# Stops wait for a node that is out of reach, and name the one incarnation that they end:
# to repeat one late ends nothing else. Nothing else may be acted on so late.
MAX_TTL_S = 300.0
MAX_STOP_TTL_S = 3600.0
# How far the clocks of the server's own machines may be apart.
MAX_AHEAD_S = 60.0
SIGNATURE_REJECTED = "signature_rejected"

_pack = msgspec.msgpack.Encoder().encode
_statement = msgspec.msgpack.Decoder(CommandStatement)


def encode_statement(statement: CommandStatement) -> bytes:
    """The bytes that are signed, stored and sent."""
    return _pack(statement)


class Alike(msgspec.Struct, frozen=True):
    """A `CommandStatement`, field for field, whose body is encoded already (`encode_body`)."""

    command_id: str
    node_id: str
    epoch: int
    issued_at_s: float
    ttl_s: float
    body: msgspec.Raw
    job_id: str
    attempt: int
    decision_id: str


def encode_body(body: Body) -> bytes:
    """A command's body as it stands in its statement."""
    return _pack(body)


def encode_alike(said: Alike, *, command_id: str, node_id: str) -> bytes:
    """As `encode_statement`, of the same to this node."""
    return _pack(
        Alike(
            command_id, node_id, said.epoch, said.issued_at_s, said.ttl_s, said.body, said.job_id, said.attempt,
            said.decision_id,
        )
    )  # fmt: skip


def decode_statement(data: bytes) -> CommandStatement:
    """Raises FrameTooLarge or MalformedFrame."""
    said: CommandStatement = decoded(_statement.decode, data, MAX_SERVER_MESSAGE_BYTES, "command")
    if isinstance(said.body, StartRanks):
        check_config(said.body.launch.config, "command")
    return said


def signed_command(statement: bytes) -> bytes:
    """What the signature of a command is over."""
    return COMMAND_CONTEXT + b"\0" + statement


def signed_broadcast(said: bytes) -> bytes:
    """What the signature of the same command to many nodes is over, until each has its own. No agent takes it."""
    return BROADCAST_CONTEXT + b"\0" + said


def signed_keys(keys: tuple[str, ...]) -> bytes:
    """What the signature of a set of the server's public keys is over."""
    return KEYS_CONTEXT + b"\0" + "\n".join(keys).encode("ascii", "replace")


def signed_end(job_id: str, attempt: int, end: str) -> bytes:
    """What the signature of a job's end is over. A node keeps it, and shows it to a server whose database was
    set back: its own word alone ends no job."""
    return END_CONTEXT + b"\0" + f"{job_id}\n{attempt}\n{end}".encode("ascii", "replace")


def longest_ttl_s(statement: CommandStatement) -> float:
    """How long a command of this kind may live, in seconds."""
    return MAX_STOP_TTL_S if isinstance(statement.body, StopRanks) else MAX_TTL_S


def key_id(public_key: str) -> str:
    """The short name of a public key; which one signed."""
    return public_key[:KEY_ID_CHARS]


def to_text(data: bytes) -> str:
    """Base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def from_text(text: str, size: int) -> bytes:
    """`size` bytes from base64url. Raises ValueError for anything else."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise ValueError(f"not base64url: {error}") from error
    if len(data) != size or to_text(data) != text:
        raise ValueError(f"not the base64url text of {size} bytes")
    return data
