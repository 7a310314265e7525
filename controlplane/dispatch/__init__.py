"""The outbox: commands to agents, their delivery, answers and expiry."""
