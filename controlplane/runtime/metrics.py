"""Prometheus metrics of the server; names and labels are public and stable.

What a process counts is in the client's own registry, and each process exports its own
(`runtime.exporter`). What is read from rows is in FLEET, the same in every web process, and
web processes alone export it. No high-cardinality label: a job id on few series, never
rank x metric.
"""

import time
from collections import deque

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

FLEET = CollectorRegistry()

_FAST_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 2.5, 5.0)
"""A limit of an alert is one of them: within a bucket Prometheus can only guess where a quantile lies."""
_SLOW_S = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)

PHASES = (
    "fault", "detected", "decided", "view_announced", "all_flushed", "view_installed", "first_commit",
    "replica_started", "replica_joined", "caught_up", "full_strength", "smaller_strength",
)  # fmt: skip
"""Of an incident, in order (`recovery.phases`)."""
STALLED, REPEATED = "stall", "repeated"

BUILD_INFO = Gauge("holdfast_build_info", "Always 1.", ["version"], multiprocess_mode="max")
JOBS = Gauge("holdfast_jobs", "Jobs by state.", ["state"], registry=FLEET)
NODES = Gauge("holdfast_nodes", "Nodes by state.", ["state"], registry=FLEET)
GPUS = Gauge("holdfast_gpus", "Devices by health.", ["health"], registry=FLEET)
AGENT_CONNECTIONS = Gauge("holdfast_agent_connections", "Agent sockets of this process.")
FRAMES = Counter("holdfast_telemetry_frames_total", "Agent frames by result.", ["result"])
DEAD_LETTERS = Counter("holdfast_dead_letters_total", "Events of agents that could not be applied.", ["kind"])
DEAD_LETTERS_WAITING = Gauge("holdfast_dead_letters_waiting", "Of them, those that wait for a replay.", registry=FLEET)
ISOLATED_FAILURES = Counter("holdfast_isolated_failures_total", "Work for one that failed alone.", ["what"])
TELEMETRY_LAG = Histogram("holdfast_telemetry_lag_seconds", "From socket to sentinel.", buckets=_FAST_S)
DECISIONS = Counter("holdfast_decisions_total", "Decisions.", ["action", "trigger", "mode", "result"])
DETECTION = Histogram(
    "holdfast_detection_seconds",
    "From a fault to its finding; of silence and of a hang since the last word or progress.",
    buckets=_SLOW_S,
)
DECISION_LATENCY = Histogram("holdfast_decision_latency_seconds", "From first signal to commit.", buckets=_FAST_S)
COMMANDS = Counter("holdfast_commands_total", "Commands by end.", ["kind", "result"])
COMMAND_ACK = Histogram("holdfast_command_ack_seconds", "From commit to the agent's journal.", buckets=_FAST_S)
RECOVERY = Histogram("holdfast_recovery_seconds", "Phases of an incident since the fault.", ["phase"], buckets=_SLOW_S)
LOST_WORK = Counter(
    "holdfast_lost_work_seconds_total", "Time of jobs in stalled steps, and in steps trained again.", ["cause"]
)
EFFECTIVE = Gauge(
    "holdfast_job_effective_time_ratio",
    "Kept steps of a job x its undisturbed step / wall time since its first attempt.",
    ["job_id"],
    registry=FLEET,
)
PRODUCTIVITY = Gauge(
    "holdfast_job_productivity_ratio",
    "Speed of a job's newest steps, or of the one under way where that takes longer, over its own best.",
    ["job_id"],
    registry=FLEET,
)
CHECKPOINT_AGE = Gauge(
    "holdfast_checkpoint_age_seconds",
    "Since a job's newest good checkpoint in storage was committed; of one without, since its first attempt began.",
    ["job_id"],
    registry=FLEET,
)
CHECKPOINT_LIMIT = Gauge(
    "holdfast_checkpoint_age_limit_seconds", "An older one is alarming (HOLDFAST_CHECKPOINT_OLD_S).", registry=FLEET
)
WORK_AT_RISK = Gauge(
    "holdfast_job_work_at_risk_seconds",
    "Training that a job would repeat if everything stopped now: steps since its newest good checkpoint x a step.",
    ["job_id"],
    registry=FLEET,
)
GPU_TIME = Gauge(
    "holdfast_gpu_time_seconds",
    "GPU-seconds of the newest hour that is judged, by class of the ledger; all known device time together.",
    ["class"],
    registry=FLEET,
)
GPU_QUEUED = Gauge(
    "holdfast_gpu_queued_seconds", "GPU-seconds of that hour that jobs asked for and did not hold.", registry=FLEET
)
FAILURE_MEANS = Gauge(
    "holdfast_failure_mean_seconds",
    "Mean time of that hour to a failure (mttf), to its detection (mttd), to recovery (mttr); absent: not observed.",
    ["mean"],
    registry=FLEET,
)
OUTBOX_PENDING = Gauge("holdfast_outbox_pending", "Commands not yet acknowledged.", registry=FLEET)
OUTBOX_OLDEST = Gauge("holdfast_outbox_oldest_seconds", "Age of the oldest of them.", registry=FLEET)
LOOP_LAG = Gauge("holdfast_loop_lag_seconds", "Worst lag of a loop in the last 30 s.", ["loop"])
CHANNEL_DROPPED = Counter("holdfast_channel_dropped_total", "Messages shed to slow browsers.")
REQUESTS_OVERDUE = Counter("holdfast_requests_overdue_total", "Connections ended while a request came in.", ["part"])
REQUESTS_BUSY = Counter("holdfast_requests_busy_total", "Requests refused as too many were being answered.")
LATE_REFUSALS = Counter(
    "holdfast_api_late_refusals_total",
    "Bad input that passed the first check and was refused by a later one.",
    ["error"],
)
LEADER = Gauge("holdfast_leader", "1 when this sentinel leads.")
SHARDS = Gauge("holdfast_sentinel_shards", "Shards of the fleet, by HOLDFAST_SENTINEL_SHARDS.")
LEADS = Gauge("holdfast_sentinel_leads", "1 when this sentinel leads the shard.", ["shard"])
TERM = Gauge("holdfast_sentinel_term", "Under which it leads the shard, or led it last.", ["shard"])
TAKEN = Counter("holdfast_sentinel_leads_taken_total", "Shards that it began to lead.", ["how"])
FENCED = Counter("holdfast_sentinel_fenced_total", "Writes refused, as another sentinel leads the shard by now.")
TASKS_SENT = Counter("holdfast_tasks_sent_total", "Tasks that beat has sent.", ["task"])
BREAKER = Gauge(
    "holdfast_breaker_open",
    "1 when nothing destructive is done on silence: too much looks bad or was done, or a breaker is open.",
    ["scope"],
    registry=FLEET,
)
INCIDENTS = Gauge("holdfast_incidents_open", "Incidents that are not resolved.", registry=FLEET)
INCIDENT_OLDEST = Gauge("holdfast_incident_oldest_seconds", "Age of the oldest of them.", registry=FLEET)
REFRESHED = Gauge(
    "holdfast_fleet_refreshed_timestamp_seconds", "When the figures of the fleet were last read.", registry=FLEET
)
REFRESHED_AGE = Gauge(
    "holdfast_fleet_refreshed_age_seconds", "Since then, by this process's monotonic clock.", registry=FLEET
)


