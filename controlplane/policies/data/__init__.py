"""Facts of others that are shown beside the policy's own."""
