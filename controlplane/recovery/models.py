"""What was found, what was decided and why, and the membership that followed."""

from datetime import datetime

from django.db import models
from django.db.models import Q

from controlplane.checkpoints.models import Checkpoint
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job
from controlplane.protocol.states import IncidentOutcome, IncidentState, Mode, RequestKind, RequestState, Verdict
from controlplane.recovery import bill_models as bill_models
from controlplane.recovery import disruption_models as disruption_models
from controlplane.recovery import ledger_models as ledger_models
from controlplane.recovery import resumption_models as resumption_models

LIVE = Q(state__in=[str(RequestState.OPEN), str(RequestState.TAKEN)])


class LetterState(models.TextChoices):
    """What became of an event that was put aside."""

    WAITING = "waiting"
    REPLAYED = "replayed"
    DISCARDED = "discarded"


class Incident(models.Model):
    """One cause, of a job (`job` None: of the fleet alone). `title` names it for lists;
    `phases`: [{"name", "at", "since_fault_s"}] in order; `certificate`: see
    recovery.certificate; `findings`: what the Flight Recorders of each hung replica say, see
    changes.diagnostics. `outcome` once training is back or given up, in words in `resolution`;
    `recovered_at`: training was back, at full strength or (`full_strength` False) smaller.
    `needs_hardware`: a device of it is of no use until it is reset or replaced. `stall_s`: how long
    training stood still because of it, `stall_others_s`: and because of others while it was open (`recovery.stall`).
    `began` and `ended`: where its job was then (`recovery.course`). `shared`: it is one cause of incidents of several
    jobs, which are `part_of` it, of this kind (`policy.shared_causes`)."""

    id = models.CharField(primary_key=True, max_length=32)
    job = models.ForeignKey(Job, null=True, on_delete=models.CASCADE, related_name="incidents")
    node = models.ForeignKey(Node, null=True, on_delete=models.CASCADE, related_name="incidents")
    title = models.CharField(max_length=200)
    state = models.CharField(max_length=16, default=IncidentState.OPEN, choices=[(s, s) for s in IncidentState])
    opened_at = models.DateTimeField()
    began = models.JSONField(null=True)
    ended = models.JSONField(null=True)
    resolved_at = models.DateTimeField(null=True)
    recovered_at = models.DateTimeField(null=True)
    full_strength = models.BooleanField(default=False)
    outcome = models.CharField(max_length=12, blank=True, choices=[(s, s) for s in IncidentOutcome])
    resolution = models.TextField(blank=True)
    needs_hardware = models.BooleanField(default=False)
    acknowledged_at = models.DateTimeField(null=True)
    acknowledged_by = models.CharField(max_length=200, blank=True)
    acknowledgement = models.TextField(blank=True)
    phases = models.JSONField(default=list)
    certificate = models.JSONField(null=True)
    certificate_due_at = models.DateTimeField(null=True, db_index=True)
    stall_s = models.FloatField(null=True)
    stall_others_s = models.FloatField(null=True)
    findings = models.JSONField(default=list)
    shared = models.CharField(max_length=12, blank=True, default="")
    part_of = models.ForeignKey("self", null=True, on_delete=models.SET_NULL, related_name="parts")

    @property
    def ended_at(self) -> datetime | None:
        """When training was back, or the incident was over without that; None: neither yet."""
        return self.recovered_at or self.resolved_at


