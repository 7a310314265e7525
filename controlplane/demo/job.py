"""The demo's job: three replicas of a small GPT, two pipeline stages each."""

from typing import Any


def demo_job(
    *,
    name: str = "first-light",
    nodes: int = 3,
    tp: int = 1,
    pp: int = 2,
    steps: int = 20000,
    global_batch: int = 12,
    interval_steps: int = 50,
    spare_gpus: int = 2,
    delay_s: float = 0.02,
) -> dict[str, Any]:
    """A job spec as a user would write it. `nodes` of two devices each, one replica on
    `tp * pp` devices; `delay_s` slows each micro-batch down, so that a machine of two cores has time left for
    the control plane that it is all about."""
    return {
        "apiVersion": "holdfast/v1",
        "kind": "TrainJob",
        "metadata": {"name": name, "labels": {"made-by": "demo"}},
        "spec": {
            "resources": {
                "nodes": nodes,
                "gpus_per_node": 2,
                "min_replicas": 1,
                "spares": {"gpus": spare_gpus, "warm": True},
            },
            "parallelism": {"tp": tp, "pp": pp},
            "model": {"layers": 4, "hidden": 64, "heads": 4, "sequence_length": 64, "vocab_size": 256},
            "training": {
                "steps": steps,
                "global_batch": global_batch,
                "micro_batch": 1,
                "learning_rate": 0.002,
                "min_learning_rate": 0.0002,
                "step_delay_s": delay_s,
            },
            "checkpoint": {
                "interval_steps": interval_steps,
                "keep": 3,
                "async": True,
                "emergency": {"min_gap_ratio": 0.25, "cooldown_s": 60.0, "deadline_s": 60.0},
            },
            "resiliency": {
                "mode": "enforce",
                "risk": {"threshold": 0.24, "hysteresis_s": 3.0, "window_samples": 60},
                "timeouts": {"step_floor_s": 5.0, "silence_s": 2.0},
                # Whoever plays with the demo breaks more in an hour than a fleet in a month.
                "budget": {"max_restarts": 10000, "restarts_per_window": 1000},
                "allow_faults": True,
            },
        },
    }
