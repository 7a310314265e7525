"""Every shipped alert fires on what its runbook says and is silent otherwise: judged by Prometheus'
own `promtool test rules`, on the shipped files, with the shipped patience."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

PROMETHEUS = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"
ALERTS = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text(encoding="ascii"))["groups"][0]["rules"]
TIMEOUT_S = 60.0
INTERVAL_S = 15
LATE_MIN = 45
pytestmark = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian's package prometheus)"
)


@dataclass(frozen=True)
class Case:
    """Series, in promtool's notation, under which an alert fires, and under which it does not."""

    bad: dict[str, str]
    good: dict[str, str]


def flat(value: float) -> str:
    """The same at every scrape of an hour."""
    return f"{value}x240"


def rising(step: float) -> str:
    return f"0+{step}x240"


def bucket(metric: str, le: str) -> str:
    return f'{metric}_bucket{{le="{le}"}}'


LATENCY = "holdfast_decision_latency_seconds"
CONNECTIONS, NODES = "holdfast_agent_connections", 'holdfast_nodes{state="ready"}'
CHECKPOINT_LIMIT = "holdfast_checkpoint_age_limit_seconds"
CASES = {
    "HoldfastProcessDown": Case(
        {'up{job="holdfast-worker",instance="w:9472"}': flat(0)},
        {'up{job="holdfast-worker",instance="w:9472"}': flat(1), 'up{job="holdfast-agent",instance="a:9474"}': flat(0)},
    ),
    "HoldfastNoLeader": Case(
        {
            'holdfast_sentinel_shards{instance="a"}': flat(2),
            'holdfast_sentinel_leads{instance="a",shard="0"}': flat(1),
            'holdfast_sentinel_leads{instance="a",shard="1"}': flat(0),
            'holdfast_sentinel_leads{instance="b",shard="0"}': flat(1),
        },
        {
            'holdfast_sentinel_shards{instance="a"}': flat(2),
            'holdfast_sentinel_leads{instance="a",shard="0"}': flat(1),
            'holdfast_sentinel_leads{instance="b",shard="1"}': flat(1),
        },
    ),
    "HoldfastNoAgents": Case({CONNECTIONS: flat(0), NODES: flat(4)}, {CONNECTIONS: flat(0), NODES: flat(0)}),
    "HoldfastAgentCutOff": Case({"holdfast_agent_connected": flat(0)}, {"holdfast_agent_connected": flat(1)}),
    "HoldfastAgentDown": Case(
        {'up{job="holdfast-agent",instance="a:9474"}': flat(0)},
        {'up{job="holdfast-agent",instance="a:9474"}': "1x60 0x8 1x172", 'up{job="holdfast-web"}': flat(0)},
    ),
    "HoldfastAutomationStopped": Case(
        {'holdfast_breaker_open{scope="open"}': flat(1), 'holdfast_breaker_open{scope="suspect_devices"}': flat(0)},
        {'holdfast_breaker_open{scope="suspect_devices"}': flat(0)},
    ),
    "HoldfastIncidentOpen": Case({"holdfast_incidents_open": flat(1)}, {"holdfast_incidents_open": "1x20 0x220"}),
    "HoldfastOutboxStuck": Case(
        {"holdfast_outbox_oldest_seconds": rising(15)}, {"holdfast_outbox_oldest_seconds": flat(20)}
    ),
    "HoldfastDeadLetters": Case(
        {"holdfast_dead_letters_waiting": flat(2)}, {"holdfast_dead_letters_waiting": flat(0)}
    ),
    "HoldfastDecisionsSlow": Case(
        {bucket(LATENCY, "2.5"): flat(0), bucket(LATENCY, "5.0"): rising(1), bucket(LATENCY, "+Inf"): rising(1)},
        {bucket(LATENCY, "2.5"): flat(7), bucket(LATENCY, "5.0"): flat(7), bucket(LATENCY, "+Inf"): flat(7)},
    ),
    "HoldfastLoopLag": Case(
        {'holdfast_loop_lag_seconds{loop="web"}': flat(3)}, {'holdfast_loop_lag_seconds{loop="web"}': flat(0.1)}
    ),
    "HoldfastFiguresOld": Case(
        {'holdfast_fleet_refreshed_age_seconds{instance="a"}': rising(INTERVAL_S)},
        {
            'holdfast_fleet_refreshed_age_seconds{instance="a"}': rising(INTERVAL_S),
            'holdfast_fleet_refreshed_age_seconds{instance="b"}': flat(4),
            # Of a clock that is a day behind Prometheus' own.
            "holdfast_fleet_refreshed_timestamp_seconds": flat(0),
        },
    ),
    "HoldfastDevicesLost": Case(
        {'holdfast_gpus{health="lost"}': flat(1)},
        {'holdfast_gpus{health="lost"}': flat(0), 'holdfast_gpus{health="total"}': flat(8)},
    ),
    "HoldfastCheckpointOld": Case(
        {'holdfast_checkpoint_age_seconds{job_id="j"}': flat(4000), CHECKPOINT_LIMIT: flat(3600)},
        {'holdfast_checkpoint_age_seconds{job_id="j"}': flat(300), CHECKPOINT_LIMIT: flat(3600)},
    ),
    "HoldfastEffectiveTimeLow": Case(
        {'holdfast_job_effective_time_ratio{job_id="j"}': flat(0.5)},
        {'holdfast_job_effective_time_ratio{job_id="j"}': flat(0.97)},
    ),
}  # fmt: skip


def judge(folder: Path, name: str, series: dict[str, str], *, fires: bool) -> str:
    """What promtool says; "" when it agrees."""
    test = {
        "rule_files": [str(PROMETHEUS / "rules.yml"), str(PROMETHEUS / "alerts.yml")],
        "evaluation_interval": f"{INTERVAL_S}s",
        "tests": [
            {
                "interval": f"{INTERVAL_S}s",
                "input_series": [{"series": key, "values": values} for key, values in series.items()],
                "promql_expr_test": [
                    {
                        "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}})',
                        "eval_time": f"{LATE_MIN}m",
                        "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
                    }
                ],
            }
        ],
    }
    path = folder / "test.yml"
    path.write_text(yaml.safe_dump(test), encoding="ascii")
    done = subprocess.run(
        ["promtool", "test", "rules", str(path)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("alert", [alert["alert"] for alert in ALERTS])
def test_an_alert_fires_on_its_fault_and_not_without(tmp_path: Path, alert: str) -> None:
    case = CASES[alert]
    assert judge(tmp_path, alert, case.bad, fires=True) == ""
    assert judge(tmp_path, alert, case.good, fires=False) == ""


def test_without_any_sentinel_nothing_is_led_whatever_the_other_processes_export(tmp_path: Path) -> None:
    """Each process knows the name of the figure, and those that are no sentinel export 0 of it."""
    others = {'holdfast_sentinel_shards{job="holdfast-web"}': flat(0), 'holdfast_leader{job="holdfast-web"}': flat(0)}
    assert judge(tmp_path, "HoldfastNoLeader", others, fires=True) == ""
    assert judge(tmp_path, "HoldfastNoLeader", others | CASES["HoldfastNoLeader"].good, fires=False) == ""
