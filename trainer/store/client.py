"""A client of the rendezvous store that one part of a rank keeps for itself.

The store hangs up on whoever names no key of a job within a minute of connecting. A donor, or the
writer of a checkpoint, may have nothing to say for hours, so its client says whose it is at once.
The store may also end and be started again, empty: torch's client does not connect again, so each
word that finds its connection broken is said once more on a new one. What was said before is gone
then; who needs it to stay says it again.
"""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from torch.distributed import DistNetworkError

HELLO = "hello"
TRIES = 3
Answer = TypeVar("Answer")


class OwnClient:
    """A connection beside that of `store` (a torch store), known to the server from now on. Safe to call
    from several threads. Without a server each method waits as long as `store`'s timeout says, then
    raises RuntimeError."""

    def __init__(self, store: Any) -> None:
        self._origin, self._lock = store, threading.Lock()
        self._client = self.clone()

    def clone(self) -> Any:
        """One more connection, a torch store, known too; it is the caller's to keep."""
        client = self._origin.clone()
        client.check([HELLO])
        return client

    def set(self, key: str, value: str | bytes) -> None:
        """Write it. The server answers nothing to that, so it is asked something after it: only then
        is it known that the connection had not been broken before."""

        def word(client: Any) -> None:
            client.set(key, value)
            client.check([HELLO])

        self._say(word)

    def get(self, key: str) -> bytes:
        """Read it; waits for a key that is not there, as torch's client does."""
        return self._say(lambda client: bytes(client.get(key)))

    def check(self, keys: list[str]) -> bool:
        """All of them are there."""
        return self._say(lambda client: bool(client.check(keys)))

    def delete_key(self, key: str) -> bool:
        """Remove it; False when it was not there."""
        return self._say(lambda client: bool(client.delete_key(key)))

    def _say(self, word: Callable[[Any], Answer]) -> Answer:
        for _ in range(TRIES - 1):
            client = self._client
            try:
                return word(client)
            except DistNetworkError:
                self._connect_instead_of(client)
        return word(self._client)

    def _connect_instead_of(self, broken: Any) -> None:
        with self._lock:
            if self._client is broken:
                self._client = self.clone()
