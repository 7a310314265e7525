"""A plan to rows and commands: the simulated twin of `recovery.apply`.

Every move is checked against the state tables; an illegal one is a violation.
"""

from collections.abc import Callable

from controlplane.policy import flaps
from controlplane.policy.errors import IllegalTransition
from controlplane.policy.plan import (
    Action,
    AnnounceView,
    AnswerRequest,
    AskEviction,
    Decision,
    DemoteCheckpoint,
    EndAttempt,
    KeepSpares,
    OrderOut,
    PlaceAttempt,
    Relieve,
    SendInstall,
    SetJobState,
    SetNodeState,
    SetReplicaState,
    SettleSignals,
    StartReplica,
    StopReplica,
)
from controlplane.policy.snapshot import Placement
from controlplane.policy.timeouts import setup_limit_s
from controlplane.policy.transitions import check
from controlplane.protocol.commands import (
    Body,
    CommandEnvelope,
    DeliverInstall,
    DeliverView,
    StartRanks,
    StopRanks,
)
from controlplane.protocol.launch import RankPlacement, ReplicaLaunch, Resume, TrainerConfig
from controlplane.protocol.membership import View
from controlplane.protocol.spec import Parallelism, max_contributors
from controlplane.protocol.states import AttemptState, JobState, ReplicaState
from controlplane.simulator.asked import Asked
from controlplane.simulator.checkers import Checkers
from controlplane.simulator.kernel import Kernel
from controlplane.simulator.rows import JOB_ID, AttemptRow, CommandRow, ReplicaRow, Rows

COMMAND_TTL_S = 120.0
HANG_TIMEOUT_S = 5.0
"""Which a launch allows a step."""


