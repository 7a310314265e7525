"""The API's methods, grouped as people say them, as calls. A client runs them.

Each method returns what its runner returns: the typed answer for `Client`, an
awaitable of it for `AsyncClient`.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypedDict, Unpack

from controlplane.api.shapes import JobMesh, NodeColumns
from controlplane.protocol import rest
from controlplane.protocol.rank_commands import RankCommand
from controlplane.sdk import calls
from controlplane.sdk.calls import AsRead, Call, JobAsRead, Page

Runner = Callable[[Call[Any]], Any]
Iterate = Callable[[Call[Any]], Any]
Watch = Callable[[int, str | None], Any]


class _Group:
    """`run` sends one call, `pages` iterates over a list's pages, `follow` over events."""

    def __init__(self, run: Runner, pages: Iterate, follow: Watch) -> None:
        self._run, self._pages, self._follow = run, pages, follow


class Jobs(_Group):
    """Training jobs."""

    def submit(self, spec: Mapping[str, Any] | str | bytes, *, key: str = "") -> Any:
        """A mapping, or YAML text. Repeating with the same `key` makes one job."""
        return self._run(calls.submit(spec, key=key))

    def dry_run(self, spec: Mapping[str, Any] | str | bytes) -> Any:
        """What a submit would do, as a DryRun."""
        return self._run(calls.submit(spec, dry_run=True))

    def get(self, job_id: str) -> Any:
        """JobDetail."""
        return self._run(calls.get(calls.one("jobs", job_id), rest.JobDetail))

    def list(
        self, *, state: str | None = None, q: str | None = None, labels: str | None = None, limit: int | None = None,
        project: str | None = None, sort: str | None = None,
    ) -> Any:  # fmt: skip
        """Iterates over every Job, newest first; `limit` rows a page, `labels` as "team=nlp,stage=two". `sort`:
        created, priority or name, "-" before it for downwards."""
        wanted = {"state": state, "q": q, "project": project, "labels": labels, "sort": sort}
        return self._pages(calls.get("/jobs", Page[rest.Job], **wanted, limit=limit))

    def page(self, **params: Any) -> Any:
        """One Page of Jobs; `state`, `q`, `project`, `labels`, `node`, `since` (ISO-8601), `sort`, `limit`, `cursor`;
        `total` with `count=True`."""
        return self._run(calls.get("/jobs", Page[rest.Job], **params))

    def cancel(self, job_id: str, reason: str, **read: Unpack[JobAsRead]) -> Any:
        """Stop it for good."""
        return self._act(job_id, "cancel", {"reason": reason}, read)

    def checkpoint(self, job_id: str, reason: str, **read: Unpack[JobAsRead]) -> Any:
        """Save at the next step boundary."""
        return self._act(job_id, "checkpoint", {"reason": reason}, read)

    def preempt(self, job_id: str, reason: str, **read: Unpack[JobAsRead]) -> Any:
        """Save, yield the devices, and wait until somebody resumes it."""
        return self._act(job_id, "preempt", {"reason": reason}, read)

    def resume(self, job_id: str, reason: str, **read: Unpack[JobAsRead]) -> Any:
        """Give a job that a person preempted its turn back."""
        return self._act(job_id, "resume", {"reason": reason}, read)

    def evict_replica(self, job_id: str, replica: int, reason: str, **read: Unpack[JobAsRead]) -> Any:
        """Take one replica out; the others go on."""
        return self._act(job_id, "evict-replica", {"replica": replica, "reason": reason}, read)

    def fault(self, job_id: str, replica: int, rank: int, fault: str, reason: str, *, value: float = 0.0) -> Any:
        """Break a rank on purpose, where the job allows it."""
        body = {"replica": replica, "rank": rank, "fault": fault, "value": value, "reason": reason}
        return self._act(job_id, "fault", body)

    def debug(
        self, job_id: str, replica: int, rank: int, diagnostic: str, reason: str, *, duration_s: float | None = None
    ) -> Any:
        """Look at a rank, also at one that hangs; `diagnostics` has the answer a moment later."""
        body = {"replica": replica, "rank": rank, "diagnostic": diagnostic, "duration_s": duration_s, "reason": reason}
        return self._act(job_id, "debug", body)

    def command_rank(self, job_id: str, replica: int, rank: int, command: RankCommand, reason: str) -> Any:
        """Have a rank do something beside its training (`protocol.rank_commands`); `commands` has its answer a
        moment later, with what it has found as `result`."""
        body = {"replica": replica, "rank": rank, "command": command, "reason": reason}
        return self._act(job_id, "command-rank", body)

    def diagnostics(self, job_id: str, *, command_id: str | None = None) -> Any:
        """Iterates over results of diagnostics, newest first."""
        path = calls.one("jobs", job_id, "/diagnostics")
        return self._pages(calls.get(path, Page[rest.RankDiagnostic], command_id=command_id))

    def replicas(self, job_id: str) -> Any:
        """Iterates over replica incarnations with their ranks."""
        return self._pages(calls.get(calls.one("jobs", job_id, "/replicas"), Page[rest.Replica]))

    def mesh(self, job_id: str, *, fields: str | None = None, **params: Any) -> Any:
        """JobMesh: every rank of the newest attempt in one answer, by its place in the layout, with the slowest and the
        most silent; `fields` as "replica,pp,tp,step_s", `limit`, `cursor`."""
        path = calls.one("jobs", job_id, "/mesh")
        return self._run(calls.get(path, JobMesh, fields=fields, **params))

    def steps(
        self, job_id: str, *, since_step: int | None = None, attempt: int | None = None, points: int | None = None
    ) -> Any:
        """Committed steps, oldest first: one Page. `points`: at most so many of all, evenly spread."""
        path = calls.one("jobs", job_id, "/steps")
        return self._run(calls.get(path, Page[rest.Step], since_step=since_step, attempt=attempt, points=points))

    def events(
        self,
        job_id: str,
        *,
        after_seq: int | None = None,
        limit: int | None = None,
        newest: bool | None = None,
        with_sentence: bool | None = None,
    ) -> Any:
        """Events of the job, oldest first: one Page. `newest`: the last ones; `with_sentence`: only those
        with a sentence."""
        path = calls.one("jobs", job_id, "/events")
        return self._run(
            calls.get(
                path, Page[rest.Event], after_seq=after_seq, limit=limit, newest=newest, with_sentence=with_sentence
            )
        )

    def decisions(self, job_id: str, *, routine: bool | None = None) -> Any:
        """Iterates over decisions, newest first."""
        return self._pages(calls.get(calls.one("jobs", job_id, "/decisions"), Page[rest.Decision], routine=routine))

    def incidents(self, job_id: str) -> Any:
        """Iterates over incidents, newest first."""
        return self._pages(calls.get(calls.one("jobs", job_id, "/incidents"), Page[rest.Incident]))

    def commands(self, job_id: str) -> Any:
        """Iterates over orders to agents, newest first."""
        return self._pages(calls.get(calls.one("jobs", job_id, "/commands"), Page[rest.Command]))

    def checkpoints(self, job_id: str) -> Any:
        """Iterates over checkpoints, newest first."""
        return self._pages(calls.get(calls.one("jobs", job_id, "/checkpoints"), Page[rest.Checkpoint]))

    def speed(self, job_id: str) -> Any:
        """Straggler scores of its ranks and stages, as a JobSpeed."""
        return self._run(calls.get(calls.one("jobs", job_id, "/speed"), rest.JobSpeed))

    def numerics(self, job_id: str) -> Any:
        """Refused results and the determinism report, as JobNumerics."""
        return self._run(calls.get(calls.one("jobs", job_id, "/numerics"), rest.JobNumerics))

    def queue(self, job_id: str) -> Any:
        """Its place among the jobs that wait for devices and what it waits for, as a JobQueue."""
        return self._run(calls.get(calls.one("jobs", job_id, "/queue"), rest.JobQueue))

    def budget(self, job_id: str) -> Any:
        """What its restarts have spent, as a Budget."""
        return self._run(calls.get(calls.one("jobs", job_id, "/budget"), rest.Budget))

    def timeouts(self, job_id: str) -> Any:
        """Iterates over the limit of each section."""
        return self._pages(calls.get(calls.one("jobs", job_id, "/timeouts"), Page[rest.SectionTimeout]))

    def logs(
        self,
        job_id: str,
        *,
        replica: int | None = None,
        rank: int | None = None,
        incarnation: int | None = None,
        tail: int | None = None,
    ) -> Any:
        """The end of a rank's output, of one of its lives, as a Log."""
        path = calls.one("jobs", job_id, "/logs")
        return self._run(calls.get(path, rest.Log, replica=replica, rank=rank, incarnation=incarnation, tail=tail))

    def watch(self, job_id: str, *, since: int = 0) -> Any:
        """Iterates over the job's events for ever, across reconnects, from `since`."""
        return self._follow(since, job_id)

    def _act(self, job_id: str, verb: str, body: Mapping[str, Any], read: JobAsRead | None = None) -> Any:
        """`read`: by which state of the job it was decided."""
        expected = (read or {}).get("expected_attempt")
        sent = body if expected is None else {**body, "expected_attempt": expected}
        path = calls.one("jobs", job_id, f":{verb}")
        return self._run(calls.post(path, sent, rest.Accepted, if_match=(read or {}).get("if_match")))


