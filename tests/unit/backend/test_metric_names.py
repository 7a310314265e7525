"""Names and labels of the server's figures are a contract: what is told here is scraped by others."""

import pytest
from prometheus_client import REGISTRY
from prometheus_client.metrics import MetricWrapperBase

from controlplane.runtime import metrics

NAMES = {
    "holdfast_build_info": ("gauge", ("version",)),
    "holdfast_jobs": ("gauge", ("state",)),
    "holdfast_nodes": ("gauge", ("state",)),
    "holdfast_gpus": ("gauge", ("health",)),
    "holdfast_agent_connections": ("gauge", ()),
    "holdfast_telemetry_frames_total": ("counter", ("result",)),
    "holdfast_telemetry_lag_seconds": ("histogram", ()),
    "holdfast_decisions_total": ("counter", ("action", "trigger", "mode", "result")),
    "holdfast_decision_latency_seconds": ("histogram", ()),
    "holdfast_commands_total": ("counter", ("kind", "result")),
    "holdfast_command_ack_seconds": ("histogram", ()),
    "holdfast_recovery_seconds": ("histogram", ("phase",)),
    "holdfast_lost_work_seconds_total": ("counter", ("cause",)),
    "holdfast_job_effective_time_ratio": ("gauge", ("job_id",)),
    "holdfast_checkpoint_age_seconds": ("gauge", ("job_id",)),
    "holdfast_checkpoint_age_limit_seconds": ("gauge", ()),
    "holdfast_job_work_at_risk_seconds": ("gauge", ("job_id",)),
    "holdfast_gpu_time_seconds": ("gauge", ("class",)),
    "holdfast_failure_mean_seconds": ("gauge", ("mean",)),
    "holdfast_gpu_queued_seconds": ("gauge", ()),
    "holdfast_outbox_pending": ("gauge", ()),
    "holdfast_outbox_oldest_seconds": ("gauge", ()),
    "holdfast_loop_lag_seconds": ("gauge", ("loop",)),
    "holdfast_channel_dropped_total": ("counter", ()),
    "holdfast_leader": ("gauge", ()),
    "holdfast_sentinel_shards": ("gauge", ()),
    "holdfast_sentinel_leads": ("gauge", ("shard",)),
    "holdfast_sentinel_term": ("gauge", ("shard",)),
    "holdfast_sentinel_leads_taken_total": ("counter", ("how",)),
    "holdfast_sentinel_fenced_total": ("counter", ()),
    "holdfast_breaker_open": ("gauge", ("scope",)),
}
BASE_UNITS = ("_total", "_seconds", "_bytes", "_ratio", "_info")
COUNTED_THINGS = {
    "holdfast_jobs", "holdfast_nodes", "holdfast_gpus", "holdfast_agent_connections", "holdfast_dead_letters_waiting",
    "holdfast_outbox_pending", "holdfast_leader", "holdfast_breaker_open", "holdfast_incidents_open",
    "holdfast_sentinel_shards", "holdfast_sentinel_leads", "holdfast_sentinel_term",
}  # fmt: skip
OF_A_JOB = {
    "holdfast_job_effective_time_ratio", "holdfast_job_productivity_ratio", "holdfast_checkpoint_age_seconds",
    "holdfast_job_work_at_risk_seconds",
}  # fmt: skip
WIDE = {"rank", "attempt", "replica", "incarnation", "node", "node_id", "device", "incident", "job"}


def described(thing: MetricWrapperBase) -> tuple[str, str, tuple[str, ...]]:
    """(full name, type, labels) of one figure."""
    kind, name = thing._type, thing._name
    return (f"{name}_total" if kind == "counter" else name), kind, tuple(thing._labelnames)


OURS = [described(thing) for thing in vars(metrics).values() if isinstance(thing, MetricWrapperBase)]


@pytest.mark.parametrize("name", NAMES)
def test_a_promised_figure_has_its_name_type_and_labels(name: str) -> None:
    found = {told: (kind, labels) for told, kind, labels in OURS}
    assert found[name] == NAMES[name]
    exported = {metric.name for registry in (REGISTRY, metrics.FLEET) for metric in registry.collect()}
    assert name.removesuffix("_total") in exported


def test_every_figure_ends_in_its_base_unit_or_counts_things() -> None:
    bare = {name for name, _, _ in OURS if not name.endswith(BASE_UNITS)}
    assert bare == COUNTED_THINGS
    assert all(name.endswith("_total") == (kind == "counter") for name, kind, _ in OURS)


def test_no_figure_of_the_server_has_a_label_that_grows_with_ranks_or_nodes() -> None:
    assert {name for name, _, labels in OURS if WIDE & set(labels)} == set()
    assert {name for name, _, labels in OURS if "job_id" in labels} == OF_A_JOB
