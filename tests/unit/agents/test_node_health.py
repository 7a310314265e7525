"""A node that fails a check is not launched on; what cannot be read is no proof of a fault."""

import errno
import json
import os
import resource
import socket
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.config import load
from agents.core import events as ev
from agents.core.effects import CheckNode, Spawn, StartHost
from agents.core.health import Needs, NvLinks, Readings, Storage, judge, version_of
from agents.core.policy import Policy
from agents.core.step import step
from agents.errors import ConfigError, ProbeError
from agents.examine import Examiner
from agents.probes import node_checks
from agents.probes.libraries import Interpreters
from agents.probes.node_checks import ask_checker, read_launch, read_node, read_storage
from agents.probes.sampler import InlineSampler
from agents.probes.simulated import SimulatedProbe
from agents.ranks.launch import Standing
from controlplane.protocol.commands import StartRanks
from controlplane.protocol.frames import CommandAnswer, NodeCheck, NodeChecked
from tests.properties.agents.world import OURS, World, launch, order

NEEDS = Needs(driver_major=570, free_bytes=256 << 20)
FULL = NodeCheck("storage", "/ck is nearly full")

UNFIT = [
    (Readings(drivers=("570.1", "535.104.05")), "driver"),
    (Readings(storages=(Storage(path="/ck", error="Read-only file system"),)), "storage"),
    (Readings(storages=(Storage(path="/ck", free_bytes=1 << 20),)), "storage"),
    (Readings(links=(("ib0", "down"),)), "network"),
    (Readings(links=(("ib9", None),)), "network"),
    (Readings(nvlinks=(NvLinks(device_index=0, active=(0, 1, 3), inactive=(2,)),)), "nvlink"),
    (Readings(nvlinks=(NvLinks(device_index=1, inactive=(0, 1)),), connected=frozenset({1})), "nvlink"),
    (Readings(external=(False, "IB flaps")), "external"),
    (Readings(libraries=(("torch", "2.4.1"),)), "library"),
    (Readings(libraries=(("torch", "2.5.0+cu124"),)), "library"),
    (Readings(libraries=(("nccl", "2.26.1"),), cuda=True), "library"),
    (Readings(libraries=(("nccl", "2.28.8"),), cuda=True), "library"),
]
FIT = [
    Readings(),
    Readings(drivers=("570.124.06", "unknown")),
    Readings(storages=(Storage(path="/ck", free_bytes=1 << 30), Storage(path="/ck2"))),
    Readings(links=(("ib0", "up"), ("lo", "unknown")), external=(True, "")),
    Readings(nvlinks=(NvLinks(device_index=0), NvLinks(device_index=1, active=(0, 1)))),
    Readings(nvlinks=(NvLinks(device_index=0, inactive=(0, 1, 2, 3)),), connected=frozenset({1})),
    Readings(libraries=(("torch", "2.13.0+cpu"), ("nccl", "2.26.1"))),
    Readings(libraries=(("torch", ""), ("nccl", "2.28.9")), cuda=True),
]


@pytest.mark.parametrize(("found", "name"), UNFIT, ids=lambda value: value if isinstance(value, str) else "")
def test_each_fault_of_a_node_is_told_by_name(found: Readings, name: str) -> None:
    assert [check.name for check in judge(found, NEEDS)] == [name]


LONG = "/mnt/" + "d" * 300 + "/ck"
MENDS = [
    (Readings(drivers=("535.104.05",)), "install 570 or newer"),
    (Readings(storages=(Storage(path=LONG, error="Read-only file system"),)), "make it writable or correct the path"),
    (Readings(storages=(Storage(path="/ck", error="No space left on device", free_bytes=0),)), "free space on it"),
    (Readings(storages=(Storage(path=LONG, free_bytes=1 << 20),)), "free space or lower --min-free-mib"),
    (Readings(links=(("ib9", None),)), "bring it up, or take it out of --check-links"),
    (Readings(external=(False, "")), "see its log"),
    (Readings(libraries=(("torch", "2.4.1"),)), "install 2.5.1 or newer"),
]


@pytest.mark.parametrize(("found", "mend"), MENDS, ids=[mend for _, mend in MENDS])
def test_a_failed_check_says_how_it_is_mended_however_long_the_path(found: Readings, mend: str) -> None:
    assert [check.detail.endswith(mend) for check in judge(found, NEEDS)] == [True]


@pytest.mark.parametrize("found", FIT)
def test_a_sound_node_and_one_that_cannot_be_read_pass(found: Readings) -> None:
    assert judge(found, NEEDS) == ()


def test_an_operator_says_how_many_nvlinks_must_be_up() -> None:
    none, some = NvLinks(device_index=0, inactive=(0, 1)), NvLinks(device_index=1, active=(0, 1), inactive=(2, 3))
    without = NvLinks(device_index=2)
    for wanted, failing in ((None, [1]), (0, []), (1, [0]), (2, [0]), (3, [0, 1])):
        needs = Needs(driver_major=570, free_bytes=0, nvlinks=wanted)
        failed = judge(Readings(nvlinks=(without, some, none)), needs)
        assert [check.name for check in failed] == ["nvlink"] * len(failing)
        assert [check.detail.partition(":")[0] for check in failed] == [f"device {index}" for index in failing]


