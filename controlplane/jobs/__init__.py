"""Jobs, attempts, replicas, ranks, steps and the event log."""
