"""`holdfast`: the command line. A client of the REST API; it imports no Django.

stdout is data and nothing else; what happens meanwhile, and what to do next, goes to
stderr. Exit codes are in `exits`, the order of configuration in `config`.
"""
