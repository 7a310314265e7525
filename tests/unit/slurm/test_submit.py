"""`holdfast slurm submit`, where Slurm is not there or refuses: plain sentences. A real Slurm: tests/slurm."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.cli.context import STATE, State
from controlplane.cli.exits import Exit
from controlplane.cli.main import main

SPEC = "metadata: {name: first}\nspec:\n  resources: {nodes: 2, gpus_per_node: 4}\n"


@pytest.fixture
def holdfast(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """holdfast("--nodes", "2") -> (code, out, err); programs are those of `tmp_path/bin` alone."""
    (tmp_path / "first.yaml").write_text(SPEC)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    def run(*argv: str) -> tuple[int, str, str]:
        runs = str(tmp_path / "runs")
        code = main(["slurm", "submit", str(tmp_path / "first.yaml"), "--directory", runs, *argv])
        return code, *capsys.readouterr()

    yield run
    for name in State.__dataclass_fields__:
        setattr(STATE, name, getattr(State(), name))


def program(folder: Path, name: str, script: str) -> None:
    path = folder / "bin" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_print_shows_the_script_and_needs_no_slurm(holdfast: Any, tmp_path: Path) -> None:
    code, out, _ = holdfast("--nodes", "2", "--partition", "gpu", "--time", "4:00:00", "--print")
    assert code == Exit.OK and out.startswith("#!/bin/bash\n#SBATCH --job-name=holdfast-first\n")
    for line in ("#SBATCH --nodes=3", "#SBATCH --partition=gpu", "#SBATCH --time=4:00:00", "#SBATCH --gres=gpu:4"):
        assert f"{line}\n" in out
    assert SPEC in out and not (tmp_path / "runs").exists(), "nothing was made"


def test_without_sbatch_it_says_where_to_run_it(holdfast: Any) -> None:
    code, out, err = holdfast("--nodes", "2")
    assert (code, out) == (Exit.NOT_FOUND, "")
    assert "error: there is no sbatch here\nfix: run it on a machine from which jobs are submitted" in err


def test_what_sbatch_says_is_shown_and_a_partition_that_is_not_there_is_named(holdfast: Any, tmp_path: Path) -> None:
    program(tmp_path, "sbatch", "echo 'sbatch: error: invalid partition specified: gpux' >&2; exit 1")
    code, _, err = holdfast("--nodes", "2", "--partition", "gpux")
    assert code == Exit.NEGATIVE and "sbatch refused: sbatch: error: invalid partition specified: gpux" in err
    assert "fix: ask Slurm's administrator" in err, "sinfo does not answer: nothing is concluded"
    program(tmp_path, "sinfo", "printf 'gpu|up|1:00:00|4\\nold|down|infinite|1\\n'")
    assert "there is no partition gpux here; there is: gpu, old" in holdfast("--nodes", "2", "--partition", "gpux")[2]
    assert "partition old is not up" in holdfast("--nodes", "2", "--partition", "old")[2]
    assert "partitions: gpu, old" in holdfast("--nodes", "2")[2]


def test_words_of_sbatch_do_not_steer_the_terminal(holdfast: Any, tmp_path: Path) -> None:
    program(tmp_path, "sbatch", "printf '\\033[2Jgone' >&2; exit 1")
    assert "\x1b" not in holdfast("--nodes", "2")[2]


def test_an_answer_without_a_number_is_a_refusal(holdfast: Any, tmp_path: Path) -> None:
    program(tmp_path, "sbatch", "echo queued")
    code, _, err = holdfast("--nodes", "2")
    assert code == Exit.NEGATIVE and "sbatch refused: queued" in err


def test_the_script_and_its_options_are_what_sbatch_gets(holdfast: Any, tmp_path: Path) -> None:
    program(
        tmp_path,
        "sbatch",
        f'PATH={os.defpath}; cat > "{tmp_path}/script"; echo "$@" > "{tmp_path}/options"; echo "42;here"',
    )
    program(tmp_path, "scontrol", "echo 'KillWait                = 45 sec'")
    code, out, err = holdfast("--nodes", "2", "--spares", "0", "--grace", "120")
    assert (code, out) == (Exit.OK, "42\n") and "scancel --signal=TERM 42" in err
    assert "--parsable --job-name=holdfast-first --nodes=2 " in (tmp_path / "options").read_text()
    assert "--grace-s \\\n  30 " in (tmp_path / "script").read_text(), "what scancel leaves is less than the warning"
    assert (tmp_path / "runs").stat().st_mode & 0o077 == 0


def test_a_directory_to_which_others_may_write_is_refused_before_anything_is_submitted(
    holdfast: Any, tmp_path: Path
) -> None:
    program(tmp_path, "sbatch", f'echo x > "{tmp_path}/asked"; echo 42')
    (tmp_path / "runs").mkdir(mode=0o700)
    (tmp_path / "runs").chmod(0o775)
    code, out, err = holdfast("--nodes", "2")
    assert (code, out) == (Exit.USAGE, "") and "(mode 775), and could change what is run as you" in err
    assert f"fix: chmod go-w {tmp_path}/runs, or name another with --directory" in err
    assert not (tmp_path / "asked").exists()


def test_slurm_makes_the_output_for_the_user_alone(
    holdfast: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the umask of `sbatch`, or what an allocation in which that runs has put into SLURM_UMASK."""
    monkeypatch.setenv("SLURM_UMASK", "0022")
    program(
        tmp_path,
        "sbatch",
        f'PATH={os.defpath}; cat > /dev/null; echo "$(umask) $SLURM_UMASK" > {tmp_path}/mask; echo 42',
    )
    assert holdfast("--nodes", "2")[0] == Exit.OK
    assert (tmp_path / "mask").read_text() == "0077 \n"


