"""V13: ten wrong passwords locked a name for everybody, X-Forwarded-For was believed from
anybody on loopback, and behind the proxy all were one address."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import F
from django.test import Client

from controlplane.access import gate
from controlplane.access.models import SignInGate
from controlplane.access.services import create_one_time_password
from controlplane.runtime.address import parse_networks
from controlplane.runtime.clock import now
from tests.integration.api.principals import PASSWORD

pytestmark = pytest.mark.django_db
HOME, ELSEWHERE, PROXY = "192.0.2.1", "198.51.100.7", "203.0.113.9"


def sign_in(address: str, *, name: str = "ada", password: str = "wrong", forwarded: str = "") -> Any:
    """One try from an address."""
    headers = {"X-Forwarded-For": forwarded} if forwarded else {}
    body = {"username": name, "password": password}
    return Client().post("/api/v1/login", body, content_type="application/json", headers=headers, REMOTE_ADDR=address)


def guess(times: int, address: str, **how: str) -> list[int]:
    """Wrong tries; their statuses."""
    return [sign_in(address, **how).status_code for _ in range(times)]


class Clock:
    """The gate's time: it moves when a test says so, however slow the machine is."""

    def __init__(self) -> None:
        self.moment = now()

    def __call__(self) -> datetime:
        return self.moment

    def pass_s(self, seconds: float) -> None:
        self.moment += timedelta(seconds=seconds)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(gate, "now", made)
    return made


def test_a_stranger_who_guesses_locks_nobody_but_himself_out(user: User) -> None:
    assert guess(12, ELSEWHERE)[-1] == 429
    assert sign_in(HOME, password=PASSWORD).status_code == 200


def test_his_pause_is_told_and_doubles_and_ends(user: User, clock: Clock) -> None:
    assert guess(gate.PAIR.free + 1, ELSEWHERE) == [401] * (gate.PAIR.free + 1)
    first = sign_in(ELSEWHERE)
    assert first.status_code == 429
    clock.pass_s(gate.PAIR.first_s)
    assert sign_in(ELSEWHERE).status_code == 401
    second = sign_in(ELSEWHERE)
    assert int(second["Retry-After"]) > int(first["Retry-After"])
    clock.pass_s(gate.PAIR.most_s)
    assert sign_in(ELSEWHERE, password=PASSWORD).status_code == 200


def test_refused_tries_do_not_lengthen_the_pause(user: User) -> None:
    guess(gate.PAIR.free + 1, ELSEWHERE)
    before = SignInGate.objects.order_by("key").values_list("key", "failures", "closed_until")
    counted = list(before)
    guess(20, ELSEWHERE)
    assert list(before.all()) == counted


def test_many_strangers_at_one_name_never_stop_its_owner_where_he_was_before(user: User) -> None:
    assert sign_in(HOME, password=PASSWORD).status_code == 200
    for number in range(40):
        sign_in(f"198.51.100.{number}")
    assert sign_in("198.51.100.99", password=PASSWORD).status_code == 429
    assert sign_in(HOME, password=PASSWORD).status_code == 200


def test_many_names_from_one_address_are_slowed_down_but_not_its_known_people(user: User) -> None:
    assert sign_in(HOME, password=PASSWORD).status_code == 200
    statuses = [sign_in(HOME, name=f"name{number}").status_code for number in range(40)]
    assert statuses[0] == 401
    assert statuses[-1] == 429
    assert sign_in(HOME, password=PASSWORD).status_code == 200


def test_an_account_of_ones_own_buys_no_guesses(user: User) -> None:
    User.objects.create_user("eve", password=PASSWORD)
    statuses = []
    for number in range(40):
        statuses.append(sign_in(ELSEWHERE, name=f"name{number}").status_code)
        sign_in(ELSEWHERE, name="eve", password=PASSWORD)
    assert statuses[-1] == 429


def test_a_one_time_password_opens_the_door_to_an_owner_far_from_home(user: User) -> None:
    for number in range(40):
        sign_in(f"198.51.100.{number}")
    assert sign_in(PROXY, password=PASSWORD).status_code == 429
    assert sign_in(PROXY, password=create_one_time_password(user)).status_code == 200


def test_a_forged_header_makes_no_new_address(user: User) -> None:
    statuses = [sign_in("127.0.0.1", forwarded=f"198.51.100.{number}").status_code for number in range(12)]
    assert statuses[-1] == 429


def test_behind_a_named_proxy_each_client_has_its_own_pause(user: User, settings: Any) -> None:
    settings.TRUSTED_PROXIES = parse_networks(f"{PROXY}/32")
    assert guess(12, PROXY, forwarded=ELSEWHERE)[-1] == 429
    # What the client itself wrote stands left of what the proxy saw.
    assert guess(1, PROXY, forwarded=f"{HOME}, {ELSEWHERE}") == [429]
    assert sign_in(PROXY, password=PASSWORD, forwarded=HOME).status_code == 200


def test_neighbours_of_ipv6_are_one_address(user: User) -> None:
    statuses = [sign_in(f"2001:db8::{number:x}").status_code for number in range(1, 13)]
    assert statuses[-1] == 429


def test_what_is_kept_is_bounded_and_names_nobody(user: User, clock: Clock) -> None:
    guess(12, ELSEWHERE)
    refused = SignInGate.objects.count()
    for number in range(30):
        sign_in(ELSEWHERE, name=f"name{number}")
    counted = SignInGate.objects.count()
    assert counted <= refused + 2 * gate.ADDRESS.free
    for number in range(30, 60):
        assert sign_in(ELSEWHERE, name=f"name{number}").status_code == 429
    assert SignInGate.objects.count() == counted
    assert "ada" not in str(list(SignInGate.objects.values()))
    clock.pass_s(gate.FORGET_S + 1)
    gate.forget_old()
    assert not SignInGate.objects.exists()


def test_what_worked_is_remembered_longer_than_what_failed(user: User, clock: Clock) -> None:
    sign_in(HOME, password=PASSWORD)
    clock.pass_s(gate.FORGET_S + 1)
    gate.forget_old()
    assert SignInGate.objects.count() == 1
    SignInGate.objects.update(known_until=F("last_at"))
    gate.forget_old()
    assert not SignInGate.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_hundred_guesses_at_once_are_a_hundred(user: User) -> None:
    def one(_: int) -> bool:
        try:
            return gate.knock("ada", ELSEWHERE).wait_s is None
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as pool:
        looked_at = sum(pool.map(one, range(40)))
    assert looked_at == gate.PAIR.free + 1
