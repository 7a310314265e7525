"""`python -m agents`."""

from agents.main import main

if __name__ == "__main__":
    raise SystemExit(main())
