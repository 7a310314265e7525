"""What Slurm is asked about a node: a drain where Holdfast finds it unfit, its end where that drain is ours, and
nothing where either does not answer. Lines of `scontrol --oneliner show node` as Slurm 21.08 to 25.05 prints them."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.engines.slurm import answers
from controlplane.engines.slurm.health import (
    MAX_REASON_CHARS,
    OURS,
    Act,
    Believed,
    Device,
    Node,
    act,
    parsed,
    reason,
    unfit,
)
from controlplane.engines.slurm.health import update as command
from controlplane.protocol.states import NodeState

GOOD = Device(0, present=True, healthy=True)
BAD = Device(1, present=True, healthy=False, health_reason="XID 79: fell off the bus")
BEFORE = (
    "NodeName=gpu-7 Arch=x86_64 CoresPerSocket=24 CPUAlloc=0 {cpus}CPUTot=96 CPULoad=0.01 AvailableFeatures=a100"
    " ActiveFeatures=a100 Gres=gpu:a100:4 NodeAddr=10.1.0.7 NodeHostName=gpu-7 Version={version} OS=Linux 5.14.0"
    " #1 SMP Tue Jun 2 11:33:56 EDT 2026  RealMemory=750000 AllocMem=0 FreeMem=N/A Sockets=2 Boards=1 State={state}"
    " ThreadsPerCore=2 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=gpu  BootTime=2026-06-25T09:05:36"
    " SlurmdStartTime=2026-07-08T10:05:26 LastBusyTime=2026-08-24T02:01:17 {resume}CfgTRES=cpu=96,mem=187G AllocTRES="
)
CAPPED = " CapWatts=n/a CurrentWatts=0 AveWatts=0 ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s{why}"
PLAIN = " CurrentWatts=240 AveWatts=180{why}"
LINES = {
    "21.08.8": ("", "", CAPPED),
    "22.05.8": ("CPUEfctv=96 ", "", CAPPED),
    "23.11.7": ("CPUEfctv=96 ", "ResumeAfterTime=None ", f"{CAPPED} Comment=rack 9 [left]"),
    "24.05.3": ("CPUEfctv=96 ", "ResumeAfterTime=None ", PLAIN),
    "24.11.4": ("CPUEfctv=96 ", "ResumeAfterTime=None ", PLAIN),
    "25.05.5": ("CPUEfctv=96 ", "ResumeAfterTime=None ", f"{PLAIN}   "),
}
"""Names of fields, their order and the forms of their values are those of public sites' pages that show such an answer
(southgreenplatform.github.io and AAU 21.08, UniGe 23.11.7, UCI HPC3 24.05.3, Lafayette LARCC 24.11.4, a Rocky Linux
guide 25.05.5); the values are ours."""
VERSIONS = pytest.mark.parametrize("version", LINES)


def line(version: str = "22.05.8", *, state: str = "IDLE", why: str = "") -> str:
    """`why` as Slurm shows it: with who and when."""
    cpus, resume, rest = LINES[version]
    before = BEFORE.format(cpus=cpus, version=version, state=state, resume=resume)
    return f"{before}{rest.format(why=f' Reason={why}' if why else '')}\n"


def node(state: str = "ready", *devices: Device, connected: bool = True, why: str = "") -> Node:
    return Node("gpu-7", state, connected, why, list(devices or (GOOD,)))


def seen(*states: str, why: str | None = "") -> Believed:
    return Believed(states=frozenset(states or ("IDLE",)), reason=why)


@VERSIONS
def test_states_and_reason_are_read_from_the_line_of_each_version(version: str) -> None:
    assert answers.believed(line(version), "gpu-7") == seen("IDLE")
    for text in ("holdfast: device 1: XID 79", "disk [sda] is slow, see #12", "Low RealMemory (reported:1 < 90%)"):
        said = line(version, state="MIXED+DRAIN", why=f"{text} [root@2026-11-28T22:41:00]")
        assert answers.believed(said, "gpu-7") == seen("MIXED", "DRAIN", why=text)
    assert answers.address(line(version)) == "10.1.0.7"


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("IDLE*", {"IDLE"}),
        ("DOWN*+DRAIN", {"DOWN", "DRAIN"}),
        ("IDLE+CLOUD+POWERED_DOWN", {"IDLE", "CLOUD", "POWERED_DOWN"}),
        ("IDLE+DYNAMIC_NORM+NOT_RESPONDING", {"IDLE", "DYNAMIC_NORM", "NOT_RESPONDING"}),
        ("ALLOCATED+MAINTENANCE+DRAIN@", {"ALLOCATED", "MAINTENANCE", "DRAIN"}),
    ],
)
def test_marks_behind_a_state_are_no_part_of_it(state: str, words: set[str]) -> None:
    found = answers.believed(line(state=state), "gpu-7")
    assert found is not None and found.states == words


@VERSIONS
def test_a_line_that_is_cut_or_of_another_node_is_no_news(version: str) -> None:
    whole = line(version, state="IDLE+DRAIN", why="holdfast: x [root@2026-11-28T22:41:00]")
    assert answers.believed(whole, "gpu-70") is None and answers.believed(whole, "gpu") is None
    for cut in range(0, len(whole), 7):
        assert answers.believed(whole[:cut], "gpu-7") is None


def test_a_reason_that_cannot_be_told_from_other_text_is_unknown_so_that_nothing_is_undone() -> None:
    ours = "holdfast: x [root@2026-11-28T22:41:00]"
    for why in (
        "holdfast: x", "holdfast: x [root@today]", f"fan Reason={ours}",
        f"{ours} Extra=a Reason=b [c@2026-11-28T22:41:00]",
    ):  # fmt: skip
        found = answers.believed(line(state="IDLE+DRAIN", why=why), "gpu-7")
        assert found is None or found.reason is None, why
        assert found is None or act(node(), found, may_undo=True) is Act.NOTHING


@given(st.text(max_size=300), st.binary(max_size=300))
def test_no_text_is_an_error(text: str, raw: bytes) -> None:
    answers.believed(text, "gpu-7")
    answers.believed(f"NodeName=gpu-7 {text}\n", "gpu-7")
    parsed(raw, "gpu-7")
    assert unfit(node("quarantined", why=text)).startswith("quarantined")


@pytest.mark.parametrize("state", ["cordoned", "draining", "quarantined"])
def test_what_holdfast_took_out_of_service_is_drained_with_its_reason(state: str) -> None:
    out = node(state, why="two machines show its key")
    assert act(out, seen(), may_undo=True) is Act.DRAIN
    argv = command("gpu-7", Act.DRAIN, unfit(out))
    assert [*argv] == [
        "scontrol", "update", "nodename=gpu-7", "state=drain", f"reason=holdfast: {state}. two machines show its key",
    ]  # fmt: skip
    assert "down" not in " ".join(argv)


def test_a_node_with_an_unfit_device_is_drained_and_one_whose_device_is_absent_is_not() -> None:
    assert unfit(node("degraded", GOOD, BAD)) == "device 1: XID 79: fell off the bus"
    assert unfit(node("ready", BAD, BAD, BAD)).endswith("and 2 more devices")
    assert unfit(node("degraded", msgspec.structs.replace(BAD, present=False))) == "", "Slurm counts devices itself"
    assert act(node("degraded", GOOD), seen(), may_undo=True) is Act.NOTHING


@pytest.mark.parametrize("why", ["", "fan", "Prolog error", "Not responding", "kept for holdfast: no", None])
@pytest.mark.parametrize("states", [("IDLE", "DRAIN"), ("DOWN",), ("DOWN", "DRAIN"), ("MIXED", "FAIL")])
def test_what_somebody_else_drained_or_downed_stays_as_it_is(states: tuple[str, ...], why: str | None) -> None:
    for told in (node(), node("quarantined"), node("ready", BAD)):
        assert act(told, seen(*states, why=why), may_undo=True) is Act.NOTHING


def test_our_drain_is_undone_by_the_health_check_alone_once_the_node_is_well_for_certain() -> None:
    ours = seen("IDLE", "DRAIN", why="holdfast: quarantined")
    assert act(node(), ours, may_undo=True) is Act.UNDRAIN
    assert [*command("gpu-7", Act.UNDRAIN, "")] == ["scontrol", "update", "nodename=gpu-7", "state=undrain"]
    assert act(node(), ours, may_undo=False) is Act.NOTHING
    away = msgspec.structs.replace(node(), connected=False)
    assert act(away, ours, may_undo=True) is Act.NOTHING, "nobody says how it is"
    assert act(away, ours, may_undo=True, piloted=True) is Act.UNDRAIN, "nobody can: its agent runs in pilots alone"
    for unsure in (node(connected=False), node("degraded"), node("cordoned"), node("ready", BAD)):
        assert act(unsure, ours, may_undo=True) is Act.NOTHING
    assert act(node(), seen("IDLE", why="holdfast: quarantined"), may_undo=True) is Act.NOTHING, "it is not drained"


def test_where_agents_run_in_pilots_a_node_is_drained_once_nothing_runs_there_and_given_back_by_people() -> None:
    """A drain ends the pilot, and all under it: cordoned means that what runs continues."""
    ours, rank = seen("IDLE", "DRAIN", why="holdfast: cordoned"), [msgspec.Raw(b"{}")]
    for state in ("cordoned", "quarantined"):
        busy = msgspec.structs.replace(node(state), ranks=rank)
        assert act(busy, seen("MIXED"), may_undo=True, piloted=True) is Act.NOTHING
        assert act(busy, seen("MIXED"), may_undo=True) is Act.DRAIN, "a resident agent stays"
        assert act(node(state), seen("MIXED"), may_undo=True, piloted=True) is Act.DRAIN
        assert act(node(state, connected=False), ours, may_undo=True, piloted=True) is Act.NOTHING
    assert act(node("draining"), seen("MIXED"), may_undo=True, piloted=True) is Act.NOTHING, "it is not empty yet"
    assert act(node("degraded", BAD), seen("MIXED"), may_undo=True, piloted=True) is Act.NOTHING, (
        "it waits for its reset"
    )
    gone = msgspec.structs.replace(BAD, present=False)
    for left in (node(connected=False), node("degraded", gone, connected=False)):
        assert act(left, ours, may_undo=True, piloted=True) is Act.UNDRAIN


@pytest.mark.parametrize(
    "more", [{"ranks_running": 1}, {"devices": [msgspec.structs.replace(GOOD, held_by={"job_name": "a private job"})]}]
)
def test_what_runs_of_a_job_that_the_token_does_not_see_counts_too(more: dict[str, object]) -> None:
    """An answer leaves out such a job's ranks; its number and that a device is held it does not."""
    told = {"name": "gpu-7", "state": "quarantined", "connected": True, "ranks": [], "ranks_running": 0, "devices": []}
    empty, busy = (parsed(msgspec.json.encode(told | extra), "gpu-7") for extra in ({}, more))
    assert empty is not None and act(empty, seen("MIXED"), may_undo=True, piloted=True) is Act.DRAIN
    assert busy is not None and act(busy, seen("MIXED"), may_undo=True, piloted=True) is Act.NOTHING


