"""A network between two processes of a test: a TCP relay whose line can be cut and mended."""

import contextlib
import socket
import threading
from collections.abc import Iterator


class Relay:
    """Hands on what comes to `port` of loopback to `target`. While it is cut nobody is connected: who
    connects is closed at once, as by a proxy whose back end is gone."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(self._listener.getsockname()[1])
        self._is_cut = False
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        """Nothing goes through meanwhile, and what was connected is connected no more."""
        with self._lock:
            self._is_cut = True
            gone = list(self._open)
        for end in gone:
            _close(end)
        try:
            yield
        finally:
            with self._lock:
                self._is_cut = False

    def close(self) -> None:
        """For good."""
        with self._lock:
            self._is_cut = True
            gone = list(self._open)
        for end in (self._listener, *gone):
            _close(end)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        try:
            far = socket.create_connection(self._target, timeout=10)
        except OSError:
            _close(near)
            return
        far.settimeout(None)
        with self._lock:
            cut = self._is_cut
            if not cut:
                self._open |= {near, far}
        if cut:
            _close(near)
            _close(far)
            return
        for here, there in ((near, far), (far, near)):
            threading.Thread(target=self._hand_on, args=(here, there), daemon=True).start()

    def _hand_on(self, here: socket.socket, there: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := here.recv(65_536):
                there.sendall(data)
        for end in (here, there):
            _close(end)
        with self._lock:
            self._open -= {here, there}


def _close(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        end.close()
