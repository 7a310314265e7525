"""What a program of the job's own finds in its environment, and what it never does."""

import os
import socket
from pathlib import Path

import msgspec
import pytest

from agents.ranks.launch import CHECKOUT, Standing, clean_environment, meeting_point, rank_environment, start
from agents.ranks.users import RunAs
from controlplane.protocol.launch import RankRef, TrainerConfig
from tests.properties.agents.world import launch

REF = RankRef("job_1", 1, 0, 1, 1)


def environment(device_index: int = 3, **changes: object) -> dict[str, str]:
    order = msgspec.structs.replace(launch(entrypoint=True), **changes)
    return rank_environment(REF, order, device_index, "/run/agent.sock")


def test_a_rank_finds_its_world_and_its_agent() -> None:
    found = environment()
    assert (found["RANK"], found["WORLD_SIZE"], found["MASTER_ADDR"]) == ("1", "2", "127.0.0.1")
    assert found["HOLDFAST_SOCKET"] == "/run/agent.sock"
    assert msgspec.json.decode(found["HOLDFAST_REF"], type=RankRef) == REF
    assert msgspec.json.decode(found["HOLDFAST_CONFIG"], type=TrainerConfig) == launch().config


def test_an_isolated_device_is_local_rank_0() -> None:
    found = environment(device_index=3)
    assert (found["CUDA_VISIBLE_DEVICES"], found["LOCAL_RANK"], found["LOCAL_WORLD_SIZE"]) == ("3", "0", "1")


def test_a_job_that_shows_its_ranks_all_devices_keeps_device_numbers() -> None:
    found = environment(device_index=3, env={"CUDA_VISIBLE_DEVICES": "0,1,2,3"})
    assert (found["CUDA_VISIBLE_DEVICES"], found["LOCAL_RANK"]) == ("0,1,2,3", "3")
    assert "LOCAL_WORLD_SIZE" not in found


def test_no_stale_rendezvous_reaches_a_rank() -> None:
    stale = {"MASTER_ADDR": "old", "MASTER_PORT": "1", "RANK": "7", "WORLD_SIZE": "8", "LOCAL_RANK": "7"}
    others = {"TORCHELASTIC_RUN_ID": "old", "PET_NNODES": "9", "GROUP_RANK": "1", "HOLDFAST_REF": "old"}
    found = clean_environment(stale | others | {"HOLDFAST_AGENT_X": "1", "PATH": "/bin"}, Standing())
    assert found == {"PATH": "/bin", "PYTHONPATH": str(CHECKOUT)}
    found = environment(env=stale)
    assert not {name for name, value in stale.items() if found[name] == value}


def test_a_rank_gets_nothing_of_the_agents_environment_that_is_not_listed() -> None:
    secrets = {"HOLDFAST_REDIS_URL": "redis://:secret@x", "AWS_SECRET_ACCESS_KEY": "x", "HOME": "/root", "LC_ALL": "C"}
    user = RunAs(uid=2001, gid=2001, groups=(2001,), name="alice", home="/home/alice")
    found = clean_environment(secrets, Standing(user=user))
    assert found == {
        "LC_ALL": "C",
        "PYTHONPATH": str(CHECKOUT),
        "HOME": "/home/alice",
        "USER": "alice",
        "LOGNAME": "alice",
        "SHELL": "/bin/sh",
    }


def test_a_process_that_cannot_be_started_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(FileNotFoundError):
            start(("true",), {}, Standing(open_files=64), stdout=1, stderr=2, cwd=str(tmp_path / "none"))
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_what_the_nodes_policy_passes_on_reaches_a_rank() -> None:
    found = clean_environment({"SITE": "a", "OTHER": "b"}, Standing(inherit=("SITE",)))
    assert found["SITE"] == "a"
    assert "OTHER" not in found


def test_all_ranks_of_an_incarnation_meet_at_one_place_though_it_is_taken_by_then() -> None:
    order = msgspec.structs.replace(launch(entrypoint=True), job_id="job_meet")
    first = meeting_point(order)
    with socket.socket() as rank_0:
        rank_0.bind(first)
        assert meeting_point(order) == first
        assert meeting_point(msgspec.structs.replace(order, incarnation=2)) != first


def test_a_taken_port_is_passed_over() -> None:
    order = msgspec.structs.replace(launch(entrypoint=True), job_id="job_taken", master_host="node-1")
    _, port = meeting_point(order)
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", port))
        assert meeting_point(msgspec.structs.replace(order, master_host=""))[1] != port


def test_agents_of_several_nodes_name_the_same_place() -> None:
    orders = [msgspec.structs.replace(launch(entrypoint=True), master_host="node-1", ranks=()) for _ in range(2)]
    assert meeting_point(orders[0]) == meeting_point(orders[1])
    assert meeting_point(orders[0])[0] == "node-1"
