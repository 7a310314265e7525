"""Ten thousand commits that an older life tries, while epochs come and go: the fence lets none through."""

import random
from pathlib import Path

import pytest

from trainer.checkpoint.fence import Fence

TRIALS, RAISES = 10_000, 100


@pytest.mark.parametrize("seed", [1, 2])
def test_of_ten_thousand_commits_by_older_lives_none_is_allowed(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    fence, others = Fence(tmp_path), [Fence(tmp_path) for _ in range(4)]
    newest, refused, allowed = (1, 1), 0, 0
    fence.raise_now(*newest)
    for trial in range(TRIALS):
        if trial % (TRIALS // RAISES) == 0:
            # Late ones raise it too, to where they believe to be; that lowers nothing.
            later = (newest[0] + 1, 1) if dice.random() < 0.2 else (newest[0], newest[1] + dice.randint(1, 3))
            for epoch in sorted({newest, later, (1, 1)}, key=lambda _: dice.random()):
                dice.choice(others).raise_now(*epoch)
            newest = later
        old = (dice.randint(1, newest[0]), dice.randint(1, 400))
        old = old if old < newest else (newest[0], newest[1])
        if old == newest:
            allowed += dice.choice(others).allows(*old)
        else:
            assert not dice.choice(others).allows(*old), (old, newest)
            refused += 1
    assert refused > TRIALS // 2
    assert allowed == TRIALS - refused, "the newest life is never refused"
    assert fence.current() == newest
