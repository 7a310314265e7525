"""One node for all tests of this folder, and the undisturbed run to compare with."""

import subprocess
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from controlplane.protocol.launch import TrainerConfig
from tests.forks import command
from tests.integration.trainer.cluster import Cluster, tiny_config
from tests.integration.trainer.node import Node
from trainer.reference import Losses


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("node"))
    yield node
    node.close()


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Losses of `tiny_config`'s whole run, one replica, nothing going wrong."""
    folder = tmp_path_factory.mktemp("reference")
    config = msgspec.structs.replace(tiny_config(folder), store="127.0.0.1:1")
    (folder / "config.json").write_bytes(msgspec.json.encode(config))
    arguments = ["--config", str(folder / "config.json"), "--out", str(folder / "losses.json")]
    subprocess.run(command("-m", "trainer.reference", *arguments), check=True, timeout=120)
    return msgspec.json.decode((folder / "losses.json").read_bytes(), type=Losses).losses


@pytest.fixture
def cluster(node: Node, tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Makes clusters of `tiny_config(**changes)` and ends them."""
    made: list[Cluster] = []

    def make(config: TrainerConfig | None = None, **changes: object) -> Cluster:
        # Names the job, so once in the session; short, as a socket's path ends at 107 bytes.
        folder = tmp_path / f"c{len(made)}-{zlib.crc32(str(tmp_path).encode()):08x}"
        folder.mkdir()
        made.append(Cluster(node, folder, config or tiny_config(folder, **changes)))
        return made[-1]

    yield make
    for each in made:
        each.close()
