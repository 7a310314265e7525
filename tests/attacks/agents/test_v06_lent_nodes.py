"""V06, a node that a user of Slurm lends: ranks run there as he does, so jobs of his own account alone start there.

Any account that may submit would else run its code with all that he can read: his files, the join token, and the keys
of all nodes that he lends."""

from pathlib import Path

import msgspec
import pytest

from agents import policy_file
from agents.config import load
from agents.core.policy import refusal
from agents.errors import ConfigError
from agents.policy_file import rules_of
from controlplane.protocol.commands import StartRanks, VerifyCheckpoint, WarmHost
from tests.properties.agents.world import launch


@pytest.fixture(autouse=True)
def as_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who submits is not root."""
    monkeypatch.setattr(policy_file, "separates", lambda: False)


def runs(folder: Path, owner: str, *options: str, policy: str | None = None) -> bool:
    """Whether the agent of an allocation starts a job of `owner`."""
    file = folder / "policy.toml"
    if policy is not None:
        file.write_text(policy)
        file.chmod(0o600)
    rules = rules_of(load(["--tenancy", "allocation", "--policy-file", str(file), *options], {}))
    start = StartRanks(msgspec.structs.replace(launch(), user=owner))
    found = {
        refusal(rules, body) == ""
        for body in (start, WarmHost("job_1", 1, user=owner), VerifyCheckpoint("job_1", "/c", 1, 1, 9.0, user=owner))
    }
    assert len(found) == 1, "of all commands that run something of the job"
    return found.pop()


def test_jobs_of_other_accounts_do_not_start_on_a_lent_node(tmp_path: Path) -> None:
    for owner in ("mallory", "", "ada2", "*"):
        assert not runs(tmp_path, owner, "--owners", "ada")
    assert runs(tmp_path, "ada", "--owners", "ada")


def test_who_lends_lets_others_in_by_name_or_everybody(tmp_path: Path) -> None:
    assert runs(tmp_path, "grace", "--owners", "ada, grace") and not runs(tmp_path, "mallory", "--owners", "ada,grace")
    assert runs(tmp_path, "mallory", "--owners", "*")


def test_an_agent_that_nobody_told_whose_jobs_it_is_for_does_not_start(tmp_path: Path) -> None:
    for nobody in ((), ("--owners", ""), ("--owners", " , ")):
        with pytest.raises(ConfigError, match="--owners names the accounts"):
            runs(tmp_path, "ada", *nobody)


def test_the_nodes_policy_file_narrows_it_further_and_is_never_widened(tmp_path: Path) -> None:
    both = '[users]\nallowed = ["ada", "grace"]\n'
    assert runs(tmp_path, "ada", "--owners", "ada,mallory", policy=both)
    assert not runs(tmp_path, "mallory", "--owners", "ada,mallory", policy=both)
    assert not runs(tmp_path, "grace", "--owners", "ada", policy=both)
    assert not runs(tmp_path, "mallory", "--owners", "*", policy=both)
    assert not runs(tmp_path, "mallory", "--owners", "ada", policy="observe_only = false\n"), (
        "it says nothing of owners"
    )


def test_where_ranks_run_as_their_owners_the_policy_file_alone_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_file, "separates", lambda: True)
    assert runs(tmp_path, "mallory", "--owners", "ada") and runs(tmp_path, "mallory")


def test_a_node_that_is_not_lent_has_no_such_option() -> None:
    with pytest.raises(ConfigError, match=r"users\.allowed"):
        load(["--owners", "ada"], {})
