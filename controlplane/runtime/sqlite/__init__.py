"""Django's SQLite backend with one change; see `base`."""
