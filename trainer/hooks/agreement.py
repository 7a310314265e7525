"""How the ranks of a program agree on an order that reaches them at different moments.

A save is a collective: if one rank enters it a step before the others, all of them hang.
"""

import sys
from collections.abc import Callable, Sequence

Agree = Callable[[Sequence[int]], Sequence[int] | None]
"""Takes this rank's flags (0 or 1), returns for each whether any rank raised it; called by
every rank at the same places. None: no agreement is possible now."""


def any_rank(flags: Sequence[int]) -> Sequence[int] | None:
    """Agree over the default group of torch.distributed, if the program has set one up.

    One all-reduce of a few integers. torch is looked up among the loaded modules, never
    imported. Raises what the collective raises: a lost peer is the program's own trouble.
    """
    torch, distributed = sys.modules.get("torch"), sys.modules.get("torch.distributed")
    if torch is None or distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    tally = torch.tensor(list(flags), dtype=torch.int32, device=device)
    distributed.all_reduce(tally, op=distributed.ReduceOp.MAX)
    return [int(flag) for flag in tally.tolist()]