class Nodes(_Group):
    """Machines and their devices."""

    def list(self, *, limit: int | None = None, sort: str | None = None) -> Any:
        """Iterates over every Node, by name; `sort`: name, "-name", "-risk" (the highest first) or health (the worst
        first)."""
        return self._pages(calls.get("/nodes", Page[rest.Node], limit=limit, sort=sort))

    def columns(self, *, fields: str | None = None, **params: Any) -> Any:
        """NodeColumns: every node in one answer, for large fleets. `fields` as "name,state,devices_busy"; `state`, `q`,
        `limit`, `cursor`. `api.shapes.rows_of(found.columns)` makes rows of it."""
        return self._run(calls.get("/nodes:columns", NodeColumns, fields=fields, **params))

    def get(self, node_id: str) -> Any:
        """NodeDetail, by id or name."""
        return self._run(calls.get(calls.one("nodes", node_id), rest.NodeDetail))

    def series(
        self,
        node_id: str,
        *,
        window_s: float | None = None,
        since: str | None = None,
        until: str | None = None,
        max_points: int = 300,
    ) -> Any:
        """Histories of its devices: of the last `window_s` seconds (600 unless given) before `until` (now),
        or from `since`; instants as ISO-8601."""
        path = calls.one("nodes", node_id, "/series")
        wanted = {"window_s": window_s, "since": since, "until": until, "max_points": max_points}
        return self._run(calls.get(path, rest.Series, **wanted))

    def dead_letters(self, node_id: str, *, state: str | None = None) -> Any:
        """Iterates over events of its agent that could not be applied, newest first."""
        path = calls.one("nodes", node_id, "/dead-letters")
        return self._pages(calls.get(path, Page[rest.DeadLetter], state=state))

    def cordon(self, node_id: str, reason: str, **read: Unpack[AsRead]) -> Any:
        """Give it no new work."""
        return self._act(node_id, "cordon", reason, read)

    def drain(self, node_id: str, reason: str, **read: Unpack[AsRead]) -> Any:
        """Empty it: what runs there moves away, then it is cordoned; `request` tells how far that is."""
        return self._act(node_id, "drain", reason, read)

    def uncordon(self, node_id: str, reason: str, **read: Unpack[AsRead]) -> Any:
        """Let it take work again."""
        return self._act(node_id, "uncordon", reason, read)

    def reset_device(self, device_id: str, reason: str) -> Any:
        """Have one of its devices reset; SdkError of status 409 while a rank is on it."""
        return self._run(calls.post(calls.one("devices", device_id, ":reset"), {"reason": reason}, rest.Accepted))

    def revoke(self, node_id: str, reason: str, **read: Unpack[AsRead]) -> Any:
        """Its key is worth nothing from now on."""
        return self._act(node_id, "revoke", reason, read)

    def restore(self, node_id: str, reason: str, **read: Unpack[AsRead]) -> Any:
        """Take a revocation back."""
        return self._act(node_id, "restore", reason, read)

    def rotate_key(self, node_id: str, reason: str, **read: Unpack[AsRead]) -> Any:
        """Have it make a new key."""
        return self._act(node_id, "rotate-key", reason, read)

    def confirm(self, node_id: str, reason: str, **read: Unpack[AsRead]) -> Any:
        """Vouch for a quarantined node; admits one that enrolled with a token that holds."""
        return self._act(node_id, "confirm", reason, read)

    def remove(self, node_id: str, reason: str, **read: Unpack[AsRead]) -> Any:
        """Forget it; refused while ranks are placed there."""
        return self._act(node_id, "remove", reason, read)

    def re_enrol(self, node_id: str, reason: str, *, ttl_s: float = 3600.0) -> Any:
        """JoinToken for this node alone, whose `token` is told this once."""
        body = {"reason": reason, "ttl_s": ttl_s}
        return self._run(calls.post(calls.one("nodes", node_id, ":re-enrol"), body, rest.JoinToken))

    def _act(self, node_id: str, verb: str, reason: str, read: AsRead) -> Any:
        return self._run(calls.post(calls.one("nodes", node_id, f":{verb}"), {"reason": reason}, rest.Accepted, **read))


