"""Both sides of a decision as a pure core: what it is made on (`assembly`), and what it does, told as typed changes.

`acts` answers an action with changes (`kinds`), reading rows through `rows.Rows`. It writes nothing:
`recovery.commit` carries changes out in the database, `simulator.store` in memory.
"""
