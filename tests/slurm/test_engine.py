"""A control plane that asks a real Slurm for what it believes: a node that somebody drained there shows on the API with
reason and difference and stays as it is; one that Holdfast has out of service is drained by an intent and given back;
pilots are counted by what they are, in two pools that stay apart; and a slurmctld that is away changes nothing."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.demo.config import DemoConfig
from controlplane.demo.installation import Installation
from controlplane.sdk import Client
from tests.slurm.cluster import Cluster
from tests.slurm.test_observer import agent

pytestmark = pytest.mark.timeout(480)
WAIT_S = 90.0


@pytest.fixture
def server(cluster: Cluster, tmp_path: Path) -> Iterator[Installation]:
    """It asks Slurm every 5 s, as root, who may drain nodes."""
    asks = {"HOLDFAST_ENGINE": "slurm", "HOLDFAST_ENGINE_POLL_S": "5", "SLURM_CONF": cluster.environment["SLURM_CONF"]}
    config = DemoConfig(directory=tmp_path / "c", port=0, nodes=0, spare_nodes=0, demo=False, server_env=asks)
    with Installation(config) as made:
        made.one_time_password()
        yield made
    for node in ("n1", "n2"):
        if "DRAIN" in cluster.believed(node).states:
            cluster.run("scontrol", "update", f"nodename={node}", "state=undrain")


def array(cluster: Cluster, *, running: int, elements: int, server: str) -> str:
    """Elements that Slurm takes for pilots, and which only sleep."""
    return cluster.run(
        "sbatch", "--parsable", f"--array=1-{elements}%{running}", "--job-name=holdfast-pilots", "--exclusive",
        f"--comment=holdfast:server={server};grace_s=45", "--time=30", "--output=/dev/null", "--chdir=/",
        "--exclude=n[1-3]", "--nodes=1", "--wrap=sleep 600",
    )  # fmt: skip


class Seen:
    """What the API says, and how long a test waits for it."""

    def __init__(self, cluster: Cluster, client: Client) -> None:
        self.cluster, self.client = cluster, client

    def engine(self) -> Any:
        (found,) = self.client.engines.list()
        return found

    def pools(self) -> dict[str, Any]:
        return {pool.id: pool for pool in self.engine().pools}

    def believed(self) -> Any:
        return self.client.nodes.get("n2").engine

    def wait(self, what: str, ask: Callable[[], Any]) -> Any:
        try:
            return self.cluster.wait(what, ask, timeout_s=WAIT_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.engine()}") from error


@pytest.fixture
def seen(cluster: Cluster, server: Installation, tmp_path: Path) -> Iterator[Seen]:
    """With a resident agent on n2, which waits for an administrator: out of service, so that an intent drains it."""
    with Client(server.addresses.web, token=server.api_token("admin")) as client, agent(server, tmp_path, "n2"):
        found = Seen(cluster, client)
        enrolled: Callable[[], bool] = lambda: any(n.name == "n2" and n.connected for n in client.nodes.list())  # noqa: E731
        found.wait("n2 has enrolled", enrolled)
        yield found


def test_what_slurm_believes_is_on_the_api_and_what_holdfast_wants_of_it_is_done(seen: Seen) -> None:
    cluster, client, wait = seen.cluster, seen.client, seen.wait
    wait("an intent has drained n2", lambda: cluster.believed("n2").ours)
    intent = wait("it is done", lambda: next((each for each in seen.engine().intents if each.state == "done"), None))
    assert intent.kind == "mark_bad" and intent.id in str(cluster.believed("n2").reason)
    client.nodes.confirm(client.nodes.get("n2").id, "the machine in rack 2")
    wait("n2 is given back", lambda: not cluster.believed("n2").drained)
    wait("they agree", lambda: (found := seen.believed()) and not found.drained and found.differs == "")

    cluster.run("scontrol", "update", "nodename=n2", "state=drain", "reason=fan is loud")
    shown = wait("the drain is on the API", lambda: found if (found := seen.believed()).drained else None)
    assert (shown.reason, shown.reason_by, shown.ours) == ("fan is loud", "root", False)
    assert "Slurm gives it no job" in shown.differs and "Holdfast leaves that alone" in shown.differs
    client.nodes.cordon(client.nodes.get("n2").id, "so it is")
    wait("it is seen again", lambda: seen.believed().seen_at > shown.seen_at and seen.believed().differs == "")
    client.nodes.uncordon(client.nodes.get("n2").id, "a new fan")
    with cluster.without_controller():
        wait("it says that nobody answers", lambda: seen.engine().error)
        assert seen.believed().drained and seen.believed().reason == "fan is loud", "no news is no news"
    wait("it answers again", lambda: seen.engine().error == "")
    assert cluster.believed("n2").reason == "fan is loud", "what somebody else drained is left alone"


def test_pools_are_counted_apart_with_slurms_reason_for_waiting_and_are_resized(
    cluster: Cluster, server: Installation
) -> None:
    with Client(server.addresses.web, token=server.api_token("admin")) as client:
        seen = Seen(cluster, client)
        mine = array(cluster, running=2, elements=4, server=server.addresses.web)
        counts: Callable[[], Any] = lambda: [  # noqa: E731
            (pool.idle + pool.other, pool.cold) for name, pool in seen.pools().items() if name == mine
        ]
        seen.wait("its pilots are listed", lambda: counts() == [(2, 2)])
        client.engines.resize(mine, 3, "a deadline")
        seen.wait("three run", lambda: counts() == [(3, 1)])
        other = array(cluster, running=1, elements=2, server=server.addresses.web)
        cluster.run("scontrol", "hold", f"{other}_2")
        seen.wait("one is held", lambda: other in (found := seen.pools()) and found[other].held == 1)
        pools = seen.pools()
        nodes = [{pilot.node_name for pilot in pools[name].elements if pilot.node_name} for name in (mine, other)]
        assert nodes[0] and nodes[0].isdisjoint(nodes[1]), "two pools' pilots never mix"
        waits = next(pilot for pilot in pools[other].elements if pilot.index == 1)
        assert waits.waits and waits.kind == "cold", "Slurm's own reason"
        assert all(pilot.ends_at and pilot.grace_s == 45 for pilot in pools[mine].elements if pilot.node_name)
        client.engines.resize(mine, 1, "it is over")
        # Holdfast does not know these nodes, so no pilot of theirs is a spare that it could give back.
        throttled: Callable[[], str] = lambda: cluster.run("scontrol", "-o", "show", "job", mine)  # noqa: E731
        seen.wait("one at a time", lambda: "ArrayTaskThrottle=1 " in throttled())
        cluster.run("scancel", mine, other)
        seen.wait("the pools are gone", lambda: seen.pools().keys().isdisjoint((mine, other)))
