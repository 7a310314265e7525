"""Slurm as an engine: `answers` and `health` are pure, `tools` runs its programs, `driver` puts them together.

The guest, the pilots and the observer of `controlplane.slurm`, which run on nodes, use the first three too.
"""
