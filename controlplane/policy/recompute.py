"""Which committed step is computed again after a recovery, from what, and whether it came out alike.

Called by `recovery.recompute` and by the trainer's tests. Pure: the seed of the choice is an
argument. What is compared: loss and gradient norm of every step that was computed again, and the
hash of each rank's whole state after the last of them.

Tolerance. Where at most two replicas shared each step, and the order in which each computed its
micro-batches is known, the same sums are added in the same order (a + b = b + a), so on CPUs the
state must come out bit for bit. The sums of more replicas are added in the order of the exchange's
ring, and kernels of a GPU may add in any order: there losses and norms may differ by rounding.
Each sum of gradients is off by some 2^-24 of its parts, and each optimizer step adds that to those
before, so the limit grows with the steps: for a loss as in the comparison with an undisturbed run
(1e-5 a step in fp32, at most 1e-3; 1e-2 in bf16), for a norm, which has the rounding of its parts
and of the parameters, ten times that, relative.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controlplane.protocol.recompute import MAX_SPANS, MAX_STEPS, Share, Span

NORM_FACTOR = 10.0
LOSS_LIMIT_MAX = 1e-3
LOSS, NORM = "the loss", "the gradient norm"


class Unclear(ValueError):
    """What the ranks told does not say who computed what, and the text says where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """A committed step: the micro-batches that each replica told it had computed, sorted."""

    step: int
    by_replica: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """A membership that was installed at `step`; what each contributor held of that step by then."""

    epoch: int
    step: int
    done: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Plan:
    """`exact`: the same sums can be added in the same order."""

    spans: tuple[Span, ...]
    exact: bool


@dataclass(frozen=True, slots=True)
class Numbers:
    """Of one step, as committed or as computed again; None: not told, or (`finite` False) no number."""

    loss: float | None
    grad_norm: float | None
    finite: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One rank's answer. `state_hash` "": it did not come so far, and `error` says why."""

    steps: Mapping[int, Numbers]
    state_hash: str
    on: str
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Steps `from_step` to `until_step` - 1, by a replica of `ranks` ranks. `tolerance` of a loss
    after one step, absolute."""

    from_step: int
    until_step: int
    ranks: int
    exact: bool
    tolerance: float

    def loss_limit(self, step: int) -> float:
        """How far the loss of `step` may be off."""
        most = max(self.tolerance, LOSS_LIMIT_MAX)
        return min(most, self.tolerance * (1 + step - self.from_step))

    def norm_limit(self, step: int) -> float:
        """How far its gradient norm may be off, relative."""
        return NORM_FACTOR * self.loss_limit(step)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`ok` None: nothing to judge by. `value`: the largest difference over its limit."""

    ok: bool | None
    detail: str
    value: float | None = None


def choose(steps: Sequence[int], *, seed: str) -> int:
    """One of `steps`, by chance, and the same one for the same seed. There must be one."""
    digest = hashlib.blake2b(seed.encode(), digest_size=8).digest()
    return sorted(steps)[int.from_bytes(digest) % len(steps)]


def candidates(steps: Sequence[int], *, from_step: int, cost_s: float | None, limit_s: float) -> list[int]:
    """Those of `steps` that can be the last one recomputed from `from_step` on: within MAX_STEPS, and
    within `limit_s` at `cost_s` a step (None: not measured)."""
    most = MAX_STEPS if not cost_s else min(MAX_STEPS, int(limit_s / cost_s))
    return [step for step in steps if from_step <= step < from_step + most]


def plan_of(steps: Sequence[Computed], installs: Sequence[Installed], *, micro_batches: int) -> Plan:
    """Who computes what again in these consecutive steps. Raises Unclear."""
    spans: list[Span] = []
    exact, before = True, frozenset[int]()
    for computed in steps:
        told = _whole(computed, before, micro_batches)
        here = sorted((each for each in installs if each.step == computed.step), key=lambda each: each.epoch)
        shares = []
        for replica in sorted(told):
            parts, known = _parts(told[replica], [each.done.get(replica, ()) for each in here])
            exact = exact and known
            shares.append(Share(replica, parts))
        exact = exact and len(shares) <= 2
        if not spans or spans[-1].shares != tuple(shares):
            spans.append(Span(computed.step, tuple(shares)))
        before = frozenset(told)
    if not spans or len(spans) > MAX_SPANS:
        raise Unclear(f"{len(spans)} different shares of the batch in {len(steps)} steps")
    return Plan(tuple(spans), exact)


