"""A control plane that asks a real Slurm for what it believes: a node that somebody drained there shows on the API with
reason and difference and stays as it is; one that Holdfast has out of service is drained by an intent and given back;
pilots are counted by what they are, in two pools that stay apart; and a slurmctld that is away changes nothing."""

from collections.abc import Iterator
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


def test_what_slurm_believes_is_on_the_api_and_what_holdfast_wants_of_it_is_done(
    cluster: Cluster, server: Installation, tmp_path: Path
) -> None:
    client = Client(server.addresses.web, token=server.api_token("admin"))

    def engine() -> Any:
        (found,) = client.engines.list()
        return found

    def believed() -> Any:
        return client.nodes.get("n2").engine

    def wait(what: str, ask: Any) -> Any:
        try:
            return cluster.wait(what, ask, timeout_s=WAIT_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{engine()}") from error

    with agent(server, tmp_path, "n2"):
        wait("n2 has enrolled", lambda: any(node.name == "n2" and node.connected for node in client.nodes.list()))
        # It waits for an administrator, so it is out of service.
        wait("an intent has drained n2", lambda: cluster.believed("n2").ours)
        intent = wait("it is done", lambda: next((each for each in engine().intents if each.state == "done"), None))
        assert intent.kind == "mark_bad" and intent.id in str(cluster.believed("n2").reason)
        client.nodes.confirm(client.nodes.get("n2").id, "the machine in rack 2")
        wait("n2 is given back", lambda: not cluster.believed("n2").drained)
        wait("they agree", lambda: believed() is not None and not believed().drained and believed().differs == "")

        cluster.run("scontrol", "update", "nodename=n2", "state=drain", "reason=fan is loud")
        shown = wait("the drain is on the API", lambda: believed() if believed().drained else None)
        assert (shown.reason, shown.reason_by, shown.ours) == ("fan is loud", "root", False)
        assert "Slurm gives it no job" in shown.differs and "Holdfast leaves that alone" in shown.differs
        client.nodes.cordon(client.nodes.get("n2").id, "so it is")
        client.nodes.uncordon(client.nodes.get("n2").id, "a new fan")

        mine = array(cluster, running=2, elements=4, server=server.addresses.web)
        wait("its pilots are listed", lambda: [(p.hot + p.other, p.cold) for p in engine().pools] == [(2, 2)])
        client.engines.resize(mine, 3, "a deadline")
        wait("three run", lambda: [(p.hot + p.other, p.cold) for p in engine().pools] == [(3, 1)])
        other = array(cluster, running=1, elements=2, server=server.addresses.web)
        cluster.run("scontrol", "hold", f"{other}_2")
        pools = wait("both pools are listed", lambda: {p.id: p for p in engine().pools if len(engine().pools) == 2})
        wait("one is held", lambda: next(p for p in engine().pools if p.id == other).held == 1)
        nodes = [{pilot.node_name for pilot in pool.elements if pilot.node_name} for pool in pools.values()]
        assert nodes[0].isdisjoint(nodes[1]), "two pools' pilots never mix"
        waits = next(pilot for pilot in pools[other].elements if pilot.index == 1)
        assert waits.waits and waits.kind == "cold", "Slurm's own reason"
        assert all(pilot.ends_at and pilot.grace_s == 45 for pilot in pools[mine].elements if pilot.node_name)

        assert cluster.believed("n2").reason == "fan is loud", "what somebody else drained is left alone"
        before = (believed().state, believed().reason)
        with cluster.without_controller():
            wait("it says that nobody answers", lambda: engine().error)
            assert (believed().state, believed().reason) == before and len(engine().pools) == 2
        wait("it answers again", lambda: engine().error == "")
        client.engines.resize(mine, 1, "it is over")
        # Nothing of Holdfast's runs on these nodes, so it knows of no spare: they end by themselves.
        wait("one at a time", lambda: "ArrayTaskThrottle=1 " in cluster.run("scontrol", "-o", "show", "job", mine))
        cluster.run("scancel", mine, other)
        wait("the pools are gone", lambda: engine().pools == [])
    client.close()
