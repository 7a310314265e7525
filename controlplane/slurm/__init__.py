"""Holdfast inside a Slurm allocation (ADR 0052): Slurm owns the nodes, Holdfast the ranks on them.

`plan`, `script` and `answers` are pure; `tools` runs Slurm's programs. `guest` is what the batch script becomes on the
first node, `node` what `srun` starts on each.
"""
