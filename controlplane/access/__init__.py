"""Who may do what: users, API tokens, join tokens, one-time passwords, audit."""
