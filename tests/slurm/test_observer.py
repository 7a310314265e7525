"""The hooks of deploy/slurm in a real Slurm, beside a control plane that stands already: a node that Holdfast has
quarantined refuses its job and is drained with our reason, comes back when it is confirmed, and nothing changes while
the server is away."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controlplane.demo.config import DemoConfig
from controlplane.demo.installation import Installation
from controlplane.sdk import Client
from tests.house.tree import ROOT
from tests.slurm.cluster import GPUS, Cluster

pytestmark = pytest.mark.timeout(480)
WAIT_S = 90.0


@contextlib.contextmanager
def agent(server: Installation, folder: Path, name: str) -> Iterator[None]:
    """A resident agent, whose node waits for an administrator."""
    token = folder / "join-token"
    token.write_text(server.manage("create_join_token", "--cidr", "127.0.0.0/8", "--hold").split()[-1])
    argv = (
        sys.executable, "-m", "agents", "--server", server.addresses.web.replace("http", "ws"), "--name", name,
        "--join-token-file", str(token), "--state-dir", str(folder / "a"), "--probe", "simulated",
        "--devices", str(GPUS), "--metrics-bind", "off",
    )  # fmt: skip
    with (folder / "agent.log").open("wb") as log:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def job_on(cluster: Cluster, node: str) -> str:
    """A short job of root's."""
    argv = ("--parsable", f"--nodelist={node}", "--output=/dev/null", "--chdir=/", "--wrap=true")
    return cluster.run("sbatch", *argv)


def state_of(cluster: Cluster, job: str) -> str:
    text = cluster.run("scontrol", "--oneliner", "show", "job", job)
    return text.split("JobState=")[1].split()[0]


def test_a_quarantined_node_refuses_and_is_drained_comes_back_and_no_outage_touches_it(
    cluster: Cluster, hooks: Callable[[str], None], tmp_path: Path
) -> None:
    cluster.run("scontrol", "update", "nodename=n5", "state=drain", "reason=fan")
    config = DemoConfig(directory=tmp_path / "c", port=0, nodes=0, spare_nodes=0, demo=False)
    with Installation(config) as server, agent(server, tmp_path, "n2"):
        server.one_time_password()
        settings = cluster.root / "slurm.toml"
        settings.touch(mode=0o600)
        settings.write_text(f'url = "{server.addresses.web}"\ntoken = "{server.api_token("read")}"\n')
        client = Client(server.addresses.web, token=server.api_token("admin"))

        def in_state(state: str) -> bool:
            return any(node.name == "n2" and node.connected and node.state == state for node in client.nodes.list())

        cluster.wait("n2 waits for an administrator", lambda: in_state("quarantined"), timeout_s=WAIT_S)
        hooks("prolog")
        job = job_on(cluster, "n2")
        cluster.wait("the prolog has drained n2", lambda: cluster.believed("n2").ours, timeout_s=WAIT_S)
        cluster.wait("its job is in the queue again", lambda: state_of(cluster, job) == "PENDING", timeout_s=WAIT_S)
        reason = cluster.believed("n2").reason
        assert reason is not None and reason.startswith("holdfast: quarantined. it enrolled with join token")

        hooks("healthcheck")
        hooks("epilog")
        client.nodes.confirm(client.nodes.get("n2").id, "the machine in rack 2")
        cluster.wait("n2 is back", lambda: not cluster.believed("n2").drained, timeout_s=WAIT_S)
        cluster.run("scontrol", "update", f"jobid={job}", "StartTime=now")
        cluster.wait("the job ran", lambda: state_of(cluster, job) == "COMPLETED", timeout_s=WAIT_S)
        client.nodes.cordon(client.nodes.get("n2").id, "a new cable")
        cluster.wait("the health check has drained n2", lambda: cluster.believed("n2").ours, timeout_s=WAIT_S)
        client.close()

    kept = cluster.believed("n2")
    for node in ("n1", "n3"):
        ran = job_on(cluster, node)
        cluster.wait(f"with the server away {node} runs jobs", lambda ran=ran: state_of(cluster, ran) == "COMPLETED",
                     timeout_s=WAIT_S)  # fmt: skip
    assert cluster.believed("n2") == kept and "a new cable" in (kept.reason or "")
    assert cluster.believed("n5").reason == "fan", "what somebody else drained is left alone"
    assert not any(cluster.believed(node).drained for node in ("n1", "n3", "n4", "n6"))
