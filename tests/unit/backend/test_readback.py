"""What a program that has seen a job's files says of its own time."""

import msgspec
import pytest

from controlplane.checkpoints.readback import verdict_of
from controlplane.protocol.readback import Verdict


@pytest.mark.parametrize("took_s", [0.0, 12.5, 86_400.0])
def test_how_long_a_checkpoint_was_read_is_taken_from_its_reader(took_s: float) -> None:
    found = verdict_of(msgspec.json.encode(Verdict(ok=True, detail="read", took_s=took_s)))
    assert found is not None and found.took_s == took_s


@pytest.mark.parametrize("took", ["-1.0", "86401", "1e308", "null"])
def test_a_time_that_cannot_be_is_none_and_the_verdict_stands(took: str) -> None:
    found = verdict_of(f'{{"ok": true, "detail": "read", "took_s": {took}}}')
    assert found is not None and (found.ok, found.took_s) == (True, None)


def test_a_node_tells_no_time_of_its_own_so_that_an_older_server_understands_it() -> None:
    assert msgspec.json.decode(msgspec.json.encode(Verdict(ok=True, detail="read"))) == {"ok": True, "detail": "read"}