class Recomputation(models.Model):
    """A sampled step of a recovery that a replica computes again (`recovery.recompute`): the steps
    `from_step` to `until_step` - 1 (0: none was sampled) by `ranks` ranks of `replica`, with the shares
    `spans` (protocol JSON); `exact`: the same sums in the same order. `told`: what each rank told;
    `why` it was given up; `due_at`: for no longer does the job's end wait."""

    id = models.CharField(primary_key=True, max_length=32)
    incident = models.OneToOneField(Incident, on_delete=models.CASCADE, related_name="recomputation")
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="recomputations")
    attempt = models.IntegerField()
    ranks = models.IntegerField()
    path = models.TextField()
    from_step = models.BigIntegerField()
    until_step = models.BigIntegerField(default=0)
    spans = models.JSONField(default=list)
    exact = models.BooleanField(default=False)
    replica = models.IntegerField(default=-1)
    incarnation = models.IntegerField(default=-1)
    ordered_at = models.DateTimeField(null=True)
    due_at = models.DateTimeField(null=True)
    why = models.TextField(blank=True, default="")

    @property
    def is_open(self) -> bool:
        """It was not given up, and not every rank has told."""
        return not self.why and self.told.count() < self.ranks


class KeptCheckpoint(models.Model):
    """The checkpoint from before an incident's fault, kept beyond its retention until the certificate is
    judged (`recovery.keeping`). `let_go_at` None: it still is; `why` it was given up before that, "" if it
    was not. `due_at`: when to see to it that the job's ranks keep what they shall; None: they need no more."""

    incident = models.OneToOneField(Incident, on_delete=models.CASCADE, related_name="kept")
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="kept_checkpoints")
    checkpoint = models.ForeignKey(Checkpoint, on_delete=models.CASCADE, related_name="kept_for")
    since = models.DateTimeField()
    let_go_at = models.DateTimeField(null=True)
    why = models.TextField(blank=True, default="")
    due_at = models.DateTimeField(null=True, db_index=True)


class RecomputedRank(models.Model):
    """What one rank told of a recomputation (`report`: protocol JSON). A row each, written once: of a
    replica of a thousand ranks none waits for another's, and none writes another's again."""

    recomputation = models.ForeignKey(Recomputation, on_delete=models.CASCADE, related_name="told")
    rank = models.IntegerField()
    report = models.JSONField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["recomputation", "rank"], name="recomputed_rank_once")]


class RankLook(models.Model):
    """What one look at one rank found (`protocol.diagnostics`): untrusted text. `method` "none":
    it could not be got, and the text says why. `incident`: the one it was taken for. `place`: where
    its stacks say the rank was; of ranks that stand in one place only the first keep the text."""

    id = models.CharField(primary_key=True, max_length=32)
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="looks")
    incident = models.ForeignKey(Incident, null=True, on_delete=models.SET_NULL, related_name="looks")
    command_id = models.CharField(max_length=32, blank=True, db_index=True)
    replica = models.IntegerField()
    incarnation = models.IntegerField()
    rank = models.IntegerField()
    look = models.CharField(max_length=24)
    method = models.CharField(max_length=80)
    place = models.CharField(max_length=200, blank=True, default="")
    text = models.TextField()
    at = models.DateTimeField()

    class Meta:
        indexes = (models.Index(fields=("job", "at"), condition=~models.Q(text=""), name="looks_with_text"),)


class Signal(models.Model):
    """A detector's finding; kinds and units as policy.snapshot.SignalFact. `seen_at`: when
    the fault showed itself; `created_at`: when it was a row here; `renewed_at`: when it was last found so."""

    id = models.CharField(primary_key=True, max_length=32)
    job = models.ForeignKey(Job, null=True, on_delete=models.CASCADE, related_name="signals")
    node = models.ForeignKey(Node, null=True, on_delete=models.CASCADE, related_name="signals")
    incident = models.ForeignKey(Incident, null=True, on_delete=models.SET_NULL, related_name="signals")
    kind = models.CharField(max_length=24)
    replica = models.IntegerField(null=True)
    incarnation = models.IntegerField(null=True)
    rank = models.IntegerField(null=True)
    device_index = models.IntegerField(null=True)
    value = models.FloatField(default=0.0)
    threshold = models.FloatField(default=0.0)
    evidence = models.JSONField(default=dict)
    key = models.CharField(max_length=160)
    seen_at = models.DateTimeField()
    created_at = models.DateTimeField(auto_now_add=True)
    renewed_at = models.DateTimeField(null=True)
    settled_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["key"], condition=Q(settled_at=None), name="open_signal_once")]
        indexes = [models.Index(fields=["kind", "seen_at"], name="signal_kind_seen")]


