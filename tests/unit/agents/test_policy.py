"""What a node allows: its file, and what the rules say of an order."""

import math
import os
import posixpath
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.core import events as ev
from agents.core.policy import NodeRules, Policy, PolicyInvalid, Users, is_below, parse, path_fault, refusal
from agents.core.step import step
from agents.errors import ConfigError, LaunchError
from agents.policy_file import read_policy
from agents.ranks import users
from controlplane.protocol.commands import CollectStacks, StartRanks, StopRanks, WarmHost
from controlplane.protocol.frames import CommandAnswer
from controlplane.protocol.launch import Resume
from controlplane.protocol.spec import LocalTier
from controlplane.protocol.states import UNFIT
from tests.properties.agents.world import NODE, World, launch, order

ROOTS = ("/data/checkpoints", "s3://bucket/team")


def rules(**document: object) -> NodeRules:
    return NodeRules(policy=parse(document), own_places=("/var/lib/holdfast-agent", "/var/lib/holdfast-agent-jobs"))


def start(**changes: object) -> StartRanks:
    config = {
        name: changes.pop(name) for name in ("checkpoint_dir", "resume", "checkpoint", "training") if name in changes
    }
    ours = launch()
    return StartRanks(msgspec.structs.replace(ours, config=msgspec.structs.replace(ours.config, **config), **changes))


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"observe": True}, "unknown field"),
        ({"users": {"defualt": "x"}}, "unknown field"),
        ({"users": {"map": {"alice": 0}}}, "user id of 1000 or more"),
        ({"users": {"map": {"alice": "root"}}}, "cannot be 'root'"),
        ({"users": {"default": "dynamic"}}, "users.dynamic"),
        ({"users": {"default": "dynamic", "dynamic": [500, 600]}}, "from 1000 on"),
        ({"users": {"min_uid": 0}}, "nothing of a job runs as root"),
        ({"commands": ["start_everything"]}, "unknown kinds start_everything"),
        ({"checkpoint_roots": ["/"]}, "not /"),
        ({"checkpoint_roots": ["data"]}, "absolute"),
        ({"checkpoint_roots": ["/data/../etc"]}, "shortest form"),
        ({"entrypoints": ["python"]}, "absolute path"),
        ({"limits": {"memory_bytes": -1}}, "more than 0"),
        ({"limits": {"cpus": math.inf}}, "more than 0"),
        ({"limits": {"cpus": math.nan}}, "more than 0"),
        ({"limits": {"memory_bytes": "1 GiB"}}, "int"),
    ],
)
def test_a_wrong_policy_is_refused_with_its_key(document: dict[str, object], words: str) -> None:
    with pytest.raises(PolicyInvalid, match=words):
        parse(document)


@pytest.mark.parametrize(
    "path",
    ["/", "/proc/self", "/root/.ssh", "/etc", "/dev/shm", "/dev/sda", "/var/lib/holdfast-agent/x", "/var/lib", "data",
     "/data/../etc", "//etc", "/data\0x", "/usr/lib", "/sys/fs", "/data/./x"],
)  # fmt: skip
def test_places_of_the_system_and_the_agent_are_no_jobs_places_without_a_file(path: str) -> None:
    assert "checkpoint directory" in refusal(rules(), start(checkpoint_dir=path))


@pytest.mark.parametrize("path", ["/data/x", "/home/alice/x", "/dev/shm/x", "s3://bucket/x", "/data/x/"])
def test_other_places_are(path: str) -> None:
    assert refusal(rules(), start(checkpoint_dir=path)) == ""


@given(
    st.text(st.sampled_from("/.ab") | st.characters(), max_size=24),
    st.sampled_from(["", "/data/checkpoints", "s3://bucket/team"]),
)
def test_nothing_but_what_lies_below_a_root_is_allowed_where_roots_are_named(tail: str, root: str) -> None:
    path = root + tail
    if not path_fault(path, ROOTS, ()):
        assert is_below(path.rstrip("/"), ROOTS)
        assert "://" in path or is_below(posixpath.normpath(path), ROOTS)
        assert ".." not in path.split("/") and "\0" not in path


