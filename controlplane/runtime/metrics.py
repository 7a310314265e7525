"""Prometheus metrics of the server; names and labels are public and stable.

No high-cardinality label: a job id on few series, never rank x metric.
"""

from prometheus_client import Counter, Gauge, Histogram

_FAST_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_SLOW_S = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)

BUILD_INFO = Gauge("holdfast_build_info", "Always 1.", ["version"])
JOBS = Gauge("holdfast_jobs", "Jobs by state.", ["state"])
NODES = Gauge("holdfast_nodes", "Nodes by state.", ["state"])
GPUS = Gauge("holdfast_gpus", "Devices by health.", ["health"])
AGENT_CONNECTIONS = Gauge("holdfast_agent_connections", "Agent sockets of this process.")
FRAMES = Counter("holdfast_telemetry_frames_total", "Agent frames by result.", ["result"])
DEAD_LETTERS = Counter("holdfast_dead_letters_total", "Events of agents that could not be applied.", ["kind"])
DEAD_LETTERS_WAITING = Gauge("holdfast_dead_letters_waiting", "Of them, those that wait for a replay.")
ISOLATED_FAILURES = Counter("holdfast_isolated_failures_total", "Work for one that failed alone.", ["what"])
TELEMETRY_LAG = Histogram("holdfast_telemetry_lag_seconds", "From socket to sentinel.", buckets=_FAST_S)
DECISIONS = Counter("holdfast_decisions_total", "Decisions.", ["action", "trigger", "mode", "result"])
DECISION_LATENCY = Histogram("holdfast_decision_latency_seconds", "From first signal to commit.", buckets=_FAST_S)
COMMANDS = Counter("holdfast_commands_total", "Commands by end.", ["kind", "result"])
COMMAND_ACK = Histogram("holdfast_command_ack_seconds", "From commit to the agent's journal.", buckets=_FAST_S)
RECOVERY = Histogram("holdfast_recovery_seconds", "Phases of an incident since the fault.", ["phase"], buckets=_SLOW_S)
LOST_WORK = Counter("holdfast_lost_work_seconds_total", "Stall and repeated work.", ["cause"])
EFFECTIVE = Gauge("holdfast_job_effective_time_ratio", "Effective training time ratio of a job.", ["job_id"])
CHECKPOINT_AGE = Gauge("holdfast_checkpoint_age_seconds", "Age of a job's newest good checkpoint.", ["job_id"])
OUTBOX_PENDING = Gauge("holdfast_outbox_pending", "Commands not yet acknowledged.")
OUTBOX_OLDEST = Gauge("holdfast_outbox_oldest_seconds", "Age of the oldest of them.")
LOOP_LAG = Gauge("holdfast_loop_lag_seconds", "Worst recent lag of a loop.", ["loop"])
CHANNEL_DROPPED = Counter("holdfast_channel_dropped_total", "Messages shed to slow browsers.")
REQUESTS_OVERDUE = Counter("holdfast_requests_overdue_total", "Connections ended while a request came in.", ["part"])
LATE_REFUSALS = Counter("holdfast_api_late_refusals_total", "Bad input refused behind the door.", ["error"])
LEADER = Gauge("holdfast_leader", "1 when this sentinel leads.")
BREAKER = Gauge("holdfast_breaker_open", "1 when automation is stopped.", ["scope"])
