"""Real agent processes, as the integration tests have them."""

from tests.integration.agents.conftest import agent, server

__all__ = ["agent", "server"]
