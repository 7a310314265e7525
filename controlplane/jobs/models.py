"""Job > attempt > replica (one row an incarnation) > rank; steps.

Decided columns (`state`, `epoch`) are written by recovery.commit and the user's services
alone; observed columns (`committed_step`, pids, exits) by telemetry ingest alone.
"""

from django.db import models
from django.db.models import Q

from controlplane.fleet.models import Device, Node
from controlplane.protocol.states import AttemptState, JobState, RankState, ReplicaState


class Job(models.Model):
    """What a user wants. `epoch` is the fencing token; `due_at` the next moment the
    job must be looked at (swept by sentinel and beat). `looks_taken`: looks on schedule so
    far, the newest at `looked_at`. `ahead`: what agents were told of it and this database has lost,
    because it was set back (policy.snapshot.AheadFact as JSON). `parked_by`: who preempted it, and why, until somebody
    resumes it."""

    id = models.CharField(primary_key=True, max_length=32)
    name = models.CharField(max_length=63)
    project = models.CharField(max_length=63, default="default")
    owner = models.CharField(max_length=150, default="")
    spec = models.JSONField()
    state = models.CharField(max_length=16, default=JobState.PENDING, choices=[(s, s) for s in JobState])
    state_reason = models.TextField(blank=True)
    state_since = models.DateTimeField(auto_now_add=True)
    priority = models.IntegerField(default=500)
    epoch = models.BigIntegerField(default=0)
    committed_step = models.BigIntegerField(default=0)
    cancel_requested = models.BooleanField(default=False)
    trained = models.BooleanField(default=False)
    due_at = models.DateTimeField(null=True, db_index=True)
    looks_taken = models.IntegerField(default=0)
    looked_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True)
    ahead = models.JSONField(default=dict)
    parked_by = models.TextField(blank=True, default="")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["project", "name"],
                condition=~Q(state__in=[JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED]),
                name="live_job_name_once",
            )
        ]
        # The orders in which lists of jobs are asked for, beside that of the key.
        indexes = [
            models.Index(fields=["priority", "id"], name="job_by_priority"),
            models.Index(fields=["name", "id"], name="job_by_name"),
        ]


class Attempt(models.Model):
    """One launch of a job with one layout. `layout` is protocol.spec.Parallelism as JSON;
    `end_code`: reason code of the decision that ended it. At most `max_contributors` of its replicas
    compute, as its ranks were told (None: by the spec alone, as an older release did). `yielded` of its `replicas` do
    not run for now, as others have their devices; at `grown_at` it took one of them back."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="attempts")
    number = models.IntegerField()
    state = models.CharField(max_length=16, default=AttemptState.STARTING, choices=[(s, s) for s in AttemptState])
    layout = models.JSONField()
    replicas = models.IntegerField()
    resume_step = models.BigIntegerField(default=0)
    resume_path = models.TextField(blank=True)
    checkpoint_dir = models.TextField()
    started_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True)
    end_reason = models.TextField(blank=True)
    end_code = models.CharField(max_length=60, blank=True, default="")
    max_contributors = models.IntegerField(null=True)
    yielded = models.PositiveIntegerField(default=0)
    grown_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["job", "number"], name="attempt_number_once"),
            models.UniqueConstraint(
                fields=["job"], condition=~Q(state=AttemptState.ENDED), name="one_live_attempt_per_job"
            ),
        ]


class Replica(models.Model):
    """One incarnation of one replica slot. `contributing` now, `contributed` ever.
    `times_out`: how often the others went on without it for a while, lately (`policy.flaps`); `out_at`: when last.
    `ordered_out`: the person who had it evicted at `ordered_at`, and why. `refused`: a node would not start
    it because of its checks. `relieved`: why another one is to take its place while it trains on."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="replica_rows")
    index = models.IntegerField()
    incarnation = models.IntegerField()
    state = models.CharField(max_length=16, default=ReplicaState.FORMING, choices=[(s, s) for s in ReplicaState])
    state_since = models.DateTimeField(auto_now_add=True)
    contributing = models.BooleanField(default=False)
    contributed = models.BooleanField(default=False)
    committed_step = models.BigIntegerField(default=0)
    stop_requested = models.BooleanField(default=False)
    created_at = models.DateTimeField(auto_now_add=True)
    caught_up = models.JSONField(null=True)
    ordered_out = models.TextField(blank=True, default="")
    ordered_at = models.DateTimeField(null=True)
    refused = models.BooleanField(default=False)
    times_out = models.PositiveSmallIntegerField(default=0)
    out_at = models.DateTimeField(null=True)
    relieved = models.TextField(blank=True, default="")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["attempt", "index", "incarnation"], name="incarnation_once")]


EXITED_BY_ITSELF = Q(exit_code__isnull=False) | Q(exit_signal__isnull=False)


class Rank(models.Model):
    """One process. `released_at` set when the process is proved gone; until then it
    holds its device (the constraint: no device in two live ranks). `out_of_section_s`: the
    longest time out of all sections, of a rank that ended well."""

    replica = models.ForeignKey(Replica, on_delete=models.CASCADE, related_name="ranks")
    rank = models.IntegerField()
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="ranks")
    device = models.ForeignKey(Device, on_delete=models.PROTECT, related_name="ranks")
    state = models.CharField(max_length=16, default=RankState.LAUNCHING, choices=[(s, s) for s in RankState])
    pid = models.IntegerField(null=True)
    started_at = models.DateTimeField(null=True)
    joined_at = models.DateTimeField(null=True)
    released_at = models.DateTimeField(null=True)
    exit_code = models.IntegerField(null=True)
    exit_signal = models.IntegerField(null=True)
    exit_expected = models.BooleanField(default=False)
    log_tail = models.TextField(blank=True)
    out_of_section_s = models.FloatField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["replica", "rank"], name="rank_once"),
            models.UniqueConstraint(fields=["device"], condition=Q(released_at=None), name="device_held_once"),
        ]
        # When the last rank of a replica joined, which ranks ended by themselves, and how many are on a node, without
        # reading all that ever were.
        indexes = [
            # SQLite reads a row for each entry of an index that does not have `released_at` itself.
            models.Index(fields=["node", "released_at"], condition=Q(released_at=None), name="rank_holds"),
            models.Index(fields=["replica", "joined_at"], condition=Q(joined_at__isnull=False), name="rank_joined"),
            models.Index(fields=["released_at"], condition=EXITED_BY_ITSELF, name="rank_exited"),
        ]


