"""One file a noun. Each command: call, emit, say what to do next."""
