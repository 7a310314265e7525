"""Data that ships with the policy; see NOTICE for origin and licence."""