class SinceRefresh:
    """Keeps REFRESHED_AGE: since the figures were read, or this process began. No machine's clock is compared
    with another's, and none that is set moves it."""

    def __init__(self) -> None:
        self._at_s = time.monotonic()
        REFRESHED_AGE.set_function(lambda: time.monotonic() - self._at_s)

    def note(self) -> None:
        """They were read just now."""
        self._at_s = time.monotonic()


SINCE_REFRESH = SinceRefresh()

LAG_WINDOW_S = 30.0
"""Longer than from scrape to scrape: what was late once is seen once."""


class WorstLag:
    """Keeps LOOP_LAG of one loop at the worst of LAG_WINDOW_S."""

    def __init__(self, loop: str) -> None:
        self._gauge = LOOP_LAG.labels(loop=loop)
        self._worst: deque[tuple[float, float]] = deque()

    def note(self, lag_s: float, now_s: float) -> None:
        """A turn at `now_s`, by the monotonic clock, was so late."""
        while self._worst and self._worst[-1][1] <= lag_s:
            self._worst.pop()
        self._worst.append((now_s, lag_s))
        while now_s - self._worst[0][0] > LAG_WINDOW_S:
            self._worst.popleft()
        self._gauge.set(self._worst[0][1])


# A rate needs a zero before the first event: series whose labels are known begin with one.
for _phase in PHASES:
    RECOVERY.labels(phase=_phase)
for _cause in (STALLED, REPEATED):
    LOST_WORK.labels(cause=_cause)
FRAMES.labels(result="ok")