class Apply:
    """Carries decisions out in one go. `sick` tells the checkers the truth about a replica."""

    def __init__(
        self,
        rows: Rows,
        kernel: Kernel,
        checkers: Checkers,
        sick: Callable[[int, int, int], str | None],
        asked: Asked,
    ) -> None:
        self._rows, self._kernel, self._checkers, self._sick, self._asked = rows, kernel, checkers, sick, asked
        self._resume: Resume | None = None
        self._numbers = 0

    def decision(self, decision: Decision) -> bool:
        """Apply once a key. False: it was applied before."""
        if decision.key in self._rows.keys:
            return False
        self._checkers.decided(decision)
        self._rows.keys.add(decision.key)
        self._rows.last_wait = decision.sentence if decision.choice == "wait" else self._rows.last_wait
        self._rows.history.append(f"{decision.rule}:{decision.choice}:{decision.reason_code}")
        self._kernel.log("decision", f"{decision.rule}/{decision.choice}/{decision.reason_code}: {decision.sentence}")
        for action in decision.actions:
            self._action(action, decision)
        return True

    def _action(self, action: Action, decision: Decision) -> None:
        match action:
            case PlaceAttempt():
                self._place(action)
            case AnnounceView(view=view):
                self._announce(view, decision)
            case SendInstall():
                self._send_install(action)
            case StartReplica():
                self._start(action)
            case StopReplica():
                self._stop(action)
            case SetReplicaState():
                self._replica_state(action, decision)
            case Relieve(replica=index, reason=reason):
                self._rows.replicas[index].relieved = reason
            case OrderOut(replica=index, by=by, at_once=at_once, asked_s=asked_s):
                row = self._rows.replicas[index]
                self._checkers.expect(row.incarnation == action.incarnation, f"I4: {decision.key} is about an old life")
                row.ordered_out, row.relieved = by, "" if at_once else by
                row.ordered_s = asked_s if by else None
            case AskEviction():
                self._asked.evict_for(action)
            case AnswerRequest():
                self._asked.answer(action, decision.sentence)
            case EndAttempt():
                self._end_attempt(action)
            case SetJobState(to=to):
                self._job_state(to)
            case SetNodeState(node_id=node_id, to=to):
                node = self._rows.nodes[node_id]
                self._check("node", node.state, to)
                node.state = to
            case KeepSpares(reserve=more, release=less):
                for node in self._rows.nodes.values():
                    node.reserved = (node.reserved or node.id in more) and node.id not in less
            case DemoteCheckpoint(checkpoint_id=gone):
                self._rows.checkpoints = [fact for fact in self._rows.checkpoints if fact.id != gone]
            case SettleSignals(signal_ids=ids):
                for signal_id in ids:
                    self._rows.signals.pop(signal_id, None)
            case _:
                pass

    def _check(self, machine: str, before: str, after: str) -> None:
        try:
            check(machine, before, after)
        except IllegalTransition as error:
            self._checkers.expect(False, f"I-state: {error}")

    def _command(self, node: str, body: Body) -> None:
        self._numbers += 1
        attempt = self._rows.attempt
        command_id = f"cmd_{self._numbers:05d}"
        envelope = CommandEnvelope(
            command_id=command_id,
            node_id=node,
            epoch=self._rows.epoch,
            age_s=0.0,
            ttl_s=COMMAND_TTL_S,
            body=body,
            job_id=JOB_ID,
            attempt=attempt.number if attempt else 0,
        )
        self._rows.commands[command_id] = CommandRow(envelope, self._kernel.now_s)
        self._rows.outbox.append(command_id)

    def _job_state(self, to: JobState) -> None:
        self._check("job", self._rows.state, to)
        self._rows.state = to

    # --- attempts ----------------------------------------------------------------------

    def _place(self, action: PlaceAttempt) -> None:
        rows, now_s = self._rows, self._kernel.now_s
        if rows.attempt is not None:
            rows.restarts += 1
        rows.epoch = action.epoch
        rows.attempt = AttemptRow(
            action.number, AttemptState.STARTING, action.layout, len(action.placements), now_s, action.resume_step
        )
        self._resume = Resume(action.resume_path, action.resume_step) if action.resume_path else None
        rows.committed_step, rows.progressed_s = action.resume_step, now_s
        rows.view, rows.install, rows.installed_s, rows.reissued_views = None, None, None, 0
        rows.flushes, rows.done = {}, set()
        rows.ghosts += [row for row in rows.replicas.values() if not row.stopped]
        rows.replicas = {}
        for index, placements in enumerate(action.placements):
            incarnation = rows.lives.get(index, 0) + 1
            rows.replicas[index] = ReplicaRow(index, incarnation, ReplicaState.FORMING, now_s, placements)
            self._start_ranks(index, incarnation, placements)
        for node in rows.nodes.values():
            node.reserved = node.id in action.spare_nodes

    def _end_attempt(self, action: EndAttempt) -> None:
        rows, attempt = self._rows, self._rows.attempt
        assert attempt is not None, "only an attempt can be ended"
        self._checkers.expect(attempt.number == action.number, f"I4: attempt {action.number} is ended twice")
        attempt.state = AttemptState.ENDED
        rows.no_progress += not attempt.saved
        nodes = {p.node_id for replica in rows.replicas.values() for p in replica.placements}
        for node in sorted(nodes):
            self._command(node, StopRanks(JOB_ID, attempt.number, -1, 0, action.grace_s, "the attempt ends"))
        for replica in rows.replicas.values():
            replica.state, replica.contributing = ReplicaState.EVICTED, False

    # --- replicas ----------------------------------------------------------------------

    def _start(self, action: StartReplica) -> None:
        row, life = self._rows.replicas.get(action.replica), self._rows.lives.get(action.replica, 0)
        self._checkers.expect(action.incarnation == life + 1, f"I4: r{action.replica} skips an incarnation")
        if row is not None:
            self._check("replica", row.state, ReplicaState.FORMING)
            self._rows.ghosts += [] if row.stopped else [row]
        self._rows.replicas[action.replica] = ReplicaRow(
            action.replica,
            action.incarnation,
            ReplicaState.FORMING,
            self._kernel.now_s,
            action.placements,
            failed_starts=row.failed_starts if row is not None else 0,
        )
        self._start_ranks(action.replica, action.incarnation, action.placements)

    def _start_ranks(self, index: int, incarnation: int, placements: tuple[Placement, ...]) -> None:
        attempt = self._rows.attempt
        assert attempt is not None, "replicas belong to an attempt"
        self._rows.lives[index] = incarnation
        for node in sorted({placement.node_id for placement in placements}):
            here = tuple(RankPlacement(p.rank, p.device_index) for p in placements if p.node_id == node)
            launch = ReplicaLaunch(
                job_id=JOB_ID,
                job_name="sim",
                attempt=attempt.number,
                epoch=self._rows.epoch,
                replica=index,
                incarnation=incarnation,
                world_size=len(placements),
                ranks=here,
                config=self._config(attempt.layout, attempt.replicas),
                step_timeout_s=HANG_TIMEOUT_S,
                setup_timeout_s=setup_limit_s(self._rows.spec.resiliency.timeouts, None),
            )
            self._command(node, StartRanks(launch))

    def _config(self, layout: Parallelism, replicas: int) -> TrainerConfig:
        spec = self._rows.spec
        return TrainerConfig(
            model=spec.model,
            parallelism=layout,
            training=spec.training,
            checkpoint=spec.checkpoint,
            checkpoint_dir="/checkpoints/job",
            replicas=replicas,
            store="store:1",
            # Who joins those who train has its state from them: the checkpoint may be gone by then.
            resume=self._resume if self._rows.view is None else None,
            max_contributors=max_contributors(spec) or replicas,
        )

    def _stop(self, action: StopReplica) -> None:
        row, attempt = self._rows.replicas[action.replica], self._rows.attempt
        assert attempt is not None, "replicas belong to an attempt"
        for node in sorted({placement.node_id for placement in row.placements}):
            body = StopRanks(JOB_ID, attempt.number, action.replica, action.incarnation, action.grace_s, "evicted")
            self._command(node, body)

    def _replica_state(self, action: SetReplicaState, decision: Decision) -> None:
        row, attempt = self._rows.replicas[action.replica], self._rows.attempt
        if row.incarnation != action.incarnation:
            self._checkers.expect(False, f"I4: {decision.key} is about an old incarnation")
            return
        self._check("replica", row.state, action.to)
        row.state, row.state_since_s = action.to, self._kernel.now_s
        if action.to is ReplicaState.ACTIVE:
            row.contributing = row.ever_contributed = True
        if action.to is ReplicaState.SPARE:
            row.ever_contributed = True
        if action.to is ReplicaState.SUSPECT:
            row.contributing, row.standby, row.out_epoch = False, False, self._rows.epoch
            row.times_out = flaps.times_out(row.times_out, row.out_s, self._kernel.now_s)
            row.out_s = self._kernel.now_s
            self._checkers.left_out += 1
        if action.to is not ReplicaState.EVICTED or attempt is None:
            return
        row.contributing = row.standby = False
        row.failed_starts = 0 if row.ever_contributed else row.failed_starts + (not row.ordered_out)
        self._rows.evictions += 1
        if decision.evidence.get("proved") is False:
            self._rows.acts_s.append(self._kernel.now_s)
        sick = self._sick(attempt.number, row.index, row.incarnation)
        if row.relieved and decision.choice == "retire":
            sick = sick or self._place_taken(row)
        if row.ordered_out and decision.choice == "end":
            sick = sick or self._nobody_waits(row)
        self._checkers.evicted(f"r{row.index}.{row.incarnation}", sick, decision)

    def _place_taken(self, row: ReplicaRow) -> str | None:
        """Why one that is relieved may end: it is out of the installed view, and as many as were placed
        hold the state without it, from the view's beginning or caught up since."""
        rows, attempt = self._rows, self._rows.attempt
        if rows.install is None or rows.view is None or attempt is None or rows.install.epoch != rows.view.epoch:
            return None
        caught_up = {each.index for each in rows.replicas.values() if each.contributing or each.standby}
        held = len(({*rows.install.contributors, *rows.install.standbys} | caught_up) - {row.index})
        inside = any((m.replica, m.incarnation) == (row.index, row.incarnation) for m in rows.view.members)
        return "its place is taken" if not inside and held >= attempt.replicas else None

    def _nobody_waits(self, row: ReplicaRow) -> str | None:
        """Why one that was ordered out may end: no member of the view counts on it."""
        members = self._rows.view.members if self._rows.view is not None else ()
        inside = any((m.replica, m.incarnation) == (row.index, row.incarnation) for m in members)
        return None if inside else "it was ordered out, and nobody waits for it"

    # --- views ---------------------------------------------------------------------------

    def _announce(self, view: View, decision: Decision) -> None:
        rows = self._rows
        self._checkers.expect(view.epoch == rows.epoch + 1, f"I1: view {view.epoch} after epoch {rows.epoch}")
        self._checkers.expect(bool(view.members), f"I1: view {view.epoch} has no members")
        same = rows.view is not None and rows.view.members == view.members
        rows.reissued_views = rows.reissued_views + 1 if same else 0
        rows.epoch, rows.view, rows.view_since_s = view.epoch, view, self._kernel.now_s
        rows.install, rows.installed_s, rows.flushes = None, None, {}
        nodes = {p.node_id for replica in rows.replicas.values() for p in replica.placements}
        for node in sorted(nodes):
            self._command(node, DeliverView(view))

    def _send_install(self, action: SendInstall) -> None:
        rows, order = self._rows, action.install
        rows.install, rows.installed_s = order, self._kernel.now_s
        rows.committed_step = max(rows.committed_step, order.step)
        members = {member.replica for member in rows.view.members} if rows.view else set()
        for index in sorted(members):
            row = rows.replicas[index]
            row.contributing = index in order.contributors
            row.standby = index in order.standbys
        if rows.attempt is not None:
            rows.attempt.state = AttemptState.RUNNING
        nodes = {p.node_id for index in members for p in rows.replicas[index].placements}
        for node in sorted(nodes):
            self._command(node, DeliverInstall(order))
