"""The snapshot that the policy decides on, put together from rows: once, for the database and for memory alike.

`rows` says what a loader hands over: what it has read, with nothing concluded from it. Everything that is
concluded (who waits, what is held, what counts as an act or a suspicion, what was learned) is concluded here. Pure.
"""
