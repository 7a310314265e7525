"""Thousands of stacks become a few groups that say where everybody is."""

import pytest

from controlplane.policy.stack_groups import MAX_RANKS, NO_STACK, group_stacks, place_of, sentence

IN_REDUCE = """Thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007e (most recent call first):
  File "/site-packages/torch/distributed/distributed_c10d.py", line 2800 in all_reduce
  File "/site-packages/torch/distributed/c10d_logger.py", line 81 in wrapper
  File "/opt/job/train.py", line 44 in main
"""
IN_DATA = """Thread 71 (idle): "MainThread"
    read (posixpath.py:12)
    __next__ (torch/utils/data/dataloader.py:708)
    main (train.py:40)
Thread 72 (idle): "feeder"
    _bootstrap (threading.py:1002)
"""
KERNEL = "pid 7 state S (sleeping) threads 3\nthread 7 python wchan futex_wait_queue\nthread 8 python wchan 0\n"


def test_eight_thousand_ranks_are_told_in_one_line() -> None:
    stacks = [(f"{r}.1/0", "", IN_DATA if r in (17, 4711) else IN_REDUCE) for r in range(8_000)]
    groups = group_stacks(stacks)
    assert sentence(groups) == "7,998 in all_reduce, 2 in the data loader"
    assert groups[1].ranks == ("17.1/0", "4711.1/0")
    assert len(groups[0].ranks) == MAX_RANKS
    assert groups[1].frames[0] == "read (posixpath.py:12)"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (IN_REDUCE, "all_reduce"),
        (IN_DATA, "the data loader"),
        (KERNEL, "the kernel (futex_wait_queue)"),
        (
            "the process is stopped (SIGSTOP); its own stacks cannot be asked for\n" + KERNEL,
            "a stopped process (SIGSTOP)",
        ),
        ('  File "/opt/job/train.py", line 9 in spin\n', "spin (train.py:9)"),
        ("", NO_STACK),
    ],
)
def test_a_stack_says_where_its_rank_is(text: str, where: str) -> None:
    assert place_of(text)[0] == where


def test_ranks_without_a_stack_are_counted_and_come_last() -> None:
    groups = group_stacks([("0.1/0", "", ""), ("0.1/1", "", ""), ("0.1/2", "", IN_REDUCE)])
    assert sentence(groups) == "1 in all_reduce, 2 without a stack"


def test_a_place_that_was_kept_counts_though_its_text_was_not() -> None:
    kept = [(f"{r}.1/0", "all_reduce", "") for r in range(7_996)]
    groups = group_stacks([*kept, ("7996.1/0", "", IN_REDUCE), ("7997.1/0", "the data loader", IN_DATA)])
    assert sentence(groups) == "7,997 in all_reduce, 1 in the data loader"
    assert groups[0].frames[0].startswith("all_reduce (")