class JoinTokenOptions(TypedDict, total=False):
    """Whom a join token is for: `name` or `name_pattern` (gpu-a1-*), `pool`, `cidr` (networks, by
    commas); at least one of them. `uses` 1 and `ttl_s` 3600 unless given; `hold`: nodes that enrol
    with it get no work until an administrator confirms them."""

    name: str
    name_pattern: str
    pool: str
    cidr: str
    uses: int
    ttl_s: float
    hold: bool


class JoinTokens(_Group):
    """Tokens with which agents enrol."""

    def list(self) -> Any:
        """Iterates over all of them."""
        return self._pages(calls.get("/join-tokens", Page[rest.JoinToken]))

    def create(self, **options: Unpack[JoinTokenOptions]) -> Any:
        """JoinToken whose `token` is told this once; bound to a name, a pattern of names, a pool or
        networks."""
        return self._run(calls.post("/join-tokens", dict(options), rest.JoinToken))

    def revoke(self, token_id: str) -> Any:
        """At once and for good."""
        return self._run(calls.post(calls.one("join-tokens", token_id, ":revoke"), {}, rest.Accepted))


class Incidents(_Group):
    """Things to investigate."""

    def list(self, *, state: str | None = None, q: str | None = None, sort: str | None = None) -> Any:
        """Iterates, newest first, or with `sort` "opened" oldest first; `q`: part of the title, or of the name of its
        job or node."""
        return self._pages(calls.get("/incidents", Page[rest.Incident], state=state, q=q, sort=sort))

    def get(self, incident_id: str) -> Any:
        """IncidentDetail."""
        return self._run(calls.get(calls.one("incidents", incident_id), rest.IncidentDetail))

    def readings(self, incident_id: str, *, max_points: int | None = None) -> Any:
        """IncidentReadings: what the devices that its findings name read around the fault."""
        path = calls.one("incidents", incident_id, "/readings")
        return self._run(calls.get(path, rest.IncidentReadings, max_points=max_points))

    def acknowledge(self, incident_id: str, reason: str, **read: Unpack[AsRead]) -> Any:
        """I have seen it, and what is left to do is mine."""
        path = calls.one("incidents", incident_id, ":acknowledge")
        return self._run(calls.post(path, {"reason": reason}, rest.Accepted, **read))


