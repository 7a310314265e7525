"""Asks the rendezvous store where its figures are, for the control plane's health.

A thread of the sentinel. The store has no database: it keeps what it says of itself under a key of its
own (`protocol.store_keys`), and this writes it down as the store's beat. A store that is away has none.
"""

import socket
import struct
import time

from django.conf import settings
from django.db import DatabaseError, close_old_connections

from controlplane.protocol.store_keys import METRICS_KEY, STORE_ITSELF, store_prefix, store_token
from controlplane.runtime import beats
from controlplane.runtime.logs import get

EVERY_S = 10.0
ANSWER_WITHIN_S = 2.0
MAX_ADDRESS_BYTES = 256
MAX_NAME = 54
"""Of a beat's name, which has 60 characters, the kind before it."""
VALIDATE, GET, MAGIC = 0, 3, 0x3C85F7CE
"""As torch's client speaks; `trainer.store.wire`."""
_log = get(__name__)


class NoAnswer(Exception):
    """The store closed the connection, or said what is no address."""


def keep_looking() -> None:
    """For ever, in a thread of its own."""
    while True:
        look()
        close_old_connections()
        time.sleep(EVERY_S)


def look() -> None:
    """One question, one beat. Never raises for a store or a database that is away."""
    try:
        address = metrics_of(settings.STORE_ADDRESS, settings.STORE_KEY)
        beats.beat("store", f"store:{settings.STORE_ADDRESS[-MAX_NAME:]}", {"metrics": address})
    except (OSError, ValueError, NoAnswer) as error:
        _log.info("the rendezvous store does not answer", store=settings.STORE_ADDRESS, error=str(error))
    except DatabaseError as error:
        _log.warning("the database is away", error=str(error))


def metrics_of(store: str, key: bytes) -> str:
    """host:port of the figures of the store at `store`, "" where it exports none. Raises OSError, ValueError
    (no such address) or NoAnswer."""
    name = f"/{store_prefix(STORE_ITSELF, store_token(key, STORE_ITSELF))}/{METRICS_KEY}".encode("ascii")
    host, _, port = store.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_WITHIN_S) as connection:
        connection.sendall(struct.pack("<BI", VALIDATE, MAGIC) + struct.pack("<BQ", GET, len(name)) + name)
        (size_bytes,) = struct.unpack("<Q", _exactly(connection, 8))
        if size_bytes > MAX_ADDRESS_BYTES:
            raise NoAnswer(f"an address of {size_bytes} bytes")
        return _exactly(connection, size_bytes).decode("ascii", "replace")


def _exactly(connection: socket.socket, size_bytes: int) -> bytes:
    found = b""
    while len(found) < size_bytes:
        more = connection.recv(size_bytes - len(found))
        if not more:
            raise NoAnswer("it closed the connection: another key than ours?")
        found += more
    return found
