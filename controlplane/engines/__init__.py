"""What gives Holdfast its nodes, seen from the server (ADR 0063): facts of an engine as rows, intents to it as rows.

`resident`: nodes have agents of their own, and nobody is asked; `slurm`: Slurm gives the nodes out.
"""
