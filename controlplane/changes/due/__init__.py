"""Deadlines that stand in rows: what follows when a time is over and nobody has said anything.

Each is a core as every other (`changes.rows`): it asks only for the rows that are due, and a caller that sweeps
commits what it gives. Two sweeps at once find that the first was there.
"""
