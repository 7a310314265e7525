"""The order of samples within a data epoch: a keyed bijection, in constant memory.

A permutation of a corpus of 10^10 windows would take 80 GB if it were kept. A Feistel
network over the smallest even number of bits that holds the count is a bijection for any
round function; a number that falls outside of the count is sent through again until it
falls inside (cycle walking), which keeps it a bijection and takes fewer than four rounds
of the network on average. Rounds are keyed with (seed, data epoch, round), so that each
data epoch has an order of its own and any sample can be found without those before it.
"""

import hashlib

ROUNDS = 6
_ROUND_BYTES = 8


def shuffled(index: int, count: int, *, seed: int, epoch: int) -> int:
    """The place that `index` takes in the order of data epoch `epoch`; both in 0..count-1.

    For a fixed (count, seed, epoch) it is a permutation of 0..count-1.
    """
    assert 0 <= index < count, "the caller divides by the count"
    half_bits = max(1, ((count - 1).bit_length() + 1) // 2)
    place = _network(index, half_bits, seed=seed, epoch=epoch)
    while place >= count:
        place = _network(place, half_bits, seed=seed, epoch=epoch)
    return place


def _network(number: int, half_bits: int, *, seed: int, epoch: int) -> int:
    """One pass: a permutation of the numbers of 2 x `half_bits` bits."""
    mask = (1 << half_bits) - 1
    left, right = number >> half_bits, number & mask
    for turn in range(ROUNDS):
        left, right = right, left ^ (_round(right, seed=seed, epoch=epoch, turn=turn) & mask)
    return left << half_bits | right


def _round(half: int, *, seed: int, epoch: int, turn: int) -> int:
    text = b"%d:%d:%d:%d" % (seed, epoch, turn, half)
    return int.from_bytes(hashlib.blake2b(text, digest_size=_ROUND_BYTES).digest(), "little")
