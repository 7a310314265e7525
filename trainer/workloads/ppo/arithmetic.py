"""The numbers of PPO that need no model: reward, advantages, the order of mini-batches.

Pure, on numpy arrays of the whole global batch in the order of its samples, so that no
number depends on how many replicas there are.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
STEADY = 1e-8


def rewards(responses: NDArray[np.int64], target_bytes: tuple[int, int]) -> Floats:
    """[samples, length] bytes -> [samples, length] rewards: each byte within the range pays
    1 / length when it is written, so that a sample's rewards add up to its share of them."""
    first, last = target_bytes
    hits = (responses >= first) & (responses <= last)
    return hits.astype(np.float64) / responses.shape[1]


def advantages(reward: Floats, values: Floats, *, discount: float, gae_lambda: float) -> tuple[Floats, Floats]:
    """Generalized advantage estimation. All [samples, length]; a response ends after its last
    byte, where the value is 0. Returns (advantages, returns = advantages + values)."""
    following = np.concatenate([values[:, 1:], np.zeros_like(values[:, :1])], axis=1)
    errors = reward + discount * following - values
    found = np.zeros_like(errors)
    running = np.zeros(errors.shape[0])
    for at in range(errors.shape[1] - 1, -1, -1):
        running = errors[:, at] + discount * gae_lambda * running
        found[:, at] = running
    return found, found + values


def whiten(numbers: Floats) -> Floats:
    """Mean 0 and deviation 1 over all of them; equal numbers become 0."""
    return np.asarray((numbers - numbers.mean()) / (numbers.std() + STEADY))


def mini_batches(*, step: int, epoch: int, seed: int, global_batch: int, size: int) -> list[list[int]]:
    """Positions in the global batch, shuffled, cut into mini-batches. A function of its
    arguments alone: a step that is done again trains the same samples together."""
    order = np.random.default_rng([seed, step, epoch]).permutation(global_batch)
    return [sorted(int(position) for position in part) for part in order.reshape(-1, size)]
