"""What the demo is made of, and where it keeps its files."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """How agents on other machines reach an installation: `host` as they name it, `bind` the address that is listened
    on for them, `port` for TLS by `certificate` and `key` (PEM)."""

    host: str
    bind: str
    port: int
    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoConfig:
    """`nodes` carry jobs, `spare_nodes` more of the same; `devices_per_node` simulated
    GPUs each. `directory` holds everything the demo writes. `reference_when`: as
    HOLDFAST_REFERENCE_WHEN; "ended" leaves all cores to the ranks while a job lasts. `reference_runs`:
    as HOLDFAST_REFERENCE_RUNS.
    `trainer_nice`: as HOLDFAST_TRAINER_NICE; here ranks share the cores with the control plane,
    on GPU nodes they have their own. Much of it, and each decision holds a step up. `server_env`: more
    environment for web, sentinel, worker and beat. `outside` None: loopback alone. `demo` False: no panel of faults,
    and no agents are started here."""

    directory: Path
    host: str = "127.0.0.1"
    port: int = 8000
    nodes: int = 4
    spare_nodes: int = 1
    devices_per_node: int = 2
    submit_job: bool = True
    database_url: str = ""
    reference_when: str = "resolved"
    reference_runs: str = "auto"
    trainer_nice: int = 3
    server_env: Mapping[str, str] = field(default_factory=dict)
    outside: Outside | None = None
    demo: bool = True

    @property
    def node_names(self) -> tuple[str, ...]:
        """node-1 .. node-n, the spare ones last."""
        return tuple(f"node-{number}" for number in range(1, self.nodes + self.spare_nodes + 1))

    @property
    def requests(self) -> Path:
        """The page's chaos panel leaves its orders to the supervisor here."""
        return self.directory / "requests"

    @property
    def logs(self) -> Path:
        """One file a process."""
        return self.directory / "logs"

    def node_state(self, node: str) -> Path:
        """An agent's journal, credential, sockets and rank logs."""
        return self.directory / "nodes" / node
