"""Every rule, in one table: in the order in which `decide` asks them, with what each answers.

Called by `policy.decide`, `policy.fleet` and `recovery`; docs/signals.md prints it. A rule is a file
of its own beside this one and a row here; nothing else lists rules.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from controlplane.policy.config import PolicyConfig
from controlplane.policy.errors import PolicyError
from controlplane.policy.plan import Decision
from controlplane.policy.rules import (
    admit_joiner,
    checkpoint_request,
    common_stall,
    device_fault,
    device_risk,
    drain_request,
    evict_request,
    fault_request,
    give_replicas,
    grow,
    known_end,
    leave_out,
    lifecycle,
    look,
    make_room,
    membership_install,
    numerics,
    ordered_eviction,
    outer_error,
    preempt_request,
    rehearsal,
    replace,
    replica_failure,
    restart,
    resume_request,
    spares,
    straggler,
    strength,
    swap,
    void,
)
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol.states import Mode

Answer = Callable[[JobSnapshot, PolicyConfig], tuple[Decision, ...]]
HARDWARE_RETURN = "hardware_return"
"""The fleet's own: an incident whose hardware is back is over (`policy.fleet`)."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """`what` it does, in words; `answers`: kinds of findings it acts on, settles or explains. `remedial`: it
    obeys the job's mode and `rule_modes`; the others are the orderly life of a job, without which
    nothing would train at all. `fault`: a decision of it that names findings opens an incident, `told`: any
    decision does. `destructive`: its acts count for the disruption budget; what people
    requested does not."""

    name: str
    decide: Answer
    what: str
    answers: tuple[str, ...] = ()
    remedial: bool = False
    fault: bool = False
    told: bool = False
    destructive: bool = False


RULES: tuple[Rule, ...] = (
    Rule(name=lifecycle.RULE, decide=lifecycle.rule, what="from pending to the first view, and the orderly ends"),
    Rule(
        name=make_room.RULE,
        decide=make_room.rule,
        what="the head of the queue lacks room: ask the jobs of lower priority that lose the least to yield",
    ),
    Rule(
        name=evict_request.RULE,
        decide=evict_request.rule,
        what="somebody requests a replica's eviction: start it, or say why it waits or is refused",
    ),
    Rule(
        name=preempt_request.RULE,
        decide=preempt_request.rule,
        what="the job is to yield its devices: save first, then end the attempt, or say why it does not",
        answers=("rank_exit", "rank_overdue", "setup_timeout", "outer_error"),
        fault=True,
    ),
    Rule(
        name=give_replicas.RULE,
        decide=give_replicas.rule,
        what="an urgent job needs devices of some replicas: they leave by a view, the others train on",
    ),
    Rule(
        name=known_end.RULE,
        decide=known_end.rule,
        what="a node is known to leave: have everything on it leave before, in the cheapest way that fits",
    ),
    Rule(
        name=resume_request.RULE,
        decide=resume_request.rule,
        what="somebody resumes a parked job: it waits for nothing but devices",
    ),
    Rule(
        name=restart.RULE,
        decide=restart.rule,
        what="the attempt cannot continue: end it and place the next one from a trusted checkpoint",
        answers=("rank_exit", "rank_overdue", "setup_timeout", "outer_error", "nan_loss", "loss_spike", "numerics"),
        remedial=True,
        fault=True,
        told=True,
        destructive=True,
    ),
    Rule(
        name=ordered_eviction.RULE,
        decide=ordered_eviction.rule,
        what="a replica leaves on request: continue without it, end it, start its slot again",
        fault=True,
        told=True,
    ),
    Rule(
        name=replica_failure.RULE,
        decide=replica_failure.rule,
        what="a replica failed: continue without it at once, start its next incarnation elsewhere",
        answers=(
            "rank_exit",
            "rank_overdue",
            "setup_timeout",
            "node_silent",
            "xid",
            "device_lost",
            "outer_error",
            "numerics",
        ),
        remedial=True,
        fault=True,
        told=True,
        destructive=True,
    ),
    Rule(
        name=common_stall.RULE,
        decide=common_stall.rule,
        what="most of a job is late in one place: name the common cause, end nobody for it",
        answers=("rank_overdue",),
        fault=True,
        told=True,
    ),
    Rule(
        name=leave_out.RULE,
        decide=leave_out.rule,
        what="a member is out of reach, stuck, or late with others: continue without it, end nothing of it",
        answers=("node_silent", "outer_error", "rank_overdue"),
        remedial=True,
        fault=True,
        told=True,
    ),
    Rule(
        name=device_fault.RULE,
        decide=device_fault.rule,
        what="hardware: keep new work away, take the node out, reset the device, ask a person, or blame the program",
        answers=("xid", "device_lost", "device_reading"),
        remedial=True,
        fault=True,
    ),
    Rule(
        name=outer_error.RULE,
        decide=outer_error.rule,
        what="the exchange failed and nobody is dead: announce the same members again",
        answers=("outer_error",),
        remedial=True,
        fault=True,
    ),
    Rule(
        name=membership_install.RULE,
        decide=membership_install.rule,
        what="everybody has flushed: from which step, and with what, the members continue",
    ),
    Rule(
        name=replace.RULE,
        decide=replace.rule,
        what="a slot stands empty: start its next incarnation as soon as there are devices",
        remedial=True,
    ),
    Rule(
        name=grow.RULE,
        decide=grow.rule,
        what="devices that the job has yielded are free, and nobody waits for them: start a replica again",
    ),
    Rule(
        name=admit_joiner.RULE,
        decide=admit_joiner.rule,
        what="a new incarnation is up, or heard again: admit it to a view",
    ),
    Rule(
        name=swap.RULE,
        decide=swap.rule,
        what="a replica is relieved: start another beside it, swap the two in one view",
    ),
    Rule(
        name=strength.RULE,
        decide=strength.rule,
        what="recovery is over: full strength again, or stable with fewer replicas",
        answers=("rank_exit", "rank_overdue", "setup_timeout", "outer_error"),
    ),
    Rule(name=spares.RULE, decide=spares.rule, what="as many spares as the job asks for stay reserved, and warm"),
    Rule(
        name=device_risk.RULE,
        decide=device_risk.rule,
        what="a device is likely to fail: save now, if that is worth it, and once",
        answers=("device_risk",),
        remedial=True,
        fault=True,
    ),
    Rule(name=rehearsal.RULE, decide=rehearsal.rule, what="a fault the job asked for is due: give it to its rank"),
    Rule(name=look.RULE, decide=look.rule, what="the job asks for a diagnostic now and then"),
    Rule(
        name=numerics.RULE,
        decide=numerics.rule,
        what="a result was refused and its step computed twice: who is to blame, if anybody",
        answers=("numerics",),
        remedial=True,
        fault=True,
    ),
    Rule(
        name=straggler.RULE,
        decide=straggler.rule,
        what="a rank is slow: say so, and move its replica, or leave it out, only where that pays",
        answers=("straggler",),
        remedial=True,
        fault=True,
        destructive=True,
    ),
    Rule(
        name=void.RULE,
        decide=void.rule,
        what="findings that later events refute are settled",
        answers=("rank_overdue", "setup_timeout", "nan_loss", "loss_spike"),
    ),
    Rule(
        name=drain_request.RULE,
        decide=drain_request.rule,
        what="a node is drained: move its replicas away, one after another",
    ),
    Rule(
        name=checkpoint_request.RULE,
        decide=checkpoint_request.rule,
        what="somebody requests a checkpoint: have it saved, and say how it ended",
    ),
    Rule(
        name=fault_request.RULE,
        decide=fault_request.rule,
        what="somebody requests a fault: inject it into its rank, and say whether it was taken",
    ),
)
NAMES = tuple(rule.name for rule in RULES)
REMEDIAL = frozenset(rule.name for rule in RULES if rule.remedial)
FAULT = tuple(rule.name for rule in RULES if rule.fault)
TOLD = tuple(rule.name for rule in RULES if rule.told)
DESTRUCTIVE = tuple(rule.name for rule in RULES if rule.destructive)


@cache
def _check_modes(names: frozenset[str]) -> None:
    if unknown := sorted(names - REMEDIAL):
        raise PolicyError(f"rule_modes: no remedial rule is called {', '.join(unknown)}; {', '.join(sorted(REMEDIAL))}")


def ceiling(config: PolicyConfig, rule: str) -> Mode:
    """How far the configuration lets this rule go by itself. Raises PolicyError where it names a rule
    that is none, or one that obeys no mode."""
    _check_modes(frozenset(config.rule_modes))
    return config.rule_modes.get(rule, Mode.ENFORCE)
