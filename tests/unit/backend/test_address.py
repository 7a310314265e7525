"""Where a request comes from, by what may be believed of it."""

from typing import Any

import pytest
from django.test import RequestFactory
from hypothesis import HealthCheck, given
from hypothesis import settings as bounds
from hypothesis import strategies as st

from controlplane.runtime.address import client_address, parse_networks, place_of

CLIENT, PROXY, FAR_PROXY = "198.51.100.7", "203.0.113.9", "203.0.113.10"
TRUSTED = "203.0.113.0/24, ::1, unix"


@pytest.fixture(autouse=True)
def _proxies(settings: Any) -> None:
    settings.TRUSTED_PROXIES = parse_networks(TRUSTED)


def both(peer: str | None, forwarded: str = "") -> str:
    """As a request and as a scope: the same answer."""
    headers = {"HTTP_X_FORWARDED_FOR": forwarded} if forwarded else {}
    request = RequestFactory().get("/", REMOTE_ADDR=peer or "", **headers)
    scope = {"client": None if peer is None else (peer, 1)}
    scope |= {"headers": [(b"x-forwarded-for", forwarded.encode())] if forwarded else []}
    found = client_address(scope)
    assert client_address(request) == found
    return found


@pytest.mark.parametrize(
    ("peer", "forwarded", "found"),
    [
        (CLIENT, "", CLIENT),
        (CLIENT, "192.0.2.1", CLIENT),
        (PROXY, CLIENT, CLIENT),
        (PROXY, f"192.0.2.1, {CLIENT}", CLIENT),
        (PROXY, f"192.0.2.1,{CLIENT}, {FAR_PROXY}", CLIENT),
        (PROXY, "", PROXY),
        (PROXY, "garbage", PROXY),
        (PROXY, f"garbage, {FAR_PROXY}", FAR_PROXY),
        ("::1", CLIENT, CLIENT),
        ("::ffff:203.0.113.9", f"::ffff:{CLIENT}", CLIENT),
        (PROXY, "2001:DB8:0::1", "2001:db8::1"),
        (None, CLIENT, CLIENT),
        (None, "", ""),
    ],
)
def test_the_last_hop_that_is_no_proxy_of_ours_is_who_asks(peer: str | None, forwarded: str, found: str) -> None:
    assert both(peer, forwarded) == found


def test_several_lines_of_the_header_are_one() -> None:
    lines = [(b"x-forwarded-for", b"192.0.2.1"), (b"x-forwarded-for", CLIENT.encode())]
    assert client_address({"client": (PROXY, 1), "headers": lines}) == CLIENT


def test_without_the_word_unix_a_peer_without_an_address_is_nobody(settings: Any) -> None:
    settings.TRUSTED_PROXIES = parse_networks(PROXY)
    assert both(None, CLIENT) == ""


def test_places_are_addresses_and_of_ipv6_their_64() -> None:
    assert place_of(CLIENT) == CLIENT
    assert place_of("2001:db8::1") == place_of("2001:db8::ffff:1") == "2001:db8::/64"
    assert place_of("") == ""


@pytest.mark.parametrize("text", ["localhost", "10.0.0.1/8", "1.2.3.4;5.6.7.8", "*"])
def test_what_is_no_network_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        parse_networks(text)


@bounds(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(peer=st.text(max_size=60), forwarded=st.text(max_size=400))
def test_no_text_breaks_it_and_nobody_outside_chooses_his_address(peer: str, forwarded: str) -> None:
    scope = {"client": (peer, 1), "headers": [(b"x-forwarded-for", forwarded.encode())]}
    place_of(client_address(scope))
    assert client_address({"client": (CLIENT, 1), "headers": scope["headers"]}) == CLIENT
