"""Rows in memory as deadlines read them: `changes.due.rows`. Writes nothing."""

from collections.abc import Sequence, Set

import msgspec

from controlplane.changes.due.rows import Need, Reading, Save, Saver, Sent, Session, Stranger
from controlplane.changes.due.sessions import WEB_STALE_S
from controlplane.changes.outbox import LIVE
from controlplane.policy.checkpoints import TRUSTED
from controlplane.policy.facts import TERMINAL_JOB
from controlplane.policy.readers import Holder
from controlplane.policy.snapshot import LIVE_REPLICA
from controlplane.protocol.commands import KeepCheckpoints, VerifyCheckpoint
from controlplane.protocol.readback import Verdict
from controlplane.protocol.states import CommandState
from controlplane.simulator.load import there
from controlplane.simulator.memory import MemoryRows
from controlplane.simulator.rows import CommandRow

READ_LIMIT_S = 300.0


class DueRows(MemoryRows):
    """One job's rows, its nodes and what is found."""

    def seen_before(self, kinds: Sequence[str], at_s: float) -> Sequence[str]:
        """By id."""
        rows = (row for _, row in sorted(self._rows.signals.items()))
        return [row.id for row in rows if row.kind in kinds and row.seen_s < at_s]

    def strangers(self, known: Sequence[str], *, without: str) -> Sequence[Stranger]:
        """By id."""
        rows = (row for _, row in sorted(self._rows.signals.items()))
        return [
            Stranger(row.id, row.kind, row.evidence)
            for row in rows
            if row.kind not in known and without not in row.evidence
        ]

    def living_webs(self) -> Set[str]:
        """One that ends says nothing any more."""
        return {web for web, beat_s in self._rows.webs.items() if self.now_s - beat_s <= WEB_STALE_S}

    def sessions(self, *, opened_before_s: float) -> Sequence[Session]:
        """By node."""
        rows = (row for _, row in sorted(self._rows.nodes.items()))
        return [
            Session(row.id, str(row.session), row.web)
            for row in rows
            if row.connected and row.opened_s < opened_before_s
        ]

    def saved(self, save_id: str) -> Save | None:
        """Called by its path."""
        row = self._rows.saves.get(save_id)
        if row is None or row.fact is None:
            return None
        return Save(
            id=save_id,
            job_id=self.job_id,
            owner="",
            attempt=row.attempt,
            path=save_id,
            step=row.fact.step,
            epoch=row.fact.epoch,
            state=row.state,
            reason=row.reason,
            doubt=row.doubt,
            written_on=row.written_on,
            reader=row.reader,
            heard_s=row.heard_s,
            round_s=row.round_s,
            read_s=row.read_s,
            limit_s=READ_LIMIT_S,
            shared=True,
            ours=True,
            here=save_id in self._rows.reads_here,
            loads=self._rows.spec.checkpoint.restore_test,
            over=self._rows.state in TERMINAL_JOB,
        )

    def save_of(self, reader: str) -> Save | None:
        """There is one at most."""
        found = (path for path, row in self._rows.saves.items() if row.reader == reader)
        return next((self.saved(path) for path in found), None)

    def holders(self, save_id: str) -> Sequence[Holder]:
        """Nodes on which the job is or was; every agent here knows the command."""
        row, commands = self._rows.saves[save_id], self._readings(save_id)
        asked = {each.envelope.node_id for each in commands}
        done = {each.envelope.node_id for each in commands if each.state == CommandState.SUCCEEDED}
        live = (rows.commands[command_id] for rows in self._rows.jobs.values() for command_id in rows.outbox)
        busy = {each.envelope.node_id for each in live if _reads(each) and each.state in LIVE}
        nodes = [node for name, node in sorted(self._rows.nodes.items()) if name in asked or self.is_on(name)]
        nodes.sort(key=lambda node: node.id != row.written_on)
        here = [node for node in nodes if node.connected]
        away = [node for node in nodes if not node.connected][:1]
        return [
            Holder(
                node_id=node.id,
                connected=node.connected,
                busy=node.id in busy,
                asked=node.id in asked,
                told=node.id in done,
            )
            for node in (*here, *away)
        ]

    def readings(self, save_id: str) -> Sequence[Reading]:
        """By id."""
        return [
            Reading(
                each.envelope.node_id,
                each.state in LIVE,
                each.detail,
                self.verdict(each.data) if each.state == CommandState.SUCCEEDED else None,
            )
            for each in self._readings(save_id)
        ]

    def verdict(self, data: str) -> Verdict | None:
        """As the nodes' readers write it."""
        return msgspec.json.decode(data, type=Verdict) if data else None

    def base_before(self, incident: str) -> str | None:
        """Called by its path."""
        trusted = [fact for fact in self._rows.checkpoints if fact.state in TRUSTED]
        return max(trusted, key=lambda fact: (fact.step, fact.epoch)).id if trusted else None

    def needs(self) -> Sequence[Need]:
        """As they came. Nothing is computed again here."""
        return [
            Need(
                incident=incident,
                checkpoint=row.path,
                path=row.path,
                step=int(row.path.rpartition("/")[2]),
                attempt=row.attempt,
                let_go=row.let_go,
                taken=False,
            )
            for incident, row in self._rows.needs.items()
            if row.due_s is not None
        ]

    def keeps_sent(self, limit: int) -> Sequence[Sent]:
        """By id."""
        rows = [row for _, row in sorted(self._rows.commands.items(), reverse=True)]
        keeps = ((row.envelope.body, row) for row in rows)
        sent = [Sent(body, row.state, row.detail) for body, row in keeps if isinstance(body, KeepCheckpoints)]
        return sent[:limit]

    def saver(self) -> Saver | None:
        """Of the replica with the lowest index that computes."""
        for index, row in sorted(self._rows.replicas.items()):
            place = next((place for place in there(row) if place.rank == 0), None)
            if row.contributing and row.state in LIVE_REPLICA and place is not None:
                return Saver(place.node_id, row.attempt, index, row.incarnation)
        return None

    def computing(self, path: str) -> Sequence[tuple[int, int]]:
        """Nobody does."""
        return ()

    def resumed(self) -> tuple[int, str] | None:
        """By path."""
        attempt, trusted = self._rows.attempt, {fact.id for fact in self._rows.checkpoints if fact.state in TRUSTED}
        if attempt is None or attempt.resume_path not in trusted:
            return None
        return attempt.number, attempt.resume_path

    def _readings(self, save_id: str) -> list[CommandRow]:
        since_s = self._rows.saves[save_id].round_s
        if since_s is None:
            return []
        commands = (row for row in self._rows.commands.values() if row.made_s >= since_s)
        return [row for row in commands if _reads(row) and row.envelope.body.path == save_id]  # type: ignore[union-attr]


def _reads(row: CommandRow) -> bool:
    return isinstance(row.envelope.body, VerifyCheckpoint)
