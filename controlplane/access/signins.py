"""Signing in and out as the audit log tells it. Called by the API's session routes; decides nothing."""

import hashlib
import hmac

from django.conf import settings
from django.contrib.auth import get_user_model

from controlplane.access.audit import audit
from controlplane.access.refusals import refusals


def signed_in(username: str, backend: str) -> None:
    """`backend`: dotted path of what let him in."""
    audit(f"user:{username}", f"login.{method_of(backend)}", username)


def method_of(backend: str) -> str:
    """`password` or `one_time_password`."""
    return "one_time_password" if backend.endswith("OneTimePasswordBackend") else "password"


def signed_out(actor: str, username: str) -> None:
    """The session ended at their request."""
    audit(actor, "logout", username)


def sign_in_failed(username: str) -> None:
    """Wrong name, wrong password, or a one-time password that was used."""
    name = known_name(username)
    refusals.note(f"user:{name}", "login.failed", name, reason="wrong name or password, or a used one-time password")


def sign_in_held_back(username: str, wait_s: int) -> None:
    """Too many attempts: not even looked at."""
    name = known_name(username)
    refusals.note(f"user:{name}", "login.throttled", name, reason=f"too many attempts; again in {wait_s} s")


def known_name(username: str) -> str:
    """The name of an account; of any other text a short keyed digest, since people type passwords
    into the wrong field."""
    if get_user_model().objects.filter(username=username).exists():
        return username
    text = username.encode("utf-8", "surrogatepass")
    digest = hmac.new(settings.SECRET_KEY.encode(), b"unknown account\n" + text, hashlib.sha256).hexdigest()
    return f"(no account {digest[:12]})"
