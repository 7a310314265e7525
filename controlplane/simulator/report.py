"""A run as text for people."""

from collections import Counter
from collections.abc import Callable

from controlplane.simulator.world import Outcome


def one(outcome: Outcome, *, tape: bool = True) -> str:
    """The whole story of a seed."""
    lines = list(outcome.tape) if tape else []
    lines += [
        "",
        f"seed {outcome.seed}: {outcome.state}, step {outcome.committed_step}, {outcome.commits} commits,"
        f" {outcome.evictions} evictions, {outcome.restarts} restarts",
        f"faults: {', '.join(outcome.faults) or 'none'}",
        f"tape: {outcome.digest}",
        *(f"VIOLATION {text}" for text in outcome.violations),
        "PASSED" if not outcome.violations else "FAILED",
    ]
    return "\n".join(lines)


def many(outcomes: list[Outcome], command: Callable[[int], str]) -> str:
    """A summary of many seeds, failing ones with the `command` that repeats them."""
    states = Counter(outcome.state for outcome in outcomes)
    faults = Counter(fault for outcome in outcomes for fault in outcome.faults)
    choices = Counter(choice for outcome in outcomes for choice in outcome.decisions)
    answers = Counter(told for outcome in outcomes for told in outcome.answers)
    failed = [outcome for outcome in outcomes if outcome.violations]
    lines = [
        f"{len(outcomes)} seeds, {sum(o.commits for o in outcomes)} commits,"
        f" {sum(o.evictions for o in outcomes)} evictions, {sum(o.restarts for o in outcomes)} restarts",
        "ended as: " + ", ".join(f"{state} {count}" for state, count in sorted(states.items())),
        "faults: " + ", ".join(f"{fault} {count}" for fault, count in sorted(faults.items())),
        *(
            ["people were told: " + ", ".join(f"{told} {count}" for told, count in sorted(answers.items()))]
            if answers
            else []
        ),
        "decisions:",
        *(f"  {count:6d} {choice}" for choice, count in sorted(choices.items())),
        *(
            line
            for o in failed
            for line in (*(f"seed {o.seed}: {v}" for v in o.violations[:3]), f"  {command(o.seed)}")
        ),
        "PASSED" if not failed else f"FAILED: seeds {', '.join(str(o.seed) for o in failed)}",
    ]
    return "\n".join(lines)
