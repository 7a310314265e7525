"""Packed history: written by the sentinel, forgotten by retention."""

from controlplane.runtime.clock import ago, from_s
from controlplane.telemetry.codec import CODEC, Chunk, pack
from controlplane.telemetry.models import TelemetryChunk


def store_chunk(node_id: str, chunk: Chunk) -> None:
    """Keep a finished chunk; the same one twice (a leader that took over) is kept once."""
    TelemetryChunk.objects.get_or_create(
        node_id=node_id,
        t0=from_s(float(chunk.t_s[0])),
        defaults={
            "t1": from_s(float(chunk.t_s[-1])),
            "codec": CODEC,
            "samples": len(chunk.t_s),
            "payload": pack(chunk),
        },
    )


def forget_chunks(older_than_s: float) -> int:
    """Delete history; returns how many chunks."""
    return TelemetryChunk.objects.filter(t1__lt=ago(older_than_s)).delete()[0]
