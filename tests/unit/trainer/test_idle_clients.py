"""Parts of a rank that have nothing to say for longer than the store waits for a first word.

A donor's client was closed after a minute of silence: its offer met a broken pipe, and the joiner of
a job that had trained for longer waited for a donor for ever. A first checkpoint met the same.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from controlplane.protocol.launch import RankRef
from controlplane.protocol.store_keys import store_prefix, store_token
from tests.house.tree import ROOT
from trainer.checkpoint.commit import Board
from trainer.checkpoint.part import Part
from trainer.replica.donor import Donor, store_key
from trainer.store.client import OwnClient

KEY = b"the key of the store in this test, 32 bytes or more"
WAITS_S, TIMEOUT_S = 0.5, 20.0
SHORT = (
    "import trainer.store.server as server, trainer.store.__main__ as store\n"
    f"server.FIRST_KEY_WITHIN_S = {WAITS_S}\n"
    "raise SystemExit(store.main())\n"
)
REF = RankRef("job_a", 1, 0, 1, 0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[dist.Store]:
    (tmp_path / "key").write_bytes(KEY)
    argv = [sys.executable, "-c", SHORT, "--key-file", str(tmp_path / "key")]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    port = int(process.stdout.readline().rpartition(":")[2])
    timeout = timedelta(seconds=TIMEOUT_S)
    client = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timeout)
    joined = dist.PrefixStore(store_prefix("job_a", store_token(KEY, "job_a")), client)
    joined.set("up", "1")
    yield joined
    process.kill()
    process.wait()


def until(claim: Callable[[], bool]) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while not claim():
        assert time.monotonic() < end_s, "in time"
        time.sleep(0.01)


def be_silent() -> None:
    """Longer than the store waits for the first key; nothing happens then that could be waited for."""
    time.sleep(3 * WAITS_S)


def test_the_store_hangs_up_on_who_says_nothing_and_on_nobody_who_has_said_whose_he_is(store: dist.Store) -> None:
    mute, known = store.clone(), OwnClient(store)  # type: ignore[attr-defined]
    be_silent()
    known.set("x", "1")
    assert store.get("x") == b"1"
    with pytest.raises(RuntimeError):
        mute.set("y", "1")
        mute.get("y")


def test_a_donor_that_had_nothing_to_offer_for_long_offers_its_state(store: dist.Store) -> None:
    donor = Donor(REF, store, local_host="127.0.0.1")
    be_silent()
    donor.serve({(2, 4)}, [torch.ones(8)], step=7)
    until(lambda: store.check([store_key(REF, (0, 1), 7)]))
    donor.release({2})


def test_a_rank_that_saves_for_the_first_time_after_long_says_what_it_has_written(store: dist.Store) -> None:
    others = Board(store, RankRef("job_a", 1, 0, 1, 1), 2, timeout_s=TIMEOUT_S)
    first = Board(store, REF, 2, timeout_s=TIMEOUT_S)
    be_silent()
    others.post(1, Part(error="from rank 1"))
    assert [part.error for part in first.collect(1)] == ["from rank 1"]


def test_whoever_keeps_a_client_of_the_store_keeps_one_that_is_known() -> None:
    kept = [path for path in (ROOT / "trainer").rglob("*.py") if "tore.clone()" in path.read_text()]
    assert kept == []
