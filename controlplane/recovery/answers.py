"""What an agent's answer means beyond the command's own row."""

from datetime import datetime

from controlplane.access import services as access
from controlplane.dispatch.models import Command
from controlplane.dispatch.services import is_genuine
from controlplane.jobs.models import Rank, Replica
from controlplane.jobs.services import transition_rank
from controlplane.policy.signals.nodes import SignatureRejected
from controlplane.policy.signals.ranks import StartFailed
from controlplane.protocol.signing import SIGNATURE_REJECTED
from controlplane.protocol.states import UNFIT, CommandState, RankState, ReplicaState
from controlplane.recovery import devices, looks, readers, signals
from controlplane.runtime import counters

ABOUT_DEVICES = ("reset_device",)
"""Orders of no job of which an expiry means something."""


def after_answer(command: Command, at: datetime) -> bool:
    """Called in the unit that wrote the answer. True when a device was freed."""
    if command.state == CommandState.FAILED and command.data == SIGNATURE_REJECTED:
        _signature_rejected(command, at)
        if not is_genuine(command):
            # Nobody here has ordered it: what its body says is nobody's word.
            return False
    if command.kind == "stop_ranks" and command.state == CommandState.SUCCEEDED:
        return _proved_gone(command)
    if command.kind == "start_ranks" and (command.state == CommandState.FAILED or _was_overtaken(command)):
        _start_failed(command, at)
    if command.kind == "collect_stacks" and command.state == CommandState.FAILED:
        looks.gave_up(command)
    if command.kind == "stop_ranks" and command.state == CommandState.FAILED:
        _unordered(command)
    if command.kind == "reset_device" and command.state != CommandState.ACKNOWLEDGED:
        devices.reset_answered(command)
    if command.kind == readers.KIND:
        readers.answered(command)
    return False


def after_expiry(command: Command, at: datetime) -> None:
    """Called in a unit of its own, after the one that wrote it: nobody answered in time."""
    if not is_genuine(command):
        # Also one that opens with no key of this process: what it says, anybody could have written.
        return
    if command.kind == "start_ranks":
        _start_failed(command, at)
    if command.kind == "collect_stacks":
        looks.gave_up(command)
    if command.kind == "stop_ranks":
        _unordered(command)
    if command.kind == "reset_device":
        devices.reset_unanswered(command)
    if command.kind == readers.KIND:
        readers.answered(command)


def _was_overtaken(command: Command) -> bool:
    """Its node holds the start to be void, and it is wanted all the same: nobody will come up."""
    if command.state != CommandState.SUPERSEDED:
        return False
    launch = command.body["launch"]
    rows = Replica.objects.filter(attempt__job_id=command.job_id, attempt__number=command.attempt)
    return rows.filter(index=launch["replica"], incarnation=launch["incarnation"], state=ReplicaState.FORMING).exists()


def _signature_rejected(command: Command, at: datetime) -> None:
    """Its agent knows no key of ours that has signed it: the row was made or altered past us, or
    the node holds other keys than ours."""
    name = command.node.name
    counters.count(name, SIGNATURE_REJECTED, detail=f"{command.id}: {command.detail}")
    access.audit(f"node:{name}", "command.signature_rejected", command.id, reason=command.detail[:500])
    found = SignatureRejected(
        node_id=command.node_id, command=command.id, kind=command.kind, detail=command.detail, node=name
    )
    signals.raise_signal(found, seen_at=at)


def _unordered(command: Command) -> None:
    """A person's order to evict of which nothing came, on none of its nodes, is none any more:
    what ends later did not end by it. Only what a decision has ordered says so: a stop of ranks that a
    node alone claims to run (`set_back`) is about that node."""
    if not command.decision_id:
        return
    body = command.body
    same = Command.objects.filter(
        kind=command.kind,
        job_id=command.job_id,
        attempt=command.attempt,
        body__replica=body["replica"],
        body__incarnation=body["incarnation"],
    ).exclude(decision_id="")
    if same.exclude(state__in=(CommandState.FAILED, CommandState.EXPIRED)).exists():
        return
    rows = Replica.objects.filter(attempt__job_id=command.job_id, attempt__number=command.attempt)
    stands = rows.filter(index=body["replica"], incarnation=body["incarnation"]).exclude(state=ReplicaState.EVICTED)
    stands.exclude(ranks__state=RankState.EXITED).update(ordered_out="", ordered_at=None, relieved="")


def _proved_gone(command: Command) -> bool:
    """Stopping succeeds when the processes are proved gone, so their rows end too."""
    body = command.body
    rows = Rank.objects.filter(
        node_id=command.node_id,
        replica__attempt__job_id=command.job_id,
        replica__attempt__number=body["attempt"],
    ).exclude(state=RankState.EXITED)
    if body["replica"] >= 0:
        rows = rows.filter(replica__index=body["replica"], replica__incarnation=body["incarnation"])
    freed = False
    for row in rows.select_related("replica__attempt", "node", "device"):
        transition_rank(row, RankState.EXITED, "its agent proved it gone", exit_expected=True)
        freed = True
    return freed


def _start_failed(command: Command, at: datetime) -> None:
    """Its ranks will not come: the slot is told to the policy as a start that timed out,
    and ranks that no process was ever reported for are released."""
    launch = command.body["launch"]
    found = StartFailed(
        job_id=command.job_id,
        node_id=command.node_id,
        replica=launch["replica"],
        incarnation=launch["incarnation"],
        command=command.id,
        node=command.node.name,
        detail=command.detail[:300],
        reason=command.data[:100],
        said=command.detail or command.state,
        ttl_s=command.ttl_s,
    )
    signals.raise_signal(found, seen_at=at)
    if command.state == CommandState.EXPIRED:
        return
    if command.data == UNFIT:
        Replica.objects.filter(
            attempt__job_id=command.job_id, index=launch["replica"], incarnation=launch["incarnation"]
        ).update(refused=True)
    rows = Rank.objects.filter(
        node_id=command.node_id,
        replica__attempt__job_id=command.job_id,
        replica__index=launch["replica"],
        replica__incarnation=launch["incarnation"],
        started_at=None,
        released_at=None,
    )
    for row in rows.select_related("replica__attempt", "node", "device"):
        transition_rank(row, RankState.EXITED, "it was never started")
