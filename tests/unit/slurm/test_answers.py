"""What Slurm's programs print, as values; anything else is no news, and never an error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.engines.slurm import answers
from controlplane.engines.slurm.answers import Partition

READERS = (answers.job_id, answers.kill_wait_s, answers.partitions, answers.address, answers.queue)
NOTHING = (None, (), {})
NODE = (
    "NodeName=n3 Arch=x86_64 CoresPerSocket=1 CPUAlloc=0 CPUTot=2 NodeAddr=10.1.0.3 NodeHostName=n3 Version=22.05.8"
    " OS=Linux 6.1.0 #1 SMP Debian (2026-01-01) RealMemory=1000 State=IDLE+DRAIN ThreadsPerCore=1 Weight=1"
    " Reason=XID 79, see the incident [root@2026-11-28T22:41:00]\n"
)
WHOLE = [(answers.address, NODE), (answers.job_id, "42\n"), (answers.kill_wait_s, "KillWait = 30 sec\n")]


def test_the_id_of_a_submitted_job() -> None:
    assert answers.job_id("42\n") == "42"
    assert answers.job_id("42;cluster-a\n") == "42"
    assert answers.job_id("sbatch: Pending for a reason\nSubmitted batch job 42\n") == "42"
    assert answers.job_id("sbatch: error: 42 is no partition\n") is None


def test_how_long_scancel_waits() -> None:
    assert answers.kill_wait_s("KillOnBadExit           = 0\nKillWait                = 30 sec\nLaunch = x\n") == 30
    assert answers.kill_wait_s("KillWait = soon\n") is None
    assert answers.kill_wait_s("UnKillWait = 5 sec\n") is None


def test_partitions() -> None:
    assert answers.partitions("gpu|up|4-00:00:00|12\ngpu|up|4-00:00:00|3\nold|down|infinite|1\n|||\nx|up\n") == (
        Partition(name="gpu", up=True, limit="4-00:00:00", nodes=15),
        Partition(name="old", up=False, limit="infinite", nodes=1),
    )


def test_the_queue() -> None:
    text = "41|RUNNING\n42|PENDING\n4a|RUNNING\n43|running\n44\n|PENDING\n45|OUT_OF_MEMORY\n46|COMPLET"
    assert answers.queue(text) == {"41": "RUNNING", "42": "PENDING", "45": "OUT_OF_MEMORY"}


def test_the_address_of_a_node() -> None:
    assert answers.address(NODE) == "10.1.0.3"
    assert answers.address(NODE.replace("10.1.0.3", "gpu-a1.cluster")) == "gpu-a1.cluster"
    assert answers.address(NODE.replace("10.1.0.3", "fd00::3")) == "fd00::3"
    for nothing in ("(null)", "", "$(id)", "a" * 300):
        assert answers.address(NODE.replace("10.1.0.3", nothing)) is None
    assert answers.address("Node n9 not found\n") is None


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "text", ["", "\n", "\0", "slurm_load_jobs error: Unable to contact slurm controller", "<html>"]
)
def test_an_empty_answer_and_garbage_are_no_news(reader, text):  # type: ignore[no-untyped-def]
    assert reader(text) in NOTHING


@pytest.mark.parametrize("reader", READERS)
@given(text=st.text(max_size=400))
def test_no_text_is_an_error(reader, text):  # type: ignore[no-untyped-def]
    reader(text)


@given(data=st.data())
@pytest.mark.parametrize(
    ("reader", "text"),
    WHOLE,
)
def test_an_answer_that_is_cut_is_no_news(reader, text, data):  # type: ignore[no-untyped-def]
    assert reader(text) is not None
    assert reader(text[: data.draw(st.integers(0, len(text) - 1))]) is None


@given(cut=st.integers(0, 60))
def test_of_a_list_that_is_cut_whole_lines_count(cut: int) -> None:
    text = "gpu|up|4-00:00:00|12\nold|down|infinite|1\nnew|up|1:00:00|4\n"
    whole = answers.partitions(text)
    assert answers.partitions(text[:cut]) == whole[: text[:cut].count("\n")]
