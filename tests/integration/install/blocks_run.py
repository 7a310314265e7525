"""Blocks of the pages that `test_blocks` runs: each by its page and its first line."""

BENCHMARKS = "docs/benchmarks.md: python -m benchmarks            # list them"
CLIENT = "docs/sdk.md: python -m pip install '.[cli]'"
DRILL = (
    "docs/monitoring.md: python scripts/prometheus_drill.py drill"
    " --target holdfast-web=127.0.0.1:8000 --target holdfast-sentinel=127.0.0.1:9471"
)
RUN_HERE = (BENCHMARKS, CLIENT, DRILL)