def test_every_path_of_a_start_is_looked_at() -> None:
    ours, here = rules(checkpoint_roots=list(ROOTS), data_roots=["/corpora"]), "/data/checkpoints/job"
    assert refusal(ours, start(checkpoint_dir=here)) == ""
    assert "resume" in refusal(ours, start(checkpoint_dir=here, resume=Resume("/data/other", 5)))
    assert refusal(ours, start(checkpoint_dir=here, resume=Resume("local:step_00000048-e4", 48))) == ""
    for outside in ("local:../step_00000048-e4", "local:step_00000048-e4/../x", "local:/etc", "local:"):
        assert "resume" in refusal(ours, start(checkpoint_dir=here, resume=Resume(outside, 48)))
    tier = msgspec.structs.replace(launch().config.checkpoint, local=LocalTier(dir="/local"))
    assert "local checkpoints" in refusal(ours, start(checkpoint_dir=here, checkpoint=tier))
    training = msgspec.structs.replace(launch().config.training, data="/etc/shadow")
    assert "training data" in refusal(ours, start(checkpoint_dir=here, training=training))


@pytest.mark.parametrize(
    ("allowed", "program", "fine"),
    [
        (None, ("python", "x.py"), True),
        ([], ("/usr/bin/python3",), False),
        (["/usr/bin/python3"], ("/usr/bin/python3", "x"), True),
        (["/usr/bin/python3"], ("/usr/bin/python3.11",), False),
        (["/opt/jobs/"], ("/opt/jobs/a/run",), True),
        (["/opt/jobs/"], ("/opt/jobs/../../bin/sh",), False),
        (["/opt/jobs/"], ("python",), False),
        ([], None, True),
    ],
)
def test_programs_that_a_job_may_bring(allowed: list[str] | None, program: tuple[str, ...] | None, fine: bool) -> None:
    ours = rules() if allowed is None else rules(entrypoints=allowed)
    assert (refusal(ours, start(entrypoint=program)) == "") == fine


def test_variables_that_a_spec_may_set() -> None:
    assert refusal(rules(), start(env={"NCCL_DEBUG": "INFO"})) == ""
    ours = rules(env={"allowed": ["NCCL_*", "SEED"]})
    assert refusal(ours, start(env={"NCCL_DEBUG": "INFO", "SEED": "1"})) == ""
    assert "OTHER (env.allowed)" in refusal(ours, start(env={"OTHER": "1"}))
    everything = rules(env={"allowed": ["*"]})
    assert "never allowed" in refusal(everything, start(env={"LD_PRELOAD": "/x.so"}))


@pytest.mark.parametrize(
    "name",
    ["PYTHONPATH", "PATH", "LD_LIBRARY_PATH", "LD_BIND_NOW", "PYTHONUSERBASE", "NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN",
     "CUDA_INJECTION64_PATH", "PERL5OPT", "PERL5LIB", "NODE_OPTIONS", "RUBYOPT", "HOME", "GLIBC_TUNABLES",
     "NCCL_CONF_FILE"],
)  # fmt: skip
def test_no_variable_puts_other_code_into_the_programs_that_a_node_names(name: str) -> None:
    env = {name: "/tmp/x", "NCCL_DEBUG": "INFO", "PYTHONUNBUFFERED": "1"}
    for listed in ([], ["/usr/bin/python3"]):
        for more in ({}, {"env": {"allowed": ["*"]}}, {"env": {"allowed": ["NCCL_*", "PYTHON*", f"{name[:-1]}*"]}}):
            why = refusal(rules(entrypoints=listed, **more), start(env=env))
            assert f"{name} could put other code into them" in why
            assert "into env.allowed" in why
    assert refusal(rules(entrypoints=[], env={"allowed": ["*", name]}), start(env=env)) == ""
    assert refusal(rules(), start(env=env)) == ""
    assert refusal(rules(entrypoints=[]), start(env={"NCCL_DEBUG": "INFO", "PYTHONHASHSEED": "0"})) == ""


