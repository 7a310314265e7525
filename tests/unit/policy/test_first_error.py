"""Of many ranks that failed, the first cause is named and not what followed from it."""

import pytest

from controlplane.policy.first_error import LastWords, error_line, first_error

ROOT = """step 41
Traceback (most recent call last):
  File "train.py", line 7, in main
    batch = next(batches)
  File "data.py", line 3, in __next__
    raise ValueError("sample 17 is empty")
ValueError: sample 17 is empty
"""
CASCADE = """Traceback (most recent call last):
  File "loop.py", line 90, in step
    work.wait()
RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:44105
"""


def words(rank: int, text: str, ended_s: float, **more: object) -> LastWords:
    return LastWords(replica=0, incarnation=1, rank=rank, ended_s=ended_s, text=text, **more)  # type: ignore[arg-type]


def test_the_root_is_named_though_the_news_of_it_came_last() -> None:
    found = first_error([words(rank, CASCADE, 1.0 + rank / 1000) for rank in range(999)] + [words(999, ROOT, 9.0)])
    assert found is not None
    assert (found.words.rank, found.line, found.root) == (999, "ValueError: sample 17 is empty", True)
    assert found.followed == 999


def test_of_two_roots_the_earlier_is_first() -> None:
    found = first_error([words(1, ROOT, 2.0), words(2, ROOT.replace("17", "18"), 1.0)])
    assert found is not None
    assert found.words.rank == 2


def test_a_rank_killed_without_a_word_comes_before_those_that_lost_it() -> None:
    found = first_error([words(0, CASCADE, 1.0), words(3, "step 40\n", 1.5)])
    assert found is not None
    assert (found.words.rank, found.line, found.root, found.followed) == (3, "", False, 1)


def test_only_what_followed_is_known_and_said_so() -> None:
    found = first_error([words(0, CASCADE, 2.0), words(1, CASCADE, 1.0)])
    assert found is not None
    assert (found.words.rank, found.root) == (1, False)


def test_whoever_was_ordered_to_end_explains_nothing() -> None:
    assert first_error([words(0, ROOT, 1.0, killed=True)]) is None
    assert first_error([]) is None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Fatal Python error: Segmentation fault\n", "Fatal Python error: Segmentation fault"),
        (ROOT + "\nDuring handling of the above exception, another exception occurred:\n\n" + CASCADE,
         "RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:44105"),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory\n", "torch.cuda.OutOfMemoryError: CUDA out of memory"),
        ("step 1\nstep 2\n", ""),
        ("", ""),
    ],
)  # fmt: skip
def test_the_error_is_the_line_that_names_it(text: str, line: str) -> None:
    assert error_line(text) == line


PEERS_END = [
    "RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:81] Application timeout caused pair closure",
    "RuntimeError: Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:144] no error",
    "RuntimeError: [Rank 0]: Ranks 1 failed to pass monitoredBarrier in 30000 ms",
    "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of (h, 1).",
    "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to h.",
    "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
    "RuntimeError: NCCL error: remote process exited or there was a network error, NCCL version 2.21.5",
    "OSError: [Errno 107] Transport endpoint is not connected",
]


@pytest.mark.parametrize("line", PEERS_END)
def test_a_peers_end_in_any_librarys_words_is_no_root(line: str) -> None:
    text = f'Traceback (most recent call last):\n  File "loop.py", line 9, in step\n{line}\n'
    found = first_error([words(0, text, 1.0), words(1, ROOT, 2.0)])
    assert found is not None
    assert (found.words.rank, found.root, found.followed) == (1, True, 1)


@pytest.mark.parametrize(
    ("places", "root"),
    [
        (("/lib/python3.11/multiprocessing/connection.py",), False),
        (("/site-packages/torch/distributed/rendezvous.py",), False),
        (("data.py",), True),
        (("/site-packages/torch/utils/data/dataloader.py", "/lib/python3.11/multiprocessing/connection.py"), True),
    ],
)  # fmt: skip
def test_an_end_of_file_follows_from_another_only_on_a_connection_between_ranks(
    places: tuple[str, ...], root: bool
) -> None:
    frames = "".join(f'  File "{place}", line 3, in _recv\n' for place in places)
    found = first_error([words(0, f"Traceback (most recent call last):\n{frames}EOFError\n", 1.0), words(1, ROOT, 2.0)])
    assert found is not None
    assert (found.words.rank == 0) is root


def test_a_server_that_cannot_listen_is_a_root() -> None:
    line = "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address.\n"
    found = first_error([words(0, line, 1.0), words(1, ROOT, 2.0)])
    assert found is not None
    assert (found.words.rank, found.root) == (0, True)


@pytest.mark.parametrize(("died_s", "signal", "first"), [(1.0, 9, 3), (3.0, 9, 1), (1.0, None, 1)])
def test_a_silent_death_by_a_signal_is_first_where_it_came_first(died_s: float, signal: int | None, first: int) -> None:
    found = first_error([words(1, ROOT, 2.0), words(3, "step 40\n", died_s, signal=signal)])
    assert found is not None
    assert found.words.rank == first


def test_a_silent_death_that_was_ordered_is_never_first() -> None:
    found = first_error([words(1, ROOT, 2.0), words(3, "step 40\n", 1.0, signal=9, killed=True)])
    assert found is not None
    assert found.words.rank == 1
