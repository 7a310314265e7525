"""The API as victim: the fixtures of the API's own tests."""

from tests.integration.api.conftest import _forget_rates, caller, user

__all__ = ["_forget_rates", "caller", "user"]
