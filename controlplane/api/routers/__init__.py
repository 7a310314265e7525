"""One file a resource; each only parses, calls a service or selector, and presents."""
