"""The REST edge: parse -> service -> present, one router file a resource.

Routers hold no rules and no queries of their own; they call services (write) and
selectors (read), and answer what the apps' present modules make of rows. Everything
that goes wrong is answered as application/problem+json.
"""