class RankSpeed(models.Model):
    """How fast a rank works: its newest window (protocol.rank.TimingReport as JSON), the best
    work of any window so far, and the scores of the last scoring; `slow_windows` in a row in the view of
    `scored_epoch`, `slow_before` in a row before it. `fresh`: reported since."""

    rank = models.OneToOneField(Rank, on_delete=models.CASCADE, related_name="speed", primary_key=True)
    told = models.JSONField()
    micro_batches = models.FloatField(default=1.0)
    best_s = models.FloatField(null=True)
    relative = models.FloatField(null=True)
    individual = models.FloatField(null=True)
    straggler = models.CharField(max_length=12, blank=True)
    cause = models.CharField(max_length=12, blank=True)
    late_s = models.FloatField(null=True)
    slow_windows = models.IntegerField(default=0)
    fresh = models.BooleanField(default=True)
    reported_at = models.DateTimeField()
    scored_at = models.DateTimeField(null=True)
    scored_epoch = models.BigIntegerField(default=0)
    slow_before = models.IntegerField(default=0)


class RankDeterminism(models.Model):
    """Steps that a rank computed twice, and how many agreed bit for bit."""

    rank = models.OneToOneField(Rank, on_delete=models.CASCADE, related_name="determinism", primary_key=True)
    steps = models.BigIntegerField()
    identical_steps = models.BigIntegerField()
    largest_difference = models.FloatField()
    reported_at = models.DateTimeField()


class JobPace(models.Model):
    """How fast the job commits (`policy.pace.Pace` as JSON), counted at each step's first report.
    `trained_s`: seconds of all its committed steps; None: not summed since that is kept. `spent`: where its
    wall time went (`policy.spent.Spent`); None: it trained before that was kept."""

    job = models.OneToOneField(Job, on_delete=models.CASCADE, related_name="pace_row", primary_key=True)
    pace = models.JSONField()
    trained_s = models.FloatField(null=True)
    spent = models.JSONField(null=True)


class StepRecord(models.Model):
    """One committed step of a job, merged from its ranks' reports.

    `micro_batches`: {"<replica>": [ids]} from each replica's rank 0; `trained`: ids of all
    micro-batches in the committed gradient, as the all-reduce counted them (None: not told);
    `parameter_hashes`: {"<rank>": {"<replica>": hash}}; both are the certificate's input.

    Of a large job (`step_rows.LARGE_RANKS`) these three are empty: what ranks told is in `packed`
    (`changes.packing.Packed`), and while reports of it come in its parts, `in_parts`; read by `step_rows.whole`.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="steps")
    attempt = models.IntegerField()
    step = models.BigIntegerField()
    epoch = models.BigIntegerField()
    at = models.DateTimeField()
    loss = models.FloatField(null=True)
    grad_norm = models.FloatField(null=True)
    step_time_s = models.FloatField(null=True)
    exchange_s = models.FloatField(null=True)
    stall_s = models.FloatField(default=0.0)
    tokens = models.BigIntegerField(default=0)
    contributors = models.IntegerField(default=0)
    micro_batches = models.JSONField(default=dict)
    trained = models.JSONField(null=True)
    parameter_hashes = models.JSONField(default=dict)
    packed = models.JSONField(null=True)
    in_parts = models.BooleanField(default=False, db_default=False)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "attempt", "step"], name="step_once")]
        indexes = [
            models.Index(fields=["job", "at"], name="steps_by_moment"),
            models.Index(fields=["job"], condition=models.Q(in_parts=True), name="steps_in_parts"),
        ]


class StepRollup(models.Model):
    """What is left of steps of an attempt that are older than is kept (`step_rollups`): of those numbered from
    `bucket` x 100 on, up to 100 of them, so many `steps`, `first` to `last`. Means, but `stall_s` and `contributors`:
    the sum and the fewest; `epoch` and `at` of the last. `exact`: each held its micro-batches once; `equal`: replicas
    agreed after each (None: of none two said)."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="step_rollups")
    attempt = models.IntegerField()
    bucket = models.BigIntegerField()
    first = models.BigIntegerField()
    last = models.BigIntegerField()
    steps = models.IntegerField()
    epoch = models.BigIntegerField()
    at = models.DateTimeField()
    loss = models.FloatField(null=True)
    grad_norm = models.FloatField(null=True)
    step_time_s = models.FloatField(null=True)
    exchange_s = models.FloatField(null=True)
    stall_s = models.FloatField(default=0.0)
    tokens = models.BigIntegerField(default=0)
    contributors = models.IntegerField(default=0)
    exact = models.BooleanField()
    equal = models.BooleanField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "attempt", "bucket"], name="rollup_once")]


class StepPart(models.Model):
    """What one batch of reports told of a step of a large job (`changes.packing.Packed`). Written once, gone once the
    step is packed."""

    step = models.ForeignKey(StepRecord, on_delete=models.CASCADE, related_name="parts")
    content = models.JSONField()