def test_a_cut_nvlink_is_named_by_device_and_number_until_it_is_healed() -> None:
    probe = SimulatedProbe(count=2, node_name="n1")
    assert judge(Readings(nvlinks=probe.nvlinks()), NEEDS) == ()
    probe.inject(1, "nvlink", 5.0)
    probe.inject(1, "nvlink", 3.0)
    (check,) = judge(Readings(nvlinks=probe.nvlinks()), NEEDS)
    assert (check.name, check.detail.partition(";")[0]) == ("nvlink", "device 1: 16 of 18 are up, down: 3, 5")
    for wrong in (-1.0, 18.0):
        with pytest.raises(ProbeError):
            probe.inject(0, "nvlink", wrong)
    probe.inject(1, "heal", 0.0)
    assert judge(Readings(nvlinks=probe.nvlinks()), NEEDS) == ()
    probe.inject(1, "off_bus", 0.0)
    assert [links.device_index for links in probe.nvlinks()] == [0], "what cannot be read is skipped"


async def test_links_that_all_go_down_at_once_are_missed_once_they_were_seen() -> None:
    probe, told = SimulatedProbe(count=1, node_name="n1"), []
    examiner = Examiner(load([], {}), InlineSampler(probe, lambda samples: None, lambda xid: None), told.append, **OURS)
    await examiner.check()
    for link in range(18):
        probe.inject(0, "nvlink", float(link))
    await examiner.check()
    assert [[check.name for check in event.failed] for event in told] == [[], ["nvlink"]]
    fresh = Examiner(load([], {}), InlineSampler(probe, lambda samples: None, lambda xid: None), told.append, **OURS)
    await fresh.check()
    assert told[-1].failed == (), "an agent that never saw them up takes it for a card without a bridge"


@given(st.text(max_size=20))
def test_a_version_is_its_leading_numbers_whatever_the_text(text: str) -> None:
    assert all(number >= 0 for number in version_of(text))
    assert version_of(f"2.5.{text}")[:2] == (2, 5)


def begin(world: World, *, entrypoint: bool = False) -> tuple:
    """Everything up to the question whether the node is fit; the effects of the last step."""
    world.connect()
    start = order(1, StartRanks(launch(entrypoint=entrypoint)), 1, 1)
    world.state, _ = step(world.state, ev.OrderReceived(now_s=world.now_s, commands=(start,)))
    world.state, effects = step(world.state, ev.Journaled(now_s=world.now_s, command_ids=("cmd_1",)))
    return effects


def read(world: World, *, command_id: str = "", failed: tuple = (), launch_failed: tuple = ()) -> tuple:
    event = ev.NodeRead(now_s=world.now_s, failed=failed, launch_failed=launch_failed, command_id=command_id)
    world.state, effects = step(world.state, event)
    return effects


def bodies(world: World, kind: type) -> list:
    return [kept.body for kept in world.state.events if isinstance(kept.body, kind)]


def test_nothing_is_started_before_the_node_is_known_to_be_fit() -> None:
    world = World()
    effects = begin(world)
    assert [effect.command_id for effect in effects if isinstance(effect, CheckNode)] == ["cmd_1"]
    assert not any(isinstance(effect, StartHost) for effect in effects)
    assert not any(isinstance(effect, CheckNode | StartHost) for effect in read(world)), "another check is no answer"
    assert any(isinstance(effect, StartHost) for effect in read(world, command_id="cmd_1"))


@pytest.mark.parametrize("where", ["failed", "launch_failed"])
def test_a_start_on_an_unfit_node_is_refused_with_the_reason(where: str) -> None:
    world = World()
    begin(world, entrypoint=True)
    effects = read(world, command_id="cmd_1", **{where: (FULL,)})
    assert not any(isinstance(effect, Spawn) for effect in effects)
    answer = bodies(world, CommandAnswer)[-1]
    assert (answer.state, answer.detail) == ("failed", "the node is not fit: storage: /ck is nearly full")
    assert answer.data == "unfit_node", "what the server goes by"
    told = [body.failed for body in bodies(world, NodeChecked)]
    assert told == [(FULL,) if where == "failed" else ()], "one job's own path is no fault of the node"


def test_the_verdict_is_told_once_at_first_and_then_when_it_changes() -> None:
    world = World()
    world.connect()
    for failed in ((), (), (FULL,), (FULL,), ()):
        read(world, failed=failed)
    assert [body.failed for body in bodies(world, NodeChecked)] == [(), (FULL,), ()]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Readings(storages=(Storage(path="/ck", free_bytes=9 << 20),)),
         Readings(storages=(Storage(path="/ck", free_bytes=8 << 20),))),
        (Readings(external=(False, "ib0: 41 symbol errors")), Readings(external=(False, "ib0: 42 symbol errors"))),
    ],
)  # fmt: skip
def test_a_figure_that_moves_is_no_new_verdict(before: Readings, after: Readings) -> None:
    world = World()
    world.connect()
    for found in (before, after):
        read(world, failed=judge(found, NEEDS))
    assert [body.failed for body in bodies(world, NodeChecked)] == [judge(before, NEEDS)]


