"""Seams to the outside: clock, ids, hot store, bus, events published on commit, locks."""