class Decisions(_Group):
    """What was decided, and why."""

    def get(self, decision_id: str) -> Any:
        """DecisionDetail: with its commands, and what people said of it."""
        return self._run(calls.get(calls.one("decisions", decision_id), rest.DecisionDetail))

    def approve(self, decision_id: str, reason: str, **read: Unpack[AsRead]) -> Any:
        """Have what was only recommended carried out."""
        return self._word(decision_id, ":approve", reason, read)

    def reject(self, decision_id: str, reason: str, **read: Unpack[AsRead]) -> Any:
        """Have it not carried out."""
        return self._word(decision_id, ":reject", reason, read)

    def hold(self, decision_id: str, reason: str, **read: Unpack[AsRead]) -> Any:
        """Stop its countdown, until somebody decides."""
        return self._word(decision_id, ":hold", reason, read)

    def _word(self, decision_id: str, verb: str, reason: str, read: AsRead) -> Any:
        path = calls.one("decisions", decision_id, verb)
        return self._run(calls.post(path, {"reason": reason}, rest.Accepted, **read))


class Requests(_Group):
    """What people asked for: evictions, checkpoints, drains and faults."""

    def list(
        self,
        *,
        kind: str | None = None,
        state: str | None = None,
        job_id: str | None = None,
        node_id: str | None = None,
        limit: int | None = None,
    ) -> Any:
        """Iterates, newest first; kinds and states several with commas."""
        wanted = {"kind": kind, "state": state, "job_id": job_id, "node_id": node_id, "limit": limit}
        return self._pages(calls.get("/requests", Page[rest.Request], **wanted))

    def get(self, request_id: str) -> Any:
        """RequestDetail, with the evictions that are parts of a drain."""
        return self._run(calls.get(calls.one("requests", request_id), rest.RequestDetail))

    def withdraw(self, request_id: str, reason: str, **read: Unpack[AsRead]) -> Any:
        """Take it back: what has not happened yet does not happen."""
        path = calls.one("requests", request_id, ":withdraw")
        return self._run(calls.post(path, {"reason": reason}, rest.Accepted, **read))


class Demo(_Group):
    """Faults on request; only where the server runs as a demo."""

    def faults(self) -> Any:
        """What can be broken: one Page of Faults."""
        return self._run(calls.get("/demo/faults", Page[rest.Fault]))

    def inject(self, kind: str, **target: Any) -> Any:
        """Break something; `target` as the fault's `needs` say."""
        body = {"kind": kind} | {name: value for name, value in target.items() if value is not None}
        return self._run(calls.post("/demo/faults", body, rest.Accepted))