def _whole(computed: Computed, before: frozenset[int], micro_batches: int) -> dict[int, tuple[int, ...]]:
    """Each micro-batch once. What is missing was the one's that told nothing and was there in the step
    before: its last word died with it. Raises Unclear."""
    told = {replica: tuple(sorted(ids)) for replica, ids in computed.by_replica.items() if ids}
    held = [number for ids in told.values() for number in ids]
    missing = tuple(number for number in range(micro_batches) if number not in set(held))
    silent = before - set(told)
    if missing and len(silent) == 1:
        told[next(iter(silent))] = missing
        missing = ()
    if missing or len(held) != len(set(held)):
        raise Unclear(f"nothing says who computed which micro-batches of step {computed.step}")
    return told


def _parts(mine: tuple[int, ...], held: Sequence[tuple[int, ...]]) -> tuple[tuple[tuple[int, ...], ...], bool]:
    """What a replica computed of a step, cut where a view change came in between, and whether that
    is known to be the order."""
    parts, seen = list[tuple[int, ...]](), set[int]()
    for ids in held:
        if not set(ids) <= set(mine) or not seen <= set(ids):
            return (mine,), False
        if fresh := tuple(sorted(set(ids) - seen)):
            parts.append(fresh)
        seen |= set(ids)
    if rest := tuple(sorted(set(mine) - seen)):
        parts.append(rest)
    return tuple(parts), True


def judge(
    asked: Asked, *, committed: Mapping[int, Numbers], hashes: Mapping[int, str], told: Mapping[int, Told]
) -> Verdict:
    """`committed` by step; `hashes` of the state after the last step and `told` by rank. What was
    compared and differs fails, however far the ranks came."""
    found = [
        (off, step, what)
        for answer in told.values()
        for step, numbers in answer.steps.items()
        if (was := committed.get(step)) is not None
        for off, what in _differences(asked, step, was, numbers)
    ]
    last = asked.until_step - 1
    worst = max(found, default=(0.0, last, ""))
    by = {what: {step for _, step, each in found if each == what} for what in (LOSS, NORM)}
    compared = by[LOSS] & by[NORM]
    if worst[0] > 1.0:
        off = worst[0] if math.isfinite(worst[0]) else None
        return Verdict(False, f"{worst[2]} of step {worst[1]} came out as another: {_limits(asked)}", off)
    states = {rank: answer.state_hash == hashes[rank] for rank, answer in told.items() if rank in hashes}
    states = {rank: same for rank, same in states.items() if told[rank].state_hash}
    bitwise = asked.exact and all(answer.on == "cpu" for answer in told.values())
    if bitwise and not all(states.values()):
        wrong = min(rank for rank, same in states.items() if not same)
        detail = (
            f"the state of rank {wrong} after step {last} came out as another, from the same sums in the same order"
        )
        return Verdict(False, detail, worst[0])
    if why := next((answer.error for answer in told.values() if answer.error), ""):
        return Verdict(None, f"not judged: {why}")
    if len(told) < asked.ranks:
        return Verdict(None, f"not judged: {len(told)} of {asked.ranks} ranks reported what they recomputed")
    if last not in compared:
        return Verdict(None, f"not judged: loss and gradient norm of step {last} were not both reported")
    same = sum(states.values())
    text = f"steps {asked.from_step} to {last} computed again; {len(compared)} of {last - asked.from_step + 1} compared"
    text += f" by loss and gradient norm; {_limits(asked)}; {_states(asked, states, same, last, bitwise=bitwise)}"
    return Verdict(True, text, worst[0])


def _differences(asked: Asked, step: int, was: Numbers, now: Numbers) -> list[tuple[float, str]]:
    """Each difference over its limit, with what differs."""
    found = []
    if was.finite and not now.finite:
        return [(math.inf, "the loss or the gradient norm")]
    if was.loss is not None and now.loss is not None:
        found.append((abs(was.loss - now.loss) / asked.loss_limit(step), LOSS))
    if was.grad_norm is not None and now.grad_norm is not None:
        scale = max(abs(was.grad_norm), abs(now.grad_norm))
        off = abs(was.grad_norm - now.grad_norm) / scale if scale > 0 else 0.0
        found.append((off / asked.norm_limit(step), NORM))
    return found


def _limits(asked: Asked) -> str:
    last = asked.until_step - 1
    return (
        f"a loss may be off by {asked.loss_limit(last):.0e} by then ({asked.tolerance:.0e} a step), a norm by"
        f" {asked.norm_limit(last):.0e} of it"
    )


def _states(asked: Asked, states: Mapping[int, bool], same: int, last: int, *, bitwise: bool) -> str:
    if states and same == len(states):
        whole = f"parameters, optimizer and random state after step {last}"
        return f"{whole} equal bit for bit on {same} of {asked.ranks} ranks"
    if not states:
        return f"the state after step {last} was not compared: no hash of it was reported when it was trained"
    why = "the order in which the sums of its replicas were added is not known" if not asked.exact else "a GPU adds"
    why += "" if not asked.exact else " in varying sequence"
    assert not bitwise, "a state that must be equal and is not has failed"
    return f"the state after step {last} was not compared bit for bit: {why}"
