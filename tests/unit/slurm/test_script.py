"""The batch script: what it asks of Slurm, and that bash takes nothing in it for a command that is none."""

import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.cli.exits import Exit
from controlplane.slurm.plan import Plan
from controlplane.slurm.script import COULD_NOT, agents_grace_s, options, script, srun

PLAN = Plan(
    spec_text="metadata: {name: first}\n", job_name="first", nodes=3, spares=1, gpus_per_node=8,
    python="/opt/hf/bin/python", directory="/home/ada/runs", checkout="/opt/hf",
)  # fmt: skip
FULL = replace(
    PLAN, time="4:00:00", partition="gpu", account="ml", qos="high", constraint="h100&ib", reservation="week",
    grace_s=120, kill_wait_s=90, probe="simulated", server="https://hf.example.org", join_token_file="/home/ada/token",
    owners="*",
)  # fmt: skip


def test_it_asks_for_one_allocation_that_a_dead_node_does_not_end() -> None:
    asked = options(PLAN)
    assert {"--nodes=4", "--ntasks-per-node=1", "--exclusive", "--no-kill", "--no-requeue", "--gres=gpu:8"} <= {*asked}
    assert "--signal=TERM@60" in asked and "--output=/home/ada/runs/slurm-%j.out" in asked
    assert not any(option.startswith(("--time", "--partition", "--account", "--qos")) for option in asked)
    assert not any("gres" in option for option in options(replace(PLAN, gpus_per_node=0)))
    assert {
        "--time=4:00:00", "--partition=gpu", "--account=ml", "--qos=high", "--constraint=h100&ib", "--reservation=week",
        "--signal=TERM@120",
    } <= {*options(FULL)}  # fmt: skip
    directives = re.findall(r"^#SBATCH (.*)$", script(FULL), re.MULTILINE)
    assert tuple(directives) == options(FULL)


def test_the_agents_are_one_task_a_node_and_none_ends_another() -> None:
    argv = srun(nodes=4, python="/p", directory="/d", arguments=("--devices", "8"))
    for word in ("--nodes=4", "--ntasks=4", "--ntasks-per-node=1", "--no-kill", "--kill-on-bad-exit=0", "--wait=0"):
        assert word in argv
    assert argv[-5:] == ("/p", "-m", "controlplane.slurm.node", "--devices", "8")


def ran(plan: Plan, folder: Path) -> tuple[str, str]:
    """(what `guest` would be given, the spec as it arrives): the script, run by bash with a program that prints."""
    plan = replace(plan, python="/bin/echo", directory=str(folder), checkout="")
    done = subprocess.run(
        ["bash"], input=script(plan), capture_output=True, text=True, check=False, timeout=20, cwd=folder,
        env={"PATH": os.defpath, "SLURM_JOB_ID": "42"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, (folder / "42" / "job.yaml").read_text()


def test_bash_hands_every_value_on(tmp_path: Path) -> None:
    said, spec = ran(FULL, tmp_path)
    assert said.split() == [
        "-m", "controlplane.slurm.guest", "--nodes", "3", "--spares", "1", "--devices", "8", "--grace-s", "75",
        "--probe", "simulated", "--server", "https://hf.example.org", "--join-token-file", "/home/ada/token",
        "--owners", "*", "--directory", f"{tmp_path}/42",
    ]  # fmt: skip
    assert spec == FULL.spec_text
    assert (tmp_path / "42").stat().st_mode & 0o077 == 0
    assert (tmp_path / "42" / "job.yaml").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("there", ["a folder", "a link"])
def test_a_folder_that_is_there_already_ends_the_job_before_the_spec_is_written(tmp_path: Path, there: str) -> None:
    """Somebody made it, or an earlier job of that number: what lies there would be believed."""
    (tmp_path / "other").mkdir()
    if there == "a link":
        (tmp_path / "42").symlink_to(tmp_path / "other")
    else:
        (tmp_path / "42").mkdir()
        (tmp_path / "42" / "job.yaml").symlink_to(tmp_path / "other" / "job.yaml")
    text = script(replace(PLAN, python="/bin/echo", directory=str(tmp_path), checkout=""))
    done = subprocess.run(
        ["bash"], input=text, capture_output=True, text=True, check=False, timeout=20,
        env={"PATH": os.defpath, "SLURM_JOB_ID": "42"},
    )  # fmt: skip
    assert done.returncode == COULD_NOT == Exit.UNAVAILABLE and done.stdout == ""
    assert "It could not run: the folder of this run is there already" in done.stderr
    assert not list((tmp_path / "other").iterdir())


@pytest.mark.parametrize(
    "text",
    [
        "a: $(touch hit)\n", "a: `touch hit`\n", "a: '\n'; touch hit; '\n", "EOF\ntouch hit\n",
        "END_OF_SPEC_\ntouch hit\n", "\\\ntouch hit\n", "a: ${x:=$(touch hit)}\n",
        "#SBATCH --uid=0\na: 1\n", "<<'EOF'\n", "a: \u00e9\u2028$(touch hit)\n",
    ],
)  # fmt: skip
def test_nothing_of_a_spec_is_a_command(tmp_path: Path, text: str) -> None:
    plan = replace(PLAN, spec_text=text)
    _, spec = ran(plan, tmp_path)
    assert spec.rstrip("\n") == text.rstrip("\n")
    assert not list(tmp_path.rglob("hit"))
    # Slurm reads options up to the first command: none of them comes from the spec.
    head = script(plan).partition("\nset -eu\n")[0]
    assert "--uid" not in head


@given(st.text(st.characters(exclude_characters="\0\r", codec="utf-8"), max_size=300))
def test_any_spec_is_between_two_lines_that_it_does_not_have(text: str) -> None:
    lines = script(replace(PLAN, spec_text=text)).split("\n")
    (end,) = {line for line in lines if re.fullmatch(r"END_OF_SPEC_[0-9a-f]{64}", line)}
    begin = next(index for index, line in enumerate(lines) if line.endswith(f"<<'{end}'"))
    assert "\n".join(lines[begin + 1 : lines.index(end)]) == text.rstrip("\n")


@pytest.mark.parametrize(
    ("grace_s", "kill_wait_s", "agents_s"),
    [(60, 30, 20), (60, 60, 45), (120, 90, 75), (10, 30, 7), (60, 1, 1), (60, 2, 2)],
)
def test_agents_have_the_shorter_grace_less_what_the_rest_needs(grace_s: int, kill_wait_s: int, agents_s: int) -> None:
    assert agents_grace_s(replace(PLAN, grace_s=grace_s, kill_wait_s=kill_wait_s)) == agents_s


def test_a_checkout_is_shown_to_python_and_a_package_is_not() -> None:
    assert "cd -- /opt/hf\nexport PYTHONPATH=/opt/hf" in script(PLAN)
    assert "PYTHONPATH" not in script(replace(PLAN, checkout=""))
