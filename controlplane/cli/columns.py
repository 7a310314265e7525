"""Which columns each kind of thing shows: one table a kind."""

from collections.abc import Callable

from controlplane.cli import job_cells
from controlplane.cli.output import ABSENT, Column, Row, age, number, percent, seconds, text


def _devices(row: Row) -> str:
    devices = row["devices"]
    return f"{sum(d['present'] and d['healthy'] for d in devices)}/{len(devices)}"


def _held_by(row: Row) -> str:
    if not (held := row.get("held_by")):
        return ABSENT
    return f"{held.get('job_name') or held['job_id']} replica {held['replica']} rank {held['rank']}"


def _ettr(row: Row) -> str:
    """With a word where it does not rest on full strength as it was seen."""
    shown, basis = percent("ettr")(row), row.get("ettr_basis", "observed")
    if shown == ABSENT:
        return "not counted" if basis == "not_counted" else ABSENT
    return f"{shown} estimated" if basis == "estimated" else shown


def _live(field: str, digits: int, unit: str) -> Column:
    show = number(field, digits, unit)
    return Column(title=field.split("_")[0].upper(), show=lambda row: show(row.get("live") or {}))


def _health(row: Row) -> str:
    if not row["present"]:
        return "lost"
    return "healthy" if row["healthy"] else "unhealthy"


def _connected(row: Row) -> str:
    if row.get("revoked"):
        return "revoked"
    return "yes" if row["connected"] else "no"


def _for_names(row: Row) -> str:
    """The name or the pattern of names that a join token is for."""
    return str(row["name"] or row["name_pattern"])


def _holds(row: Row) -> str:
    return "yes" if row["hold"] else "no"


def _not_heard(row: Row) -> str:
    """`node-3 21s: still commits`, for each node; of a node's own row without its name."""
    named = "owner" in row
    told = [
        f"{item['node_name'] + ' ' if named else ''}{age('since')(item)}: {_ranks_of(item)}"
        for item in row.get("not_heard") or ()
    ]
    return ", ".join(dict.fromkeys(told)) or ABSENT


def _ranks_of(item: Row) -> str:
    if item["left_out"]:
        return "left out for now"
    return "still commits" if item["commits"] else "no step since"


def verdict(certificate: Row) -> str:
    """A certificate's state; of an incomplete one how much of it was judged."""
    if certificate["state"] != "incomplete":
        return str(certificate["state"])
    return f"incomplete: {certificate['judged']} of {certificate['of']} judged"


def _certificate(row: Row) -> str:
    return verdict(row["certificate"]) if row.get("certificate") else ABSENT


def _subject(row: Row) -> str:
    """What a request is about: a node, or a job and what of it."""
    parts = [row["node_name"] or row["job_name"] or ABSENT]
    parts += [f"replica {row['replica']}"] if row["replica"] is not None else []
    parts += [f"rank {row['rank']}"] if row["rank"] is not None else []
    return " ".join(parts)


def _cost(row: Row) -> str:
    return ABSENT if row["cost_gpu_s"] is None else f"{row['cost_gpu_s']:.0f}"


def _ranks(row: Row) -> str:
    return ", ".join(f"{rank['node_name']}:{rank['device_index']}={rank['state']}" for rank in row["ranks"])


def _rank_name(row: Row) -> str:
    return f"{row['replica']}.{row['incarnation']}/{row['rank']}"


def _thresholds(row: Row) -> str:
    return f"{row['relative_threshold']:g} relative, {row['individual_threshold']:g} individual"


def _evidence(field: str) -> Callable[[Row], str]:
    value = text(field)
    return lambda row: value(row["evidence"])


def _of(spent: str, allowed: str) -> Callable[[Row], str]:
    return lambda row: f"{row[spent]}" if row[allowed] is None else f"{row[spent]} of {row[allowed]}"


