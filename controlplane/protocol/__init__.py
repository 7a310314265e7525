"""What travels: messages, commands, job spec, UI events, ids and the codec.

Pure: no Django, sockets, clock or randomness. Imported by every other package,
imports none of them. Durations are seconds measured by the sender's monotonic
clock; a server timestamp is Unix seconds and is only ever compared with another
timestamp of the same server.
"""