class Decision(models.Model):
    """One decision with all that is needed to replay it. `snapshot`: a JobSnapshot as
    `recovery.snapshots` packs it, empty for looks on schedule, which come by the thousand; `key` once per job and mode.
    `job` None: decided for the fleet, from a FleetSnapshot; `key` once of all and mode. `policy_documents`: number of
    the document of each kind of scope that made the policy `policy_version` (0: none; null: an earlier release).
    `verdict`: the newest word of people about one that was only recommended, `verdicts`: all of them, [{"who",
    "person", "verdict", "reason", "at"}]."""

    id = models.CharField(primary_key=True, max_length=32)
    job = models.ForeignKey(Job, null=True, on_delete=models.CASCADE, related_name="decisions")
    incident = models.ForeignKey(Incident, null=True, on_delete=models.SET_NULL, related_name="decisions")
    at = models.DateTimeField()
    rule = models.CharField(max_length=60)
    choice = models.CharField(max_length=60)
    reason_code = models.CharField(max_length=60)
    sentence = models.TextField()
    evidence = models.JSONField(default=dict)
    alternatives = models.JSONField(default=list)
    actions = models.JSONField(default=list)
    cost_gpu_s = models.FloatField(null=True)
    routine = models.BooleanField(default=False)
    mode = models.CharField(max_length=12, default=Mode.ENFORCE)
    applied = models.BooleanField(default=True)
    epoch_before = models.BigIntegerField(default=0)
    epoch_after = models.BigIntegerField(default=0)
    policy_version = models.CharField(max_length=64)
    policy_documents = models.JSONField(null=True)
    snapshot = models.BinaryField()
    decide_s = models.FloatField(default=0.0)
    key = models.CharField(max_length=200)
    verdict = models.CharField(max_length=12, blank=True, default="", choices=[(v, v) for v in Verdict if v])
    verdicts = models.JSONField(default=list)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["job", "key", "mode"], name="decision_once"),
            models.UniqueConstraint(fields=["key", "mode"], condition=Q(job=None), name="fleet_decision_once"),
        ]
        indexes = [
            models.Index(fields=["job"], condition=Q(mode="recommend"), name="decision_recommended"),
            # Of all decisions of years the few that a breaker held.
            models.Index(fields=["rule", "choice", "at"], name="decision_by_rule"),
        ]


class Request(models.Model):
    """What a person asks for, a fact that rules answer (`policy.requests`). Its subject: of `job` the replica
    and rank, in that life (None: the whole job), or `node`. Nothing of it begins after `valid_until`. `answer`: the
    sentence of the decision `decision_id`, the newest that moved it; `done_by`: the one whose orders carry it
    out. `withdrawn_by`: who takes it back, which is answered too. `drain`: the request whose part it is;
    `before`: the node's state when its drain was asked for. `code`: the fault of one, with its `value`. `urgent`: the
    job that a preemption makes room for (None: a person parks the job); its `value`: GPU-seconds that it is expected to
    cost; `gives`: index and incarnation of the replicas that leave for it, []: the whole job. `taken_at`: when it was
    begun."""

    id = models.CharField(primary_key=True, max_length=32)
    kind = models.CharField(max_length=12, choices=[(kind, kind) for kind in RequestKind])
    state = models.CharField(max_length=12, default=RequestState.OPEN, choices=[(s, s) for s in RequestState])
    job = models.ForeignKey(Job, null=True, on_delete=models.CASCADE, related_name="requests")
    node = models.ForeignKey(Node, null=True, on_delete=models.CASCADE, related_name="requests")
    drain = models.ForeignKey("self", null=True, on_delete=models.CASCADE, related_name="evictions")
    attempt = models.IntegerField(null=True)
    replica = models.IntegerField(null=True)
    incarnation = models.IntegerField(null=True)
    rank = models.IntegerField(null=True)
    code = models.CharField(max_length=24, blank=True, default="")
    value = models.FloatField(default=0.0)
    before = models.CharField(max_length=16, blank=True, default="")
    urgent = models.ForeignKey(Job, null=True, on_delete=models.CASCADE, related_name="makes_room")
    gives = models.JSONField(default=list)
    who = models.CharField(max_length=200)
    reason = models.TextField()
    asked_at = models.DateTimeField()
    valid_until = models.DateTimeField()
    withdrawn_by = models.CharField(max_length=200, blank=True, default="")
    answer = models.TextField(blank=True, default="")
    decision_id = models.CharField(max_length=32, blank=True, default="")
    done_by = models.CharField(max_length=32, blank=True, default="")
    taken_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        indexes = (
            models.Index(fields=("job",), condition=LIVE, name="live_requests_of_job"),
            models.Index(fields=("node",), condition=LIVE, name="live_requests_of_node"),
            models.Index(fields=("kind", "asked_at"), name="requests_by_moment"),
        )