JOBS = (
    Column(title="NAME", show=text("name")),
    Column(title="STATE", show=text("state"), state=True),
    Column(title="STEP", show=job_cells.steps),
    Column(title="DONE", show=job_cells.done),
    Column(title="LOSS", show=number("loss", 3)),
    Column(title="STEP-TIME", show=number("step_time_s", 2, "s")),
    Column(title="REPLICAS", show=job_cells.replicas),
    Column(title="RESTARTS", show=text("restarts")),
    Column(title="ETTR", show=_ettr),
    Column(title="PRODUCTIVITY", show=percent("productivity"), wide=True),
    Column(title="AGE", show=age("created_at")),
    Column(title="NOT-HEARD", show=_not_heard),
    Column(title="ID", show=text("id"), wide=True),
    Column(title="PROJECT", show=text("project"), wide=True),
    Column(title="OWNER", show=text("owner"), wide=True),
    Column(title="EPOCH", show=text("epoch"), wide=True),
    Column(title="EVICTIONS", show=text("evictions"), wide=True),
    Column(title="PREEMPTIONS", show=text("preemptions"), wide=True),
    Column(title="AT-RISK", show=seconds("work_at_risk_s"), wide=True),
    Column(title="CHECKPOINT-AGE", show=job_cells.checkpoint_age, wide=True),
    Column(title="CREATED", show=text("created_at"), wide=True),
    Column(title="REASON", show=text("state_reason"), wide=True),
)
_WALL = ("productive", "degraded", "stalled", "recovery", "lost", "checkpoint")


def _wall(row: Row) -> str:
    """Shares of the wall time, without those that are none."""
    wall = row.get("wall")
    if not wall or not wall["wall_s"]:
        return ABSENT
    shares = ((name, 100.0 * wall[f"{name}_s"] / wall["wall_s"]) for name in _WALL)
    return ", ".join(f"{name} {share:.1f}%" for name, share in shares if abs(share) >= 0.05)


JOB = (
    *JOBS,
    Column(title="WALL-TIME", show=_wall),
    Column(title="ETA", show=seconds("eta_s")),
    Column(title="WHY", show=text("why")),
)
NODES = (
    Column(title="NAME", show=text("name")),
    Column(title="STATE", show=text("state"), state=True),
    Column(title="CONNECTED", show=_connected),
    Column(title="HEALTHY-GPUS", show=_devices),
    Column(title="RANKS", show=text("ranks_running")),
    Column(title="SEEN", show=seconds("last_seen_age_s")),
    Column(title="NOT-HEARD", show=_not_heard),
    Column(title="ID", show=text("id"), wide=True),
    Column(title="AGENT", show=text("agent_version"), wide=True),
    Column(title="SEGMENT", show=text("segment"), wide=True),
    Column(title="SINCE", show=text("state_since"), wide=True),
    Column(title="REASON", show=text("state_reason"), wide=True),
)
DEAD_LETTERS = (
    Column(title="SEQ", show=text("seq")),
    Column(title="KIND", show=text("kind")),
    Column(title="STATE", show=text("state"), state=True),
    Column(title="TRIES", show=text("tries")),
    Column(title="AGE", show=age("first_seen_at")),
    Column(title="REASON", show=text("reason")),
    Column(title="ID", show=text("id"), wide=True),
    Column(title="JOURNAL", show=text("journal_id"), wide=True),
    Column(title="HAPPENED", show=text("happened_at"), wide=True),
    Column(title="BYTES", show=text("size_bytes"), wide=True),
)
GPUS = (
    Column(title="NODE", show=text("node_name")),
    Column(title="GPU", show=text("index")),
    Column(title="HEALTH", show=_health, state=True),
    Column(title="RISK", show=number("risk", 2)),
    _live("temperature_c", 0, "C"),
    _live("power_w", 0, "W"),
    Column(title="HELD-BY", show=_held_by),
    Column(title="MODEL", show=text("model"), wide=True),
    Column(title="UUID", show=text("uuid"), wide=True),
    Column(title="ID", show=text("id"), wide=True),
    Column(title="REASON", show=text("health_reason"), wide=True),
)
BREAKERS = (
    Column(title="ID", show=text("id")),
    Column(title="OF", show=lambda row: row["segment"] or "fleet"),
    Column(title="WHY", show=text("reason")),
    Column(title="HELD-JOBS", show=number("held_jobs", 0)),
    Column(title="AGE", show=age("opened_at")),
    Column(title="CLOSED-BY", show=text("closed_by")),
    Column(title="CLOSED", show=text("closed_at"), wide=True),
    Column(title="BECAUSE", show=text("close_reason"), wide=True),
)
INCIDENTS = (
    Column(title="ID", show=text("id")),
    Column(title="STATE", show=text("state"), state=True),
    Column(title="OUTCOME", show=text("outcome")),
    Column(title="JOB", show=text("job_name")),
    Column(title="TITLE", show=text("title")),
    Column(title="RECOVERY-S", show=number("recovery_s", 1)),
    Column(title="CERTIFICATE", show=_certificate, state=True),
    Column(title="AGE", show=age("opened_at")),
    Column(title="OPENED", show=text("opened_at"), wide=True),
    Column(title="RESOLVED", show=text("resolved_at"), wide=True),
    Column(title="HARDWARE", show=text("needs_hardware"), wide=True),
    Column(title="ACKNOWLEDGED", show=text("acknowledged_by"), wide=True),
    Column(title="PART-OF", show=text("part_of"), wide=True),
    Column(title="RESOLUTION", show=text("resolution"), wide=True),
)
DECISIONS = (
    Column(title="ID", show=text("id")),
    Column(title="AGE", show=age("at")),
    Column(title="RULE", show=text("rule")),
    Column(title="CHOICE", show=text("choice")),
    Column(title="WHAT", show=text("sentence")),
    Column(title="AT", show=text("at"), wide=True),
    Column(title="COST-GPU-S", show=_cost, wide=True),
    Column(title="EPOCH", show=text("epoch_after"), wide=True),
    Column(title="MODE", show=text("mode"), wide=True),
)


