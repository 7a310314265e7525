"""The brain: `decide(snapshot, config) -> plan`, pure and deterministic.

The same code runs live (recovery) and in the simulator.
It never reads a clock, a database or a random number: time is inside the snapshot.
"""
