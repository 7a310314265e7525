"""The node's own key pair: made here, kept here, never sent.

Called by `agents.main` (before it enrols) and by the link (once a session, and when the key is
rotated). The private key is a file of mode 0600 in the state directory; the server knows the
public key alone. Nothing here is done per frame.
"""

import os
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from agents.errors import ConfigError
from agents.link.durable import read_private, write_file
from controlplane.protocol.bounds import MAX_INT
from controlplane.protocol.handshake import (
    NewKey,
    Proof,
    encode_bytes,
    enrolment_statement,
    rotation_statement,
    session_statement,
)

_DIGITS = 20
_NO_SIGNATURE = bytes(64)


class NodeKey:
    """One Ed25519 key pair."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        raw = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.public_key = encode_bytes(raw)

    @classmethod
    def fresh(cls) -> "NodeKey":
        """From the operating system's randomness."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: Path) -> "NodeKey | None":
        """None: there is none yet. Raises ConfigError if others can read it, or it is damaged."""
        data = read_private(path)
        if data is None:
            return None
        try:
            private = load_pem_private_key(data, password=None)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{path} is no private key ({error}): remove the state directory, enrol again") from error
        if not isinstance(private, Ed25519PrivateKey):
            raise ConfigError(f"{path} is no Ed25519 key: remove the state directory and enrol again")
        return cls(private)

    def store(self, path: Path) -> None:
        """Durable, atomic, mode 0600. Raises OSError."""
        write_file(path, self._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))

    def sign(self, statement: bytes) -> bytes:
        """64 bytes."""
        return self._private.sign(statement)

    def proof(self, nonce: bytes, unsigned: Proof) -> Proof:
        """The same proof, signed for this challenge."""
        return signed(unsigned, self.sign(session_statement(nonce, unsigned)))

    def enrolment(self, *, token_sha256: str, node_name: str, public_key: str, boot_id: str) -> str:
        """Possession of this key, for an enrolment with `public_key`; base64url."""
        statement = enrolment_statement(
            token_sha256=token_sha256, node_name=node_name, public_key=public_key, boot_id=boot_id
        )
        return encode_bytes(self.sign(statement))


def signed(proof: Proof, signature: bytes) -> Proof:
    """The same proof with this signature."""
    return Proof(**{name: getattr(proof, name) for name in proof.__struct_fields__} | {"signature": signature})


def unsigned_proof(**fields: object) -> Proof:
    """A proof to be signed; see `protocol.handshake.Proof` for its fields."""
    return Proof(signature=_NO_SIGNATURE, **fields)  # type: ignore[arg-type]


def rotation(old: NodeKey, new: NodeKey, *, nonce: bytes, node_id: str) -> NewKey:
    """What tells the server that `new` takes the place of `old`."""
    statement = rotation_statement(nonce=nonce, node_id=node_id, new_key=new.public_key)
    return NewKey(public_key=new.public_key, by_old=old.sign(statement), by_new=new.sign(statement))


class SessionCounter:
    """Grows by one with every session, on disk before it is shown to the server. The file keeps
    its size and is written in place, so that a full disk cannot stop it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.value = self._read()

    def advance(self) -> int:
        """The next number, durably. Raises OSError."""
        self.value = min(self.value + 1, MAX_INT)
        self.keep()
        return self.value

    def keep(self) -> None:
        """As it is, durably: it has its place on disk from then on. Raises OSError."""
        text = f"{self.value:0{_DIGITS}d}\n".encode()
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(descriptor, text, 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _read(self) -> int:
        try:
            text = self._path.read_text(encoding="ascii", errors="replace")
        except FileNotFoundError:
            return 0
        try:
            return int(text)
        except ValueError:
            # The server will see a number that went back, and a person decides.
            return 0