REQUESTS = (
    Column(title="ID", show=text("id")),
    Column(title="KIND", show=text("kind")),
    Column(title="OF", show=_subject),
    Column(title="STATE", show=text("state"), state=True),
    Column(title="WHO", show=text("who")),
    Column(title="AGE", show=age("asked_at")),
    Column(title="REASON", show=text("reason")),
    Column(title="ANSWER", show=text("answer"), wide=True),
    Column(title="UNTIL", show=text("valid_until"), wide=True),
    Column(title="ENDED", show=text("ended_at"), wide=True),
    Column(title="DECISION", show=text("decision_id"), wide=True),
)
EVENTS = (
    Column(title="SEQ", show=text("seq")),
    Column(title="AT", show=text("at")),
    Column(title="KIND", show=text("kind")),
    Column(title="WHAT", show=text("sentence")),
)
REPLICAS = (
    Column(title="REPLICA", show=text("index")),
    Column(title="LIFE", show=text("incarnation")),
    Column(title="STATE", show=text("state"), state=True),
    Column(title="STEP", show=text("committed_step")),
    Column(title="RANKS", show=_ranks),
)
CHECKPOINTS = (
    Column(title="STEP", show=text("step")),
    Column(title="STATE", show=text("state"), state=True),
    Column(title="KIND", show=text("kind")),
    Column(title="BYTES", show=text("bytes")),
    Column(title="COMMITTED", show=text("committed_at")),
)
SPEED = (
    Column(title="RANKS", show=text("ranks")),
    Column(title="SCORED", show=age("scored_at")),
    Column(title="STRAGGLER-BELOW", show=_thresholds),
    Column(title="ADVICE", show=text("advice")),
)
SCORES = (
    Column(title="RANK", show=_rank_name),
    Column(title="STAGE", show=text("pp")),
    Column(title="NODE", show=text("node_name")),
    Column(title="GPU", show=text("device_index")),
    Column(title="RELATIVE", show=number("relative", 2)),
    Column(title="INDIVIDUAL", show=number("individual", 2)),
    Column(title="LATE", show=number("late_s", 3, "s")),
    Column(title="STRAGGLER", show=text("straggler")),
    Column(title="CAUSE", show=text("cause")),
    Column(title="COMPUTE", show=number("compute_s", 4, "s"), wide=True),
    Column(title="DATA", show=number("data_s", 4, "s"), wide=True),
    Column(title="EXCHANGE", show=number("exchange_s", 4, "s"), wide=True),
    Column(title="OPTIMIZER", show=number("optimizer_s", 4, "s"), wide=True),
)
SLOW_RANKS = (
    Column(title="RANK", show=text("rank")),
    Column(title="REPLICA", show=text("replica")),
    Column(title="STAGE", show=text("stage")),
    Column(title="RELATIVE", show=number("relative", 2)),
    Column(title="LATE", show=number("late_s", 3, "s")),
    Column(title="WINDOWS", show=text("windows")),
    Column(title="CAUSE", show=text("cause")),
)
STAGES = (
    Column(title="STAGE", show=text("stage")),
    Column(title="WORK", show=number("work_s", 4, "s")),
    Column(title="RATIO", show=number("ratio", 2)),
)
BUDGET = (
    Column(title="RESTARTS", show=_of("restarts_total", "max_restarts")),
    Column(title="IN-WINDOW", show=_of("restarts_in_window", "restarts_per_window")),
    Column(title="WINDOW", show=seconds("window_s")),
    Column(title="WITHOUT-PROGRESS", show=_of("no_progress_cycles", "max_no_progress")),
    Column(title="WHOLE-JOB", show=_of("attempt_restarts", "max_attempt_restarts")),
    Column(title="THIS-ATTEMPT", show=_of("restarts_in_attempt", "restarts_per_attempt")),
    Column(title="PROGRAM", show=_of("program_in_window", "program_restarts_per_window")),
    Column(title="RUNGS", show=lambda row: ", ".join(f"{rung} {count}" for rung, count in row["rungs"].items())),
)
RESTARTS = (
    Column(title="AGE", show=age("at")),
    Column(title="RUNG", show=text("rung")),
    Column(title="CHARGED", show=lambda row: "yes" if row["charged"] else "no"),
    Column(title="PROGRAM", show=lambda row: "ended by itself" if row["program"] else ""),
    Column(title="REPLICA", show=text("replica")),
    Column(title="CAUSE", show=text("reason_code")),
    Column(title="WHAT", show=text("sentence")),
    Column(title="ATTEMPT", show=text("attempt"), wide=True),
    Column(title="DECISION", show=text("decision_id"), wide=True),
)
TIMEOUTS = (
    Column(title="SECTION", show=text("section")),
    Column(title="LIMIT", show=seconds("value_s")),
    Column(title="SOURCE", show=text("source")),
    Column(title="SAMPLES", show=text("samples")),
    Column(title="LONGEST", show=seconds("longest_s")),
    Column(title="WHY", show=text("why")),
)
NUMERICS = (
    Column(title="MODE", show=text("mode")),
    Column(title="COMPUTED-TWICE", show=text("steps")),
    Column(title="IDENTICAL", show=text("identical_steps")),
)
REFUSED = (
    Column(title="AGE", show=age("seen_at")),
    Column(title="RANK", show=_rank_name),
    Column(title="NODE", show=text("node_name")),
    Column(title="GPU", show=text("device_index")),
    Column(title="STEP", show=_evidence("step")),
    Column(title="CHECK", show=_evidence("check")),
    Column(title="DIAGNOSIS", show=_evidence("diagnosis")),
    Column(title="FIRST", show=_evidence("first_result"), wide=True),
    Column(title="SECOND", show=_evidence("second_result"), wide=True),
    Column(title="ID", show=text("id"), wide=True),
)
DETERMINISM = (
    Column(title="RANK", show=_rank_name),
    Column(title="STEPS", show=text("steps")),
    Column(title="IDENTICAL", show=text("identical_steps")),
    Column(title="LARGEST-DIFFERENCE", show=lambda row: f"{row['largest_difference']:.3g}"),
    Column(title="ATTEMPT", show=text("attempt"), wide=True),
)
TOKENS = (
    Column(title="ID", show=text("id")),
    Column(title="NAME", show=text("name")),
    Column(title="SCOPE", show=text("scope")),
    Column(title="PROJECT", show=text("project"), wide=True),
    Column(title="OWNER", show=text("owner")),
    Column(title="EXPIRES", show=text("expires_at")),
    Column(title="LAST-USED", show=text("last_used_at")),
    Column(title="REVOKED", show=text("revoked_at")),
)
JOIN_TOKENS = (
    Column(title="ID", show=text("id")),
    Column(title="NAME", show=_for_names),
    Column(title="POOL", show=text("pool")),
    Column(title="NETWORKS", show=text("cidr")),
    Column(title="HOLDS", show=_holds),
    Column(title="USES-LEFT", show=text("uses_left")),
    Column(title="EXPIRES", show=text("expires_at")),
    Column(title="REVOKED", show=text("revoked_at")),
    Column(title="BY", show=text("created_by"), wide=True),
)


def _fault_value(value: Row | None) -> str:
    """`Seconds [20]`: what --value means, and what is taken without one."""
    if value is None:
        return ABSENT
    return f"{value['label']} [{value['default']}]" + (f": {', '.join(value['choices'])}" if value["choices"] else "")


FAULTS = (
    Column(title="FAULT", show=lambda row: str(row["kind"]).replace("_", "-")),
    Column(title="NEEDS", show=lambda row: ",".join(row["needs"]) or ABSENT),
    Column(title="VALUE", show=lambda row: _fault_value(row["value"])),
    Column(title="WHAT", show=text("description")),
)
