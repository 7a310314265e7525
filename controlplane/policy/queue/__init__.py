"""Which pending job may start next, and why each of the others waits (ADR 0041).

`schedule(queue, fleet, config, now_s)` is a pure function of numbers: who waits for what, how many devices each node
lends, and when running jobs are expected to end. It chooses no device: a job that may start is placed by `decide`.
"""