def test_a_revoked_node_is_unfit_and_not_well_before_it_is_restored() -> None:
    """Its state says nothing of it, and no agent can connect there."""
    told = {"name": "gpu-7", "state": "ready", "connected": True, "revoked": True}
    out = parsed(msgspec.json.encode(told), "gpu-7")
    assert out is not None and unfit(out) == unfit(out, piloted=True) == "revoked: its agent may not connect"
    for piloted in (False, True):
        assert act(out, seen(), may_undo=True, piloted=piloted) is Act.DRAIN
        assert act(out, seen("IDLE", "DRAIN", why="holdfast: revoked"), may_undo=True, piloted=piloted) is Act.NOTHING
    busy = msgspec.structs.replace(out, ranks_running=2)
    assert act(busy, seen("MIXED"), may_undo=True, piloted=True) is Act.NOTHING, "its ranks go on"


def test_each_state_of_a_node_is_either_well_unfit_or_neither() -> None:
    ours = seen("IDLE", "DRAIN", why="holdfast: x")
    for state, connected in itertools.product(NodeState, (True, False)):
        told = node(state, connected=connected)
        asked = {act(told, believed, may_undo=True) for believed in (seen(), ours)}
        assert not {Act.DRAIN, Act.UNDRAIN} <= asked, state


