"""The driver's tool is asked as it wants to be asked, its refusal is told, and a node may forbid it."""

import stat
from pathlib import Path

import pytest

from agents.core.policy import KINDS, NodeRules, parse, refusal
from agents.errors import ProbeError
from agents.probes import reset
from agents.probes.sampler import ProcessSampler
from controlplane.protocol.commands import ResetDevice


def tool(folder: Path, script: str) -> str:
    """A program that stands where nvidia-smi does."""
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return str(path)


async def test_the_tool_is_asked_for_one_device_by_its_bus_id(tmp_path: Path) -> None:
    await reset.smi_reset("0000:1B:00.0", tool(tmp_path, f'echo "$@" > {tmp_path}/asked'))
    assert (tmp_path / "asked").read_text().split() == ["--gpu-reset", "-i", "0000:1B:00.0"]


async def test_what_the_tool_says_is_told(tmp_path: Path) -> None:
    said = "echo 'The following GPUs could not be reset: In use by another client'; exit 3"
    with pytest.raises(ProbeError, match="ended with 3: The following GPUs could not be reset: In use"):
        await reset.smi_reset("0000:1B:00.0", tool(tmp_path, said))


async def test_without_the_tool_nothing_is_reset() -> None:
    with pytest.raises(ProbeError, match="not installed here"):
        await reset.smi_reset("0000:1B:00.0", "nvidia-smi-that-is-nowhere")


async def test_a_tool_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reset, "RESET_TIMEOUT_S", 0.2)
    with pytest.raises(ProbeError, match="may need a reboot"):
        await reset.smi_reset("0000:1B:00.0", tool(tmp_path, "exec sleep 60"))


async def test_a_device_that_the_driver_does_not_list_is_not_reset() -> None:
    sampler = ProcessSampler(lambda samples: None, lambda xid: None, lambda *a, **k: None)
    assert await reset.reset_device(sampler, ResetDevice(0, "GPU-1")) == "no device 0 is known here"
    with pytest.raises(ProbeError, match="not known to the driver"):
        await sampler.reset(0)


def test_a_nodes_policy_may_forbid_resets() -> None:
    assert "reset_device" in KINDS
    order = ResetDevice(0, "GPU-1")
    assert refusal(NodeRules(), order) == ""
    rules = NodeRules(policy=parse({"commands": ["start_ranks", "stop_ranks"]}))
    assert "does not allow reset_device" in refusal(rules, order)
    assert "observe only" in refusal(NodeRules(policy=parse({"observe_only": True})), order)
