"""A real agent as victim: the fixtures of the agent's own tests."""

from tests.integration.agents.conftest import agent, server

__all__ = ["agent", "server"]