def test_a_long_reason_is_cut() -> None:
    assert reason("disk " * 400) == ("holdfast: " + "disk " * 400)[:MAX_REASON_CHARS].rstrip()


@given(st.text(max_size=600))
def test_a_reason_is_one_short_line_of_plain_characters_that_is_known_as_ours(text: str) -> None:
    made = reason(text)
    assert made.startswith(OURS) and len(made) <= MAX_REASON_CHARS and made.isascii() and made.isprintable()
    assert not {*made} & {*"\"'`$\\=<>|&*?[]{}#!~@^\n\t"}


@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=200))
def test_a_reason_of_ours_is_read_back_as_ours(text: str) -> None:
    said = line(state="IDLE+DRAIN", why=f"{reason(text)} [root@2026-11-28T22:41:00]")
    found = answers.believed(said, "gpu-7")
    assert found is not None and found.ours and found.reason == reason(text)


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"null", b"[]", b"{}", b"<html>", b"\xff", b'{"name":"gpu-7"}', b"[" * 100_000,
        b'{"name":"gpu-7","state":"well","connected":true}', b'{"name":"gpu-7","state":"ready","connected":"yes"}',
        b'{"name":"gpu-8","state":"ready","connected":true}', b'{"name":"gpu-7","state":7,"connected":true}',
        b'{"name":"gpu-7","state":"ready","connected":true,"devices":[{}]}',
    ],
)  # fmt: skip
def test_an_answer_of_the_server_that_is_none_about_this_node_is_no_news(raw: bytes) -> None:
    assert parsed(raw, "gpu-7") is None


def test_an_answer_of_a_newer_server_is_read() -> None:
    told = {"name": "gpu-7", "state": "ready", "connected": True, "more": {"x": [1]}}
    device = {"index": 0, "present": True, "healthy": True, "x": 1}
    assert parsed(msgspec.json.encode(told | {"devices": [device]}), "gpu-7") == node()
