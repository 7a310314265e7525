"""A small world in which the real policy runs against faults, on a virtual clock.

Theory of operation. `Kernel` owns time, chance and the tape. `Network` carries the real
protocol messages between `Server` and one `Agent` a node, late, twice or not at all.
`Trainer` is the two-phase step protocol at the granularity of micro-batches. `Server`
keeps rows, builds snapshots, calls `policy.decide` and carries the plan out. `Faults`
break things; `Checkers` watch every commit, start and decision. The same seed gives the
same tape, byte for byte. `Rollout` carries every way out of one failure out, each in a copy of a world.

Pure: the only randomness is the kernel's seeded generator.
"""
