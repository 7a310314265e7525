"""Who this node is, towards the server: its key, what it was enrolled as, whom it trusts.

Called by `agents.main` and by the link: once a session for the proof, and when the key is
rotated. Files in the state directory: `key` (private), `key.next` while it is being replaced,
`credential` (no secret), `session_counter`. Never talks to the network itself.
"""

import os
from pathlib import Path

import msgspec

from agents.errors import ConfigError
from agents.link.durable import sync_directory
from agents.link.enrol import Credential, store_credential
from agents.link.keys import NodeKey, SessionCounter, rotation, unsigned_proof
from agents.link.pins import Pins
from controlplane.protocol.frames import PROTOCOL_MAX, PROTOCOL_MIN
from controlplane.protocol.handshake import NewKey, Proof


def key_path(folder: Path) -> Path:
    """Where the private key is."""
    return folder / "key"


def own_key(folder: Path) -> NodeKey:
    """The key pair, made and stored on the first call. Raises ConfigError or OSError."""
    key = NodeKey.load(key_path(folder))
    if key is None:
        key = NodeKey.fresh()
        key.store(key_path(folder))
    return key


class NodeIdentity:
    """The enrolled node. `pins`: the server's public keys that were pinned here, with which what
    it signs is checked."""

    def __init__(self, folder: Path, credential: Credential, *, server_host: str, machine_id: str) -> None:
        self._folder = folder
        self._server_host = server_host.lower()
        self._machine_id = machine_id
        self._counter = SessionCounter(folder / "session_counter")
        self.credential = credential
        self.pins = self._pins_of(credential)
        key = NodeKey.load(key_path(folder))
        if key is None:
            raise ConfigError(f"{folder} has a credential and no key: remove the credential and enrol again")
        self._key = key
        # A rotation was under way: the server may know the new key already, so it is tried first.
        self._next = NodeKey.load(self._next_path)
        self._use_next = self._next is not None

    def begin_session(self) -> None:
        """Count it, durably. Blocking. Raises OSError: then no session can be proved."""
        self._counter.advance()

    def prove(self, nonce: bytes, *, boot_id: str, journal_id: str, tls_certificate: str = "") -> Proof:
        """The answer to a challenge of this session. `tls_certificate`: what this session's TLS
        showed, where the server asks for it."""
        proof = unsigned_proof(
            node_id=self.credential.node_id,
            boot_id=boot_id,
            journal_id=journal_id,
            machine_id=self._machine_id,
            counter=self._counter.value,
            protocol_min=PROTOCOL_MIN,
            protocol_max=PROTOCOL_MAX,
            server_host=self._server_host,
            tls_certificate=tls_certificate,
        )
        return self._speaking.proof(nonce, proof)

    def welcomed(self) -> None:
        """The server took the proof: with the key that it is being replaced by, perhaps."""
        if self._next is not None and self._use_next:
            self.accepted(self._next.public_key)

    def unknown(self) -> bool:
        """The server knows no such key. True: there is another one to try, at once."""
        if self._next is None:
            return False
        self._use_next = not self._use_next
        return not self._use_next

    def rotate(self, nonce: bytes) -> NewKey:
        """Make the next key (or take the one that was made and not yet accepted), on disk before
        it is told. Raises OSError."""
        if self._next is None:
            fresh = NodeKey.fresh()
            fresh.store(self._next_path)
            self._next, self._use_next = fresh, False
        return rotation(self._speaking, self._next, nonce=nonce, node_id=self.credential.node_id)

    def accepted(self, public_key: str) -> None:
        """The server has stored this key: it takes the place of the old one. Raises OSError."""
        if self._next is None or self._next.public_key != public_key:
            return
        os.replace(self._next_path, key_path(self._folder))
        sync_directory(self._folder)
        self._key, self._next, self._use_next = self._next, None, False

    def enrolled_again(self, key: NodeKey, credential: Credential) -> None:
        """Another key and perhaps another id from now on; the files are written by the caller."""
        self._key, self._next, self._use_next = key, None, False
        self._next_path.unlink(missing_ok=True)
        self.credential = credential
        self.pins = self._pins_of(credential)

    @property
    def _speaking(self) -> NodeKey:
        return self._next if self._next is not None and self._use_next else self._key

    @property
    def _next_path(self) -> Path:
        return self._folder / "key.next"

    def _pins_of(self, credential: Credential) -> Pins:
        """The server's keys that came with the enrolment; a renewed set is kept with it."""

        def keep(keys: tuple[str, ...]) -> None:
            self.credential = msgspec.structs.replace(self.credential, server_keys=keys)
            store_credential(self._folder / "credential", self.credential)

        return Pins(credential.server_keys, node_id=credential.node_id, keep=keep)