def test_storage_is_tried_where_it_will_be_made_and_nothing_is_left_behind(tmp_path: Path) -> None:
    found = read_storage(str(tmp_path / "not" / "yet"))
    assert found.error == "" and found.free_bytes > 0
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    assert read_storage(str(tmp_path / "file")).error


def test_a_storage_that_takes_a_name_and_not_what_is_written_keeps_neither(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, limits[1]))
    try:
        found = read_storage(str(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert found.error == "File too large"
    assert list(tmp_path.iterdir()) == []


def test_a_launch_is_checked_for_where_it_saves_and_what_our_trainer_runs_with(tmp_path: Path) -> None:
    ours = launch()
    ours = msgspec.structs.replace(ours, config=msgspec.structs.replace(ours.config, checkpoint_dir=str(tmp_path)))
    found = read_launch(ours, (), Interpreters(), Standing(), policy=Policy())
    assert [storage.path for storage in found.storages] == [str(tmp_path)]
    assert version_of(dict(found.libraries)["torch"]) >= (2, 5, 1)
    bucket = msgspec.structs.replace(ours.config, checkpoint_dir="s3://bucket/job")
    assert (
        read_launch(
            msgspec.structs.replace(ours, config=bucket, entrypoint=("sh",)),
            (),
            Interpreters(),
            Standing(),
            policy=Policy(),
        )
        == Readings()
    )


def test_a_full_store_refuses_no_launch_and_one_that_cannot_be_written_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failed(directory: Path) -> list[str]:
        config = msgspec.structs.replace(launch().config, checkpoint_dir=str(directory))
        found = read_launch(
            msgspec.structs.replace(launch(), config=config, entrypoint=("sh",)),
            (),
            Interpreters(),
            Standing(),
            policy=Policy(),
        )
        return [check.name for check in judge(found, Needs(driver_major=570, free_bytes=1 << 62))]

    assert failed(tmp_path) == [], "its room is judged where the operator asks for some"
    (tmp_path / "file").write_text("")
    assert failed(tmp_path / "file") == ["storage"]

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    assert failed(tmp_path) == []
    assert judge(Readings(storages=(read_storage(str(tmp_path)),)), NEEDS) != (), "as a path of --check-paths"


def test_links_are_read_as_the_kernel_names_them_and_an_old_simulated_driver_is_seen(tmp_path: Path) -> None:
    (tmp_path / "ib0").mkdir()
    (tmp_path / "ib0" / "operstate").write_text("down\n")
    probe = SimulatedProbe(count=1, node_name="n1")
    probe.inject(0, "old_driver", 0.0)
    found = read_node(
        name="n1", devices=probe.devices(), paths=(), interfaces=("ib0", "ib1"), checker="", network_class=tmp_path
    )
    assert found.links == (("ib0", "down"), ("ib1", None))
    assert [check.name for check in judge(found, NEEDS)] == ["driver", "network", "network"]
    probe.inject(0, "heal", 0.0)
    assert judge(Readings(drivers=(probe.devices()[0].driver_version,)), NEEDS) == ()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b'{"healthy": false, "reason": "IB flaps"}\n', (False, "IB flaps")),
        (b'{"healthy": true}\n', (True, "")),
        (b'{"healthy": "perhaps"}\n', None),
        (b"hello\n", None),
        (b"[" * 50_000 + b"\n", None),
        (b"", None),
    ],
)
def test_only_an_explicit_word_of_the_external_checker_counts(
    tmp_path: Path, answer: bytes, told: tuple[bool, str] | None
) -> None:
    path = str(tmp_path / "checker.sock")
    assert ask_checker(path, "n1") is None, "nobody listens"
    asked: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            asked.append(connection.recv(4096))
            connection.sendall(answer)

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen()
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        assert ask_checker(path, "n1") == told
        thread.join()
    assert json.loads(asked[0]) == {"node": "n1"}


def test_a_checker_that_answers_byte_by_byte_is_late_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_checks, "EXTERNAL_TIMEOUT_S", 0.2)
    given_up = threading.Event()

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            for _ in range(40):
                if given_up.wait(0.05):
                    return
                connection.sendall(b" ")
            connection.sendall(b'{"healthy": false}\n')

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "checker.sock"))
        listener.listen()
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        assert ask_checker(str(tmp_path / "checker.sock"), "n1") is None
        given_up.set()
        thread.join()


def test_settings_of_the_checks_are_read_and_wrong_ones_refused() -> None:
    config = load(["--check-paths", "/a, /b", "--check-links", "ib0"], {"HOLDFAST_AGENT_MIN_DRIVER": "560"})
    assert (config.min_nvlinks, load(["--min-nvlinks", "18"], {}).min_nvlinks) == (None, 18)
    assert (config.check_paths, config.check_links, config.min_driver) == (("/a", "/b"), ("ib0",), 560)
    for wrong in (["--check-paths", "a"], ["--check-links", "../x"], ["--min-driver", "-1"], ["--min-nvlinks", "-1"]):
        with pytest.raises(ConfigError):
            load(wrong, {})
