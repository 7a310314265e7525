"""The agent's end of a rank's socket, for tests of what a program says and hears."""

import socket
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from controlplane.protocol.codec import decode_line, encode_line
from controlplane.protocol.launch import RankRef, Resume, TrainerConfig
from controlplane.protocol.rank import FromRank, RankHello, ToRank
from controlplane.protocol.spec import Checkpoint, Model, Parallelism, Training

REF = RankRef("job_1", 1, 0, 3, 0)
WAIT_S = 20.0


class FakeAgent:
    """Listens, keeps what is said, says what it is told to; may go away and come back."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "agent.sock"
        self.said: list[FromRank] = []
        self.changed = threading.Condition()
        self._connection: socket.socket | None = None
        self.open()

    def open(self) -> None:
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen()
        threading.Thread(target=self._serve, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        self.path.unlink(missing_ok=True)
        self._listener.close()
        if self._connection is not None:
            self._connection.shutdown(socket.SHUT_RDWR)

    def environment(
        self,
        *,
        rank: int = 0,
        world_size: int = 1,
        attempt: int = REF.attempt,
        parallelism: Parallelism | None = None,
        checkpoint_dir: str | None = None,
        resume: Resume | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> dict[str, str]:
        config = TrainerConfig(
            model=Model(),
            parallelism=parallelism or Parallelism(),
            training=Training(),
            checkpoint=checkpoint or Checkpoint(),
            checkpoint_dir=checkpoint_dir or str(self.folder / "checkpoints"),
            replicas=1,
            store="127.0.0.1:1",
            resume=resume,
        )
        return {
            "HOLDFAST_SOCKET": str(self.path),
            "HOLDFAST_REF": msgspec.json.encode(msgspec.structs.replace(REF, rank=rank, attempt=attempt)).decode(),
            "HOLDFAST_CONFIG": msgspec.json.encode(config).decode(),
            "WORLD_SIZE": str(world_size),
        }

    def tell(self, message: ToRank) -> None:
        self.until(lambda: self.of(RankHello))
        assert self._connection is not None
        self._connection.sendall(encode_line(message))

    def of(self, kind: type) -> list:
        return [message for message in self.said if isinstance(message, kind)]

    def until(self, holds: Callable[[], object]) -> object:
        with self.changed:
            assert self.changed.wait_for(holds, WAIT_S), self.said[-5:]
            return holds()

    def _serve(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        self._connection = connection
        try:
            for line in connection.makefile("rb"):
                with self.changed:
                    self.said.append(decode_line("from_rank", line))
                    self.changed.notify_all()
        except OSError:
            return
