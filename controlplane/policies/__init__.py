"""Policy documents in the database: versions, the one in force, and each policy that decided something."""
