"""`holdfast slurm pilots` on a real Slurm, beside a control plane that stands: an array of one-node jobs carries a job,
a node that Holdfast takes out is drained and replaced by a cold pilot, and the next array has the nodes of before."""

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.demo.config import DemoConfig
from controlplane.demo.driver import Driver
from controlplane.demo.installation import Installation
from tests.scenes.helpers import scene_job, submit_and_train, wait_for_step
from tests.slurm.cluster import GPUS, USER, Cluster
from tests.slurm.run import PYTHON, assert_nothing_is_left

pytestmark = pytest.mark.timeout(420)
WAIT_S = 120.0


@pytest.fixture
def server(cluster: Cluster, tmp_path: Path) -> Iterator[Installation]:
    """One that stands, with checkpoints where the user's ranks can write them."""
    checkpoints = cluster.folder / "piloted"
    checkpoints.mkdir()
    shutil.chown(checkpoints, USER)
    settings = {"HOLDFAST_CHECKPOINT_ROOT": str(checkpoints)}
    config = DemoConfig(directory=tmp_path / "c", port=0, nodes=0, spare_nodes=0, demo=False, server_env=settings)
    with Installation(config) as made:
        made.one_time_password()
        yield made


class Array:
    """One submission of pilots."""

    def __init__(self, cluster: Cluster, server: Installation, token: Path, *, nodes: int, cold: int) -> None:
        done = cluster.as_user(
            sys.executable, "-m", "controlplane.cli", "slurm", "pilots", "--nodes", str(nodes), "--cold", str(cold),
            "--gpus-per-node", str(GPUS), "--server", server.addresses.web, "--join-token-file", str(token),
            "--probe", "simulated", "--directory", str(cluster.folder / "pilots"), "--grace", "20",
            environment=PYTHON | {"HOLDFAST_TOKEN": server.api_token("submit")},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        self.cluster, self.id = cluster, done.stdout.strip()

    def elements(self) -> dict[str, tuple[str, str]]:
        """(state, node) by number, of those that Slurm still lists."""
        listed = self.cluster.run("squeue", "--noheader", "--array", "--jobs", self.id, "--format", "%K|%T|%N")
        return {number: (state, node) for number, state, node in (line.split("|") for line in listed.splitlines())}

    def said(self) -> str:
        """What the pilots printed."""
        folder = self.cluster.folder / "pilots"
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in sorted(folder.glob("pilot-*.out")))


def connected(driver: Driver) -> set[str]:
    return {node["name"] for node in driver.items("/nodes") if node["connected"]}


def verdict(driver: Driver, job: str) -> str | None:
    """Of the job's only incident; None until it is judged."""
    (eviction,) = driver.items(f"/jobs/{job}/incidents")
    state: str = eviction["certificate"]["state"]
    return state if state != "pending" else None


def test_pilots_carry_a_job_a_bad_node_is_replaced_and_the_next_array_continues_it(
    cluster: Cluster, hooks: Callable[[str], None], server: Installation
) -> None:
    token = cluster.folder / "pilots-token"
    made = server.manage("create_join_token", "--name-pattern", "n*", "--cidr", "127.0.0.0/8", "--uses", "6")
    token.write_text(made.split()[-1])
    shutil.chown(token, USER)
    driver = Driver(server.addresses.web, server.api_token("admin"))
    settings = cluster.root / "slurm.toml"
    settings.touch(mode=0o600)
    settings.write_text(f'url = "{server.addresses.web}"\ntoken = "{server.api_token("read")}"\nagents = "pilots"\n')

    pilots = Array(cluster, server, token, nodes=3, cold=1)
    wait: Callable[[str, Callable[[], Any]], Any] = lambda what, ask: cluster.wait(what, ask, timeout_s=WAIT_S)  # noqa: E731
    wait("three pilots are up", lambda: len(connected(driver)) == 3)
    assert [state for state, _ in pilots.elements().values()].count("PENDING") == 1, "the cold one waits in the queue"
    job = submit_and_train(driver, scene_job(name="piloted", steps=20_000, interval_steps=40, spare_gpus=0))

    bad = next(rank["node_name"] for each in driver.current_replicas(job) for rank in each["ranks"])
    hooks("healthcheck")
    node = next(each for each in driver.items("/nodes") if each["name"] == bad)
    driver.post(f"/nodes/{node['id']}:drain", {"reason": "memory errors"})
    wait(f"the health check has drained {bad}", lambda: cluster.believed(bad).ours)
    wait(f"the pilot of {bad} has left", lambda: bad not in {where for _, where in pilots.elements().values()})
    wait("the cold one is up elsewhere", lambda: len(connected(driver) - {bad}) == 3)

    def full() -> Any:
        replicas = driver.current_replicas(job)
        return len(replicas) == 3 and all(each["state"] == "active" for each in replicas)

    wait("full strength again", full)
    assert all(rank["node_name"] != bad for each in driver.current_replicas(job) for rank in each["ranks"])
    assert cluster.believed(bad).ours and "memory errors" in str(cluster.believed(bad).reason), "it keeps our reason"
    assert "it is given back" in pilots.said(), pilots.said()
    now = driver.get(f"/jobs/{job}")
    assert now["attempt"] == 1, "no restart"

    assert wait("the eviction is judged", lambda: verdict(driver, job)) == "green"
    before = {each["name"]: each["id"] for each in driver.items("/nodes")}

    step = wait_for_step(driver, job, now["committed_step"] + 5)["committed_step"]
    cluster.run("scancel", pilots.id)
    wait("every pilot has left", lambda: not pilots.elements())
    found = driver.get(f"/jobs/{job}")
    assert found["state"] in ("preempted", "pending", "resuming"), found["state_reason"]
    assert found["last_checkpoint_step"] >= step, "saved within the grace"

    Array(cluster, server, token, nodes=3, cold=0)
    resumed = wait_for_step(driver, job, found["committed_step"] + 10, timeout_s=WAIT_S)
    assert resumed["attempt"] == 2
    names = {each["name"]: each["id"] for each in driver.items("/nodes") if each["connected"]}
    assert bad not in names, "Slurm gives it to nobody"
    known = names.keys() & before.keys()
    assert known and all(names[name] == before[name] for name in known), "the same nodes, by the keys that they had"
    driver.post(f"/jobs/{job}:cancel", {"reason": "seen"})
    cluster.run("scancel", "--full", "--user", USER)
    driver.post(f"/nodes/{node['id']}:uncordon", {"reason": "new memory"})
    wait(f"the health check has given {bad} back", lambda: not cluster.believed(bad).drained)
    assert_nothing_is_left(cluster)
