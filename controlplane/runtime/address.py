"""Where a request or a socket comes from: the peer's address, or what a trusted proxy says of it.

Asked by whoever treats addresses apart: the limits of signing in, join tokens bound to a
range, the audit. X-Forwarded-For is believed only from peers named by HOLDFAST_TRUSTED_PROXIES
and only as far as the chain of such proxies goes: anybody can write the header.
"""

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any

from django.conf import settings
from django.http import HttpRequest

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

UNIX = "unix"
"""The word for a peer on a unix socket, which has no address."""
OFF = "off"
MAX_HOPS = 16
MAX_PORT = 65_535
# A subscriber gets at least a /64 of IPv6: its addresses are one place.
PLACE_BITS_V6 = 64


def parse_networks(text: str) -> tuple[Network | str, ...]:
    """The value of HOLDFAST_TRUSTED_PROXIES or HOLDFAST_METRICS_FROM: addresses and networks with commas, and the word
    `unix`. Raises ValueError naming what is neither."""
    found: list[Network | str] = []
    for part in filter(None, (word.strip() for word in text.split(","))):
        found.append(UNIX if part == UNIX else ipaddress.ip_network(part))
    return tuple(found)


def parse_bind(text: str) -> tuple[str, int | None] | None:
    """The value of HOLDFAST_METRICS_BIND: an address with or without a port (None: the process's own
    one; 0: any that is free), `[::1]:9471` for IPv6; None for `off`. Raises ValueError."""
    if text == OFF:
        return None
    host, colon, port = text.rpartition(":") if text.count(":") == 1 or "]:" in text else (text, "", "")
    address = ipaddress.ip_address(host.strip("[]"))
    if colon and not (port.isdecimal() and int(port) <= MAX_PORT):
        raise ValueError(f"{text!r} is no address with a port (0 to {MAX_PORT})")
    return str(address), int(port) if colon else None


def is_peer_in(peer: str, networks: Iterable[Network | str]) -> bool:
    """True if the peer of a connection, by its address, is in `networks`."""
    return _is_trusted(_parsed(peer), networks)


def client_address(source: HttpRequest | Mapping[str, Any]) -> str:
    """The address of who asks, of a request or an ASGI scope, in its usual spelling; "" for a
    peer without one (a unix socket). Behind trusted proxies: the last hop that none of them is."""
    peer, forwarded = _told(source)
    trusted = settings.TRUSTED_PROXIES
    address = _parsed(peer)
    if not _is_trusted(address, trusted):
        return "" if address is None else str(address)
    for hop in reversed(forwarded.split(",")[-MAX_HOPS:]):
        heard = _parsed(hop)
        if heard is None:
            break
        address = heard
        if not _is_trusted(address, trusted):
            break
    return "" if address is None else str(address)


def is_direct_from(source: HttpRequest | Mapping[str, Any], networks: Iterable[Network | str]) -> bool:
    """True if who asks has an address in `networks`. Not so where a proxy that nobody named
    passed the request on: the peer's address is then not the asker's."""
    peer, forwarded = _told(source)
    if forwarded and not _is_trusted(_parsed(peer), settings.TRUSTED_PROXIES):
        return False
    return _is_trusted(_parsed(client_address(source)), networks)


def place_of(address: str) -> str:
    """What limits count as one: the address, of IPv6 its /64; "" stays ""."""
    parsed = _parsed(address)
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((parsed, PLACE_BITS_V6), strict=False))
    return "" if parsed is None else str(parsed)


def _told(source: HttpRequest | Mapping[str, Any]) -> tuple[str, str]:
    """(peer, X-Forwarded-For of all its lines)."""
    if isinstance(source, HttpRequest):
        return source.META.get("REMOTE_ADDR") or "", source.META.get("HTTP_X_FORWARDED_FOR", "")
    peer = (source.get("client") or ("",))[0]
    lines = [value.decode("latin-1") for name, value in source.get("headers", ()) if name == b"x-forwarded-for"]
    return peer or "", ",".join(lines)


def _parsed(text: str) -> Address | None:
    """An address, IPv4 written as IPv6 as what it is; None for anything else."""
    try:
        address = ipaddress.ip_address(text.strip())
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _is_trusted(address: Address | None, trusted: Iterable[Network | str]) -> bool:
    if address is None:
        return UNIX in trusted
    return any(address in network for network in trusted if not isinstance(network, str))
