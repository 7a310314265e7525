"""Signals, incidents, views and decisions: load -> decide -> apply."""
