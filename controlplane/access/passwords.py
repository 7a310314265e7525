"""A person's own password: what one may be, and changing it.

Called by the API once whoever asks has shown the present password or a one-time one. Never looks
at a credential itself (`access.backends` does) and never tells or logs a password.
"""

from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction

from controlplane.access.audit import audit
from controlplane.access.models import OneTimePassword
from controlplane.runtime.clock import now

ONE_TIME_PREFIX = "otp_"


def faults(password: str, *, old: str) -> list[tuple[str, str]]:
    """(what is wrong, what to do) for each reason not to take `password`; empty: it is taken."""
    found: list[tuple[str, str]] = []
    try:
        validate_password(password)
    except ValidationError as error:
        found += [(message, "choose another one") for message in error.messages]
    if password.startswith(ONE_TIME_PREFIX):
        found.append((f"it begins with {ONE_TIME_PREFIX!r}, as those that work once do", "choose another one"))
    if password == old:
        found.append(("it is the password so far", "choose another one"))
    return found


@transaction.atomic
def change(user: User, password: str, *, method: str) -> None:
    """From now on `password`. Sessions of the account end, as each holds a hash of the password it
    began with, and so do its one-time passwords; API tokens stay. `method`: how he showed who he is."""
    had = bool(user.password) and user.has_usable_password()
    user.set_password(password)
    user.save(update_fields=["password"])
    name = user.get_username()
    ended = OneTimePassword.objects.filter(user=user, used_at=None).update(used_at=now())
    data = {"method": method, "one_time_ended": ended}
    audit(f"user:{name}", "user.change_secret", name, data=data, before={"set": had}, after={"set": True})
