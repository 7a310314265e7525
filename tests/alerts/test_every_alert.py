"""Every alert of deploy/prometheus is fired by a real fault and resolves when that is mended.

Debian's Prometheus judges the shipped expressions over what real processes export; only the interval
(1 s) and the patience (1 s) are shorter (`scripts.prometheus_drill`). In the order of the file: what takes long
to pass is broken first and looked at last.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import yaml

from tests.alerts.conftest import World
from tests.prometheus import DEPLOY, NEEDED
from tests.scenes.helpers import kill_all, live_ranks, pids, scene_job, submit_and_train

pytestmark = [pytest.mark.scenes, pytest.mark.timeout(900), NEEDED]
ROLES = ("web", "sentinel", "worker", "beat", "store")
UNDECIDED_S = 4.0
"""Longer than HoldfastDecisionsSlow allows."""
DOWN_S = 8.0
MADE_UP_FOR_S = 700.0
"""Until four times what was lost was trained, on a machine on which starts take long."""
HARMLESS_XID = 13
DEVICES = 5
"""One more than may be suspect at once."""


def alerts() -> set[str]:
    """All that are shipped."""
    document = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text(encoding="ascii"))
    return {rule["alert"] for group in document["groups"] for rule in group["rules"]}


@pytest.fixture(scope="module")
def job_id(world: World) -> str:
    """Two replicas of one rank on the first node; its steps are waiting mostly, so that a crowded machine
    does not make them much longer."""
    world.order("cordon", "node-2")
    spec = scene_job(name="watched", nodes=1, pp=1, global_batch=2, interval_steps=4, spare_gpus=0, delay_s=1.0)
    found = submit_and_train(world.driver, spec, until_step=6)
    world.order("uncordon", "node-2")
    return found


@contextlib.contextmanager
def stopped(world: World, *names: str) -> Iterator[None]:
    """These processes, and those that they forked, stand still meanwhile."""
    pids_of = [world.installation.supervisor.pid(name) for name in names]
    assert all(pids_of)
    for pid in pids_of:
        os.killpg(pid, signal.SIGSTOP)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for pid in pids_of:
            os.killpg(pid, signal.SIGCONT)  # type: ignore[arg-type]


def test_ranks_die_while_nobody_decides_and_then_have_no_place(world: World, job_id: str) -> None:
    world.resolves("HoldfastNoLeader", "HoldfastLoopLag", "HoldfastIncidentOpen", "HoldfastCheckpointOld")
    world.silent("HoldfastDecisionsSlow")
    world.order("cordon")
    with stopped(world, "sentinel", "worker"):
        killed_s = time.monotonic()
        kill_all(pids(world.driver, job_id).values())
        world.eventually(
            "their ends are known",
            lambda: all(rank["state"] == "exited" for rank in live_ranks(world.driver, job_id).values()),
        )
        world.fires("HoldfastNoLeader")
        time.sleep(max(0.0, killed_s + UNDECIDED_S - time.monotonic()))
    world.fires("HoldfastLoopLag", "HoldfastIncidentOpen", "HoldfastDecisionsSlow")
    world.resolves("HoldfastNoLeader")
    world.fires("HoldfastCheckpointOld", "HoldfastEffectiveTimeLow")
    world.order("uncordon")
    world.resolves("HoldfastIncidentOpen", "HoldfastCheckpointOld")


def test_each_process_that_is_killed_is_missed_until_it_is_back(world: World, job_id: str) -> None:
    world.resolves("HoldfastProcessDown")
    for role in ROLES:
        assert world.installation.supervisor.kill({"web": "web-1"}.get(role, role), down_s=DOWN_S)
    missed: set[str] = set()

    def all_missed() -> bool:
        missed.update(labels["job"] for labels in world.prometheus.fires("HoldfastProcessDown"))
        return missed == {f"holdfast-{role}" for role in ROLES}

    world.eventually("all five are missed", all_missed)
    world.resolves("HoldfastProcessDown", "HoldfastNoLeader")


def test_an_agent_that_answers_no_more_is_missed_until_it_does(world: World, job_id: str) -> None:
    world.silent("HoldfastAgentDown")
    with stopped(world, "agent:node-2"):
        world.fires("HoldfastAgentDown")
    world.resolves("HoldfastAgentDown")


def test_a_node_whose_line_is_cut_and_an_order_that_waits_for_it(world: World, job_id: str) -> None:
    world.resolves("HoldfastOutboxStuck", "HoldfastNoAgents")
    world.order("cordon", "node-1")
    program = waiting_program()
    other = world.driver.post("/jobs", program)["id"]
    world.eventually("it runs on the second node", lambda: running_on(world, other) == {"node-2"})
    world.order("uncordon", "node-1")
    world.resolves("HoldfastAgentCutOff")
    with world.installation.lines["node-2"].cut():
        world.fires("HoldfastAgentCutOff")
        assert len(world.prometheus.fires("HoldfastAgentCutOff")) == 1
        world.driver.post(f"/jobs/{other}:cancel", {"reason": "an order that waits for its agent"})
        world.fires("HoldfastOutboxStuck")
        world.silent("HoldfastNoAgents")
    world.resolves("HoldfastAgentCutOff", "HoldfastOutboxStuck")


def waiting_program() -> dict[str, Any]:
    spec = scene_job(name="waits", nodes=1, pp=1, spare_gpus=0)
    spec["spec"] |= {"entrypoint": ["/bin/sleep", "3600"]}
    spec["spec"]["resources"] |= {"gpus_per_node": 1}
    spec["spec"]["parallelism"] = {"dp": 1}
    return spec


def running_on(world: World, job_id: str) -> set[str]:
    """Names of the nodes on which ranks of a job run."""
    names = {node["id"]: name for name, node in world.nodes().items()}
    return {names[rank["node_id"]] for rank in live_ranks(world.driver, job_id).values() if rank["pid"]}


def test_all_lines_cut_at_once_are_not_a_fault_of_one_node(world: World, job_id: str) -> None:
    world.resolves("HoldfastNoAgents")
    with contextlib.ExitStack() as cut:
        for line in world.installation.lines.values():
            cut.enter_context(line.cut())
        world.fires("HoldfastNoAgents", "HoldfastAgentCutOff")
    world.resolves("HoldfastNoAgents", "HoldfastAgentCutOff")


def test_an_event_that_the_database_refuses_waits_until_it_was_replayed(world: World, job_id: str) -> None:
    world.silent("HoldfastDeadLetters")
    node = world.nodes()["node-2"]
    broken = "ALTER TABLE recovery_signal ADD CONSTRAINT broken CHECK (kind <> 'xid') NOT VALID"
    with psycopg.connect(world.database_url, autocommit=True) as database:
        database.execute(broken)
        fault = {"kind": "xid", "node_id": node["id"], "device_index": 3, "value": HARMLESS_XID}
        world.driver.post("/demo/faults", fault)
        world.fires("HoldfastDeadLetters")
        database.execute("ALTER TABLE recovery_signal DROP CONSTRAINT broken")
    world.installation.manage("replay_dead_letters")
    world.resolves("HoldfastDeadLetters")


def test_devices_of_both_nodes_fall_off_the_bus_and_come_back(world: World, job_id: str) -> None:
    world.resolves("HoldfastAutomationStopped")
    world.silent("HoldfastDevicesLost")
    free = [
        {"node_id": node["id"], "device_index": device["index"]}
        for _, node in sorted(world.nodes().items(), reverse=True)
        for device in node["devices"]
        if device["held_by"] is None
    ][:DEVICES]
    assert len(free) == DEVICES and len({device["node_id"] for device in free}) == 2
    for device in free:
        world.driver.post("/demo/faults", {"kind": "device_off_bus", **device})
    world.fires("HoldfastDevicesLost", "HoldfastAutomationStopped")
    for device in free:
        world.driver.post("/demo/faults", {"kind": "heal_device", **device})
    world.resolves("HoldfastDevicesLost")


def test_a_database_that_is_away_stops_the_figures_and_the_lead(world: World, job_id: str) -> None:
    world.resolves("HoldfastNoLeader", "HoldfastFiguresOld")
    with world.database.cut():
        world.fires("HoldfastNoLeader", "HoldfastFiguresOld")
    world.resolves("HoldfastNoLeader", "HoldfastFiguresOld")


def test_what_takes_long_to_pass_resolves_while_the_job_trains(world: World, job_id: str) -> None:
    world.resolves("HoldfastLoopLag", "HoldfastAutomationStopped", "HoldfastIncidentOpen", "HoldfastCheckpointOld")
    assert world.driver.get(f"/jobs/{job_id}")["state"] == "running"
    world.resolves("HoldfastEffectiveTimeLow", "HoldfastDecisionsSlow", within_s=MADE_UP_FOR_S)


def test_every_alert_that_is_shipped_has_fired_and_none_fires_any_more(world: World, job_id: str) -> None:
    ever = 'max by (alertname) (max_over_time(ALERTS{alertstate="firing"}[1h]))'
    assert {labels["alertname"] for labels, _ in world.prometheus.values(ever)} == alerts()
    world.resolves(*alerts())