def test_wrong_usage_is_refused_before_anything_is_made(holdfast: Any, tmp_path: Path) -> None:
    for argv in (
        ("--nodes", "1"),
        ("--nodes", "2", "--partition", "$(id)"),
        ("--nodes", "2", "--server", "https://h"),
        ("--nodes", "2", "--owners", "ada"),
    ):
        code, _, err = holdfast(*argv)
        assert code == Exit.USAGE and "fix: " in err
    assert not (tmp_path / "runs").exists()


def counting_sbatch(folder: Path) -> None:
    """Jobs 41, 42, ...; what each was asked for is in `asked`; the third is refused."""
    program(
        folder,
        "sbatch",
        f'PATH={os.defpath}; cat > /dev/null; echo "$@" >> "{folder}/asked"; n=$(wc -l < "{folder}/asked")\n'
        '[ "$n" -lt 3 ] || { echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2; exit 1; }; echo $((40 + n))',
    )


def test_a_chain_is_one_allocation_behind_the_other(holdfast: Any, tmp_path: Path) -> None:
    counting_sbatch(tmp_path)
    code, out, err = holdfast("--nodes", "2", "--chain", "2")
    assert (code, out) == (Exit.OK, "41\n42\n") and "scancel 42 41" in err
    first, second = (tmp_path / "asked").read_text().splitlines()
    assert "--dependency" not in first and "--dependency=afterany:41" in second


def test_of_a_chain_that_slurm_cuts_short_what_was_submitted_is_said(holdfast: Any, tmp_path: Path) -> None:
    counting_sbatch(tmp_path)
    code, out, err = holdfast("--nodes", "2", "--chain", "4")
    assert (code, out) == (Exit.NEGATIVE, "41\n42\n")
    assert "QOSMaxSubmitJobPerUserLimit after 41, 42, which stay submitted" in err


@pytest.mark.parametrize("chain", ["0", "17", "-1", "x"])
def test_a_chain_has_one_to_sixteen_allocations(holdfast: Any, chain: str) -> None:
    assert holdfast("--nodes", "2", "--chain", chain, "--print")[0] == Exit.USAGE


def left(folder: Path, run: str) -> None:
    """Run `run` as it ended: with a checkpoint of step 40."""
    place = folder / run / "checkpoints" / "step_00000040-e1"
    place.mkdir(parents=True)
    (place / "COMMITTED.json").write_text('{"job_id": "job_1", "step": 40, "epoch": 1, "files": []}')
    (folder / run / "job.yaml").write_text(SPEC)
    (folder / run / "rows.sqlite3").write_bytes(b"rows")
    note = {"job": "job_1", "name": "first", "committed_step": 40, "step": 40, "path": str(place), "checkpoints": "/c"}
    (folder / run / "continue.json").write_text(json.dumps(note))
    (folder / run / "job.json").write_text('{"state": "preempted", "committed_step": 40}')


def test_a_run_is_continued_at_the_step_that_was_saved(holdfast: Any, tmp_path: Path) -> None:
    left(tmp_path / "runs", "7")
    counting_sbatch(tmp_path)
    code, out, err = holdfast("--nodes", "2", "--continue", "7")
    assert (code, out) == (Exit.OK, "41\n") and "Run 7 is continued: first resumes at step 40." in err
    code, out, _ = holdfast("--nodes", "2", "--continue", "7", "--print")
    assert code == Exit.OK and "--continues \\\n  7 " in out and "--chained" not in out


def test_a_run_that_is_in_the_queue_still_is_not_continued(holdfast: Any, tmp_path: Path) -> None:
    left(tmp_path / "runs", "7")
    program(tmp_path, "squeue", "printf '6|PENDING\\n7|COMPLETING\\n'")
    code, _, err = holdfast("--nodes", "2", "--continue", "7")
    assert code == Exit.USAGE and "run 7 is in Slurm's queue still (COMPLETING)" in err and "scancel" in err
    program(tmp_path, "squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    assert holdfast("--nodes", "2", "--continue", "7", "--print")[0] == Exit.OK, "the run itself has said its end"
    (tmp_path / "runs" / "7" / "job.json").unlink()
    code, _, err = holdfast("--nodes", "2", "--continue", "7")
    assert code == Exit.USAGE and "run 7 has not said that it ended, and Slurm does not say whether it runs" in err
    program(tmp_path, "squeue", "printf '6|PENDING\\n'")
    assert holdfast("--nodes", "2", "--continue", "7", "--print")[0] == Exit.OK, "it was killed"


def test_what_cannot_be_continued_is_refused_before_anything_is_submitted(holdfast: Any, tmp_path: Path) -> None:
    left(tmp_path / "runs", "7")
    counting_sbatch(tmp_path)
    server = ("--server", "https://h", "--join-token-file", "/t")
    for argv, words in (
        (("--continue", "8"), "there is no run '8'"),
        (("--continue", "../7"), "--continue '../7' is not possible"),
        (("--continue", "7", *server), "--continue does not go with --server"),
        (("--chain", "2", *server), "--chain does not go with --server"),
    ):
        code, _, err = holdfast("--nodes", "2", *argv)
        assert code == Exit.USAGE and words in err and "fix: " in err, argv
    (tmp_path / "runs" / "7" / "job.json").write_text('{"state": "succeeded", "committed_step": 200}')
    code, _, err = holdfast("--nodes", "2", "--continue", "7")
    assert code == Exit.USAGE and "has ended already: succeeded at step 200" in err
    assert not (tmp_path / "asked").exists()
