"""Checkpoints as the API and the events' patches show them."""

from typing import Any

from controlplane.checkpoints.models import Checkpoint
from controlplane.runtime.clock import iso


def checkpoint_summary(row: Checkpoint) -> dict[str, Any]:
    """One checkpoint with its place on the trust ladder."""
    return {
        "id": row.id,
        "job_id": row.job_id,
        "attempt": row.attempt,
        "step": row.step,
        "epoch": row.epoch,
        "path": row.path,
        "kind": row.kind,
        "state": row.state,
        "state_reason": row.state_reason,
        "bytes": row.bytes,
        "blocking_s": row.blocking_s,
        "total_s": row.total_s,
        "started_at": iso(row.started_at),
        "committed_at": iso(row.committed_at),
    }