class MarkedLines(models.Model):
    """Lines with one marker in the logs of a job's ranks that the timeline has not told yet:
    `lines` of them in `reports`, `last` of which (rank, node, text) came last. `told_at`: when
    it last told of the marker, None: never."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="marked_lines")
    marker = models.CharField(max_length=300)
    lines = models.IntegerField(default=0)
    reports = models.IntegerField(default=0)
    last = models.JSONField(default=dict)
    told_at = models.DateTimeField(null=True, db_index=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "marker"], name="marker_once_per_job")]


class Restart(models.Model):
    """One entry of the restart ledger (policy.budget): which rung a decision took, whether it is charged to the job's
    budget, and whether the program ended by itself."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="restart_rows")
    decision = models.ForeignKey(Decision, on_delete=models.CASCADE, related_name="restart_rows")
    at = models.DateTimeField(db_index=True)
    attempt = models.IntegerField()
    rung = models.CharField(max_length=16)
    charged = models.BooleanField()
    replica = models.IntegerField(null=True)
    incarnation = models.IntegerField(null=True)
    program = models.BooleanField(default=False, db_default=False)


class ViewRow(models.Model):
    """A persisted view and, once everybody flushed, its install (protocol JSON), ordered at
    `ordered_at`; at `installed_at` the first rank told that it is in."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="views")
    attempt = models.IntegerField()
    epoch = models.BigIntegerField()
    view = models.JSONField()
    install = models.JSONField(null=True)
    announced_at = models.DateTimeField()
    ordered_at = models.DateTimeField(null=True)
    installed_at = models.DateTimeField(null=True)
    resumed_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "epoch"], name="view_epoch_once")]


class FlushRow(models.Model):
    """One rank's answer to a view (protocol JSON)."""

    view = models.ForeignKey(ViewRow, on_delete=models.CASCADE, related_name="flush_rows")
    replica = models.IntegerField()
    rank = models.IntegerField()
    flush = models.JSONField()
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["view", "replica", "rank"], name="flush_once")]


class DeadLetter(models.Model):
    """An agent's event that could not be applied (`recovery.deadletter`). `raw`: the event as
    msgpack, so that it is kept whatever its text holds; `reason`: the error, printable; `seq` is
    its number in the journal; `tries` of ingest and of replays together."""

    id = models.CharField(primary_key=True, max_length=32)
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="dead_letters")
    journal_id = models.CharField(max_length=64)
    seq = models.BigIntegerField()
    kind = models.CharField(max_length=60)
    raw = models.BinaryField()
    size_bytes = models.IntegerField()
    reason = models.TextField()
    tries = models.IntegerField()
    happened_at = models.DateTimeField()
    first_seen_at = models.DateTimeField()
    last_seen_at = models.DateTimeField()
    state = models.CharField(max_length=12, default=LetterState.WAITING, choices=LetterState.choices)

    class Meta:
        indexes = [models.Index(fields=["node", "state"], name="letters_of_a_node")]
