"""A snapshot arrives whole and unharmed, or not at all."""

import io

import pytest
import torch

from trainer.errors import CatchUpFailed
from trainer.replica.snapshot import read, restore, take, write


def state() -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randn(3, 4), torch.tensor(7.0), torch.randn(5).to(torch.bfloat16), torch.zeros(0)]


def wire() -> bytes:
    stream = io.BytesIO()
    write(take(state(), epoch=3, step=9), stream)
    return stream.getvalue()


def test_a_snapshot_survives_the_wire() -> None:
    got = read(io.BytesIO(wire()))
    assert (got.epoch, got.step) == (3, 9)
    target = [torch.zeros_like(tensor) for tensor in state()]
    restore(got, target)
    assert all(torch.equal(one, other) for one, other in zip(target, state(), strict=True))


def test_a_snapshot_is_a_copy() -> None:
    tensors = state()
    taken = take(tensors, epoch=1, step=1)
    tensors[0].zero_()
    assert taken.tensors[0].abs().sum() > 0


@pytest.mark.parametrize("position", [5, 200, -1])
def test_a_flipped_bit_is_noticed(position: int) -> None:
    data = bytearray(wire())
    data[position] ^= 1
    with pytest.raises(CatchUpFailed):
        read(io.BytesIO(bytes(data)))


@pytest.mark.parametrize("kept", [0, 10, -20, -1])
def test_a_torn_stream_is_noticed(kept: int) -> None:
    with pytest.raises(CatchUpFailed):
        read(io.BytesIO(wire()[:kept]))


def test_another_model_is_refused() -> None:
    with pytest.raises(CatchUpFailed, match="not mine"):
        restore(take(state(), epoch=1, step=1), state()[:2])
