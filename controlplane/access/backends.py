"""Logging in with a one-time password."""

from typing import Any

from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import AbstractBaseUser
from django.http import HttpRequest

from controlplane.access import services


class OneTimePasswordBackend(ModelBackend):
    """Tried after the ordinary password; a used one never works again."""

    def authenticate(
        self, request: HttpRequest | None, username: str | None = None, password: str | None = None, **_: Any
    ) -> AbstractBaseUser | None:
        """The user, or None."""
        if not username or not password or not password.startswith("otp_"):
            return None
        return services.spend_one_time_password(username, password)