def test_owners_and_kinds_of_orders() -> None:
    ours = rules(users={"allowed": ["alice"]}, commands=["start_ranks", "warm_host"])
    assert refusal(ours, start(user="alice")) == ""
    assert "bob (users.allowed)" in refusal(ours, start(user="bob"))
    assert "bob" in refusal(ours, WarmHost("job_1", 1, "bob"))
    assert "stop_ranks (commands)" in refusal(ours, StopRanks("job_1", 1, -1, 0, 0.0, "x"))


def test_a_node_that_only_observes_answers_every_order_but_a_look_with_a_refusal() -> None:
    world = World()
    state, _ = step(world.state, ev.RulesRead(now_s=world.now_s, rules=rules(observe_only=True)))
    state = replace(state, link=replace(state.link, node_id=NODE))
    assert refusal(state.rules, CollectStacks("job_1", 0, 1)) == ""
    envelope = order(1, StartRanks(launch()), 1, 1)
    state, _ = step(state, ev.OrderReceived(now_s=world.now_s, commands=(envelope,)))
    state, _ = step(state, ev.Journaled(now_s=world.now_s, command_ids=(envelope.command_id,)))
    answers = [kept.body for kept in state.events if isinstance(kept.body, CommandAnswer)]
    assert [(answer.state, answer.data) for answer in answers] == [("acknowledged", ""), ("failed", UNFIT)]
    assert "observe only" in answers[-1].detail
    assert (state.refused_by_policy, state.launches, dict(state.ranks)) == (1, (), {})


def test_the_file_is_read_only_where_nobody_else_can_write_it(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    assert read_policy(file) == Policy()
    file.write_text('checkpoint_roots = ["/data"]\n[users]\ndefault = "agent"\n')
    file.chmod(0o644)
    assert read_policy(file).users == Users(default="agent")
    for mode in (0o664, 0o646):
        file.chmod(mode)
        with pytest.raises(ConfigError, match="written by others"):
            read_policy(file)
    file.chmod(0o600)
    for text in ("observe_only = maybe", "unknown = 1"):
        file.write_text(text)
        with pytest.raises(ConfigError, match=r"policy\.toml"):
            read_policy(file)
    with pytest.raises(ConfigError, match="no file"):
        read_policy(tmp_path)
    if os.geteuid() == 0:
        os.chown(file, 61_001, 61_001)
        with pytest.raises(ConfigError, match="chown it to root"):
            read_policy(file)


def test_owners_become_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "separates", lambda: True)
    found = users.resolve(parse({"users": {"map": {"alice": 2001}}}), "alice", state_dir=tmp_path)
    assert found is not None
    assert (found.uid, found.gid, found.groups, found.umask) == (2001, 2001, (2001,), 0o077)
    assert users.resolve(parse({"users": {"default": "agent"}}), "bob", state_dir=tmp_path) is None
    with pytest.raises(LaunchError, match="below users"):
        users.resolve(parse({"users": {"map": {"bob": "nobody"}, "min_uid": 100_000}}), "bob", state_dir=tmp_path)
    with pytest.raises(LaunchError, match="create it"):
        users.resolve(parse({"users": {"default": "no-such-account"}}), "bob", state_dir=tmp_path)
    monkeypatch.setattr(users, "_exists", lambda name: True)
    with pytest.raises(LaunchError, match="root or in its group"):
        users.resolve(parse({"users": {"accounts": True}}), "root", state_dir=tmp_path)


def test_dynamic_users_are_one_for_each_owner_and_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "separates", lambda: True)
    policy = parse({"users": {"default": "dynamic", "dynamic": [5000, 5001]}})

    def uid(owner: str) -> int:
        found = users.resolve(policy, owner, state_dir=tmp_path)
        assert found is not None
        return found.uid

    assert [uid("alice"), uid("bob"), uid("alice")] == [5000, 5001, 5000]
    with pytest.raises(LaunchError, match="wider range"):
        uid("carol")
    assert (tmp_path / "uids.json").stat().st_mode & 0o777 == 0o600


def test_an_agent_that_is_not_root_starts_ranks_as_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "separates", lambda: False)
    assert users.resolve(Policy(), "alice", state_dir=tmp_path) is None
