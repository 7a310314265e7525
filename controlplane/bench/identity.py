"""Who an agent of a load test is: a key of its own and a real enrolment, as `agents.link` has them, kept in memory.

Its files would be fifty thousand for a large fleet, and their writes the disk's load and not the server's.
"""

from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import urlsplit

from agents.errors import EnrolmentError
from agents.link.enrol import Credential, Facts, enrolled, enrolment
from agents.link.identity import NodeIdentity
from agents.link.keys import NodeKey, rotation
from agents.link.pins import Pins
from controlplane.protocol.handshake import NewKey

TIMEOUT_S = 60.0
MAX_ANSWER_BYTES = 64 * 1024
BEHIND_TLS = {"X-Forwarded-Proto": "https"}
"""What a proxy that ends TLS says: a stack that is started on loopback has none in front of it."""


class _Counter:
    """Of sessions; the process that keeps it is never started again."""

    def __init__(self) -> None:
        self.value = 0

    def advance(self) -> int:
        """The next number."""
        self.value += 1
        return self.value


class HeldIdentity(NodeIdentity):
    """As its parent, without a disk."""

    def __init__(self, key: NodeKey, credential: Credential, *, server_host: str, machine_id: str) -> None:
        # Not the parent's own: that reads the files which there are none of here.
        self._server_host, self._machine_id = server_host.lower(), machine_id
        self._counter = _Counter()  # type: ignore[assignment]
        self.credential = credential
        self.pins = Pins(credential.server_keys, node_id=credential.node_id)
        self._key, self._next, self._use_next = key, None, False

    def rotate(self, nonce: bytes) -> NewKey:
        """The next key."""
        if self._next is None:
            self._next, self._use_next = NodeKey.fresh(), False
        return rotation(self._speaking, self._next, nonce=nonce, node_id=self.credential.node_id)

    def accepted(self, public_key: str) -> None:
        """It takes the place of the old one."""
        if self._next is not None and self._next.public_key == public_key:
            self._key, self._next, self._use_next = self._next, None, False


class Registrar:
    """Enrols one node after another over a connection that stays open. Not for several threads at once."""

    def __init__(self, url: str, *, behind_tls: bool) -> None:
        """`url` is http:// or https://. `behind_tls`: say that a proxy has ended TLS."""
        parts = urlsplit(url)
        assert parts.hostname is not None, "checked before"
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self.host = parts.hostname
        self._connection = kind(parts.hostname, parts.port, timeout=TIMEOUT_S)
        self._path = parts.path.rstrip("/") + "/agent/v1/enroll"
        self._headers = {"Content-Type": "application/json", **(BEHIND_TLS if behind_tls else {})}

    def enrol(self, said: Facts, join_token: str) -> HeldIdentity:
        """A node of the fleet. Raises EnrolmentError."""
        key = NodeKey.fresh()
        body = enrolment(join_token=join_token, key=key, old_key=None, said=said)
        try:
            answer, data = self._ask(body)
        except (OSError, HTTPException) as error:
            self._connection.close()
            raise EnrolmentError(f"cannot reach {self.host}: {error}", retry=True) from error
        credential = enrolled(answer.status, data, join_token=join_token)
        return HeldIdentity(key, credential, server_host=self.host, machine_id=said.machine_id)

    def close(self) -> None:
        """The connection."""
        self._connection.close()

    def _ask(self, body: bytes) -> tuple[HTTPResponse, bytes]:
        self._connection.request("POST", self._path, body, self._headers)
        answer = self._connection.getresponse()
        return answer, answer.read(MAX_ANSWER_BYTES)
