"""The whole backend as victim: the fixtures of the backend's own tests."""

from tests.integration.backend.conftest import stack, world

__all__ = ["stack", "world"]
