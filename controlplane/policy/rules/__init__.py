"""The rules, one file each: `rule(snapshot, config) -> tuple[Decision, ...]`.

A rule looks at the whole world, says what it would do and why, and never at what the
other rules said; `policy.decide` orders them and drops what would collide.
"""
