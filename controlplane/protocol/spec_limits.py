"""Ranges and shapes of single fields of a job spec, as tables by JSON Pointer.

Both borders are allowed values. What spans fields is in `spec_checks`.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

MAX_ENTRIES = 128  # env, labels, annotations; the number Kubeflow's TrainJob allows for env
MAX_TEXT = 4096
MAX_ARGUMENTS = 256
MAX_FAULTS = 200

INT_LIMIT = 1 << 53  # beyond it JSON readers disagree on the value
FLOAT_LIMIT = 1e9

_YEAR_S = 365 * 86400.0

RANGES: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "/spec/resources/nodes": (1, 100_000),
        "/spec/resources/gpus_per_node": (1, 72),
        "/spec/resources/min_replicas": (1, 100_000),
        "/spec/resources/spares/gpus": (0, 100_000),
        "/spec/parallelism/tp": (1, 64),
        "/spec/parallelism/pp": (1, 256),
        "/spec/parallelism/cp": (1, 64),
        "/spec/parallelism/ep": (1, 256),
        "/spec/parallelism/vp": (1, 64),
        "/spec/parallelism/replica_dp": (1, 4096),
        "/spec/parallelism/dp": (1, 100_000),
        "/spec/model/layers": (1, 1024),
        "/spec/model/hidden": (1, 1 << 17),
        "/spec/model/heads": (1, 1024),
        "/spec/model/kv_heads": (1, 1024),
        "/spec/model/ffn_hidden": (1, 1 << 19),
        "/spec/model/experts": (1, 4096),
        "/spec/model/experts_per_token": (1, 64),
        "/spec/model/sequence_length": (1, 1 << 22),
        "/spec/model/vocab_size": (2, 1 << 22),
        "/spec/training/steps": (1, 10**9),
        "/spec/training/global_batch": (1, 1 << 24),
        "/spec/training/micro_batch": (1, 1 << 20),
        "/spec/training/learning_rate": (1e-12, 10.0),
        "/spec/training/min_learning_rate": (0.0, 10.0),
        "/spec/training/warmup_steps": (0, 10**9),
        "/spec/training/weight_decay": (0.0, 10.0),
        "/spec/training/clip_grad": (0.0, 1e6),
        "/spec/training/seed": (0, (1 << 31) - 1),
        "/spec/training/hash_every_steps": (0, 10**9),
        "/spec/training/step_delay_s": (0.0, 60.0),
        "/spec/training/numerics/spike_factor": (1.0, 1e6),
        "/spec/checkpoint/interval_steps": (1, 10**9),
        "/spec/checkpoint/keep": (1, 1000),
        "/spec/checkpoint/emergency/min_gap_ratio": (0.0, 1.0),
        "/spec/checkpoint/emergency/cooldown_s": (0.0, 86400.0),
        "/spec/checkpoint/emergency/deadline_s": (1.0, 86400.0),
        "/spec/checkpoint/local/interval_steps": (1, 10**9),
        "/spec/checkpoint/local/copies": (0, 16),
        "/spec/checkpoint/local/keep": (1, 1000),
        "/spec/resiliency/risk/threshold": (0.01, 1.0),
        "/spec/resiliency/risk/hysteresis_s": (0.0, 3600.0),
        "/spec/resiliency/risk/window_samples": (2, 3600),
        "/spec/resiliency/timeouts/first_heartbeat_s": (1.0, 86400.0),
        "/spec/resiliency/timeouts/heartbeat_s": (1.0, 86400.0),
        "/spec/resiliency/timeouts/setup_s": (1.0, 86400.0),
        "/spec/resiliency/timeouts/step_s": (0.1, 86400.0),
        "/spec/resiliency/timeouts/step_floor_s": (0.1, 86400.0),
        "/spec/resiliency/timeouts/checkpoint_s": (1.0, 86400.0),
        "/spec/resiliency/timeouts/out_of_section_s": (1.0, 86400.0),
        "/spec/resiliency/timeouts/silence_s": (0.5, 3600.0),
        "/spec/resiliency/timeouts/lease_s": (2.0, 86400.0),
        "/spec/resiliency/budget/max_restarts": (0, 10_000),
        "/spec/resiliency/budget/restarts_per_window": (0, 10_000),
        "/spec/resiliency/budget/window_s": (1.0, _YEAR_S),
        "/spec/resiliency/budget/max_no_progress": (1, 1000),
        "/spec/resiliency/budget/max_attempt_restarts": (0, 10_000),
        "/spec/resiliency/budget/restarts_per_attempt": (0, 10_000),
        "/spec/resiliency/budget/program_restarts_per_window": (0, 10_000),
        "/spec/resiliency/stragglers/interval_s": (0.1, 86400.0),
        "/spec/resiliency/stragglers/relative_threshold": (0.0, 1.0),
        "/spec/resiliency/stragglers/individual_threshold": (0.0, 1.0),
        "/spec/resiliency/faults/delay_s": (0.0, 86400.0),
        "/spec/resiliency/faults/rank": (-1, 1 << 20),
        "/spec/resiliency/faults/times": (1, 10_000),
        "/spec/scheduling/priority": (0, 1000),
        "/spec/resiliency/act_after_s": (0.0, 86400.0),
        "/spec/scheduling/preempt_grace_s": (0.0, 86400.0),
        "/spec/scheduling/time_limit_s": (0.0, 31_536_000.0),
    }
)

NAME = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
_NAME_FIX = "use 1 to 63 of a-z, 0-9 and '-', starting with a letter and not ending with '-' (RFC 1035 label)"
_ENV_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")

# pointer -> (pattern, what is wrong, how to mend it)
PATTERNS: Mapping[str, tuple[re.Pattern[str], str]] = MappingProxyType(
    {
        "/metadata/name": (NAME, _NAME_FIX),
        "/metadata/project": (NAME, _NAME_FIX),
    }
)
KEY_PATTERNS: Mapping[str, tuple[re.Pattern[str], str]] = MappingProxyType(
    {
        "/spec/resiliency/log_markers": (NAME, _NAME_FIX),
        "/spec/env": (_ENV_KEY, "use letters, digits and '_', not starting with a digit"),
    }
)

# Variables the agent sets itself, or with which a job could speak as the platform.
RESERVED_ENV_PREFIX = "HOLDFAST_"
# Begins a value of `env` as it rests in the database; see `runtime.at_rest`.
SEALED_MARK = "holdfast:sealed:"
