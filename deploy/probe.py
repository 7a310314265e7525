"""Health checks of the containers and units: exit status 0 is healthy.

    python deploy/probe.py url http://127.0.0.1:8000/readyz
    python deploy/probe.py tcp 127.0.0.1:29400
    python deploy/probe.py beat worker --max-age-s 60
    python deploy/probe.py --wait-s 60 beat worker

`beat` asks the database when that role last showed that it works: a worker whose process lives and
whose broker answers can still be hung, so only a finished canary counts. With `--wait-s` it is asked
again each second for as long as that: right after a start nothing has beaten yet.
"""

import argparse
import socket
import sys
import time
import urllib.error
import urllib.request
from datetime import timedelta

TIMEOUT_S, AGAIN_S = 4.0, 1.0
HTTP_OK = 200


def url_answers(url: str) -> str | None:
    """None if `url` answers 200, else what is wrong."""
    if not url.startswith(("http://", "https://")):
        return f"{url} is no http address"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:  # noqa: S310 - scheme checked above
            return None if answer.status == HTTP_OK else f"{url} answered {answer.status}"
    except (OSError, urllib.error.URLError) as error:
        return f"{url}: {error}"


def port_accepts(address: str) -> str | None:
    """None if host:port accepts a connection, else what is wrong."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return f"{address} is not host:port"
    try:
        socket.create_connection((host, int(port)), timeout=TIMEOUT_S).close()
    except OSError as error:
        return f"{address}: {error}"
    return None


def beat_is_fresh(role: str, max_age_s: float) -> str | None:
    """None if a process of `role` beat within `max_age_s`, else what is wrong."""
    import django

    from controlplane.config.env import choose_settings_module

    choose_settings_module()
    django.setup()
    from django.utils import timezone

    from controlplane.runtime.models import ProcessBeat

    newest = ProcessBeat.objects.filter(role=role).order_by("-beat_at").values_list("beat_at", flat=True).first()
    if newest is None:
        return f"no {role} has ever beaten"
    age = timezone.now() - newest
    return None if age <= timedelta(seconds=max_age_s) else f"{role} last beat {age.total_seconds():.0f} s ago"


def fault_of(options: argparse.Namespace) -> str | None:
    """What is wrong with what was asked about, None if nothing is."""
    match options.kind:
        case "url":
            return url_answers(options.url)
        case "tcp":
            return port_accepts(options.address)
        case _:
            return beat_is_fresh(options.role, options.max_age_s)


def main(arguments: list[str] | None = None) -> int:
    """0 healthy, 1 not (the reason goes to stderr)."""
    parser = argparse.ArgumentParser(description="health checks")
    parser.add_argument("--wait-s", type=float, default=0.0, help="ask again until it is healthy, at most so long")
    kinds = parser.add_subparsers(dest="kind", required=True)
    kinds.add_parser("url").add_argument("url")
    kinds.add_parser("tcp").add_argument("address")
    beat = kinds.add_parser("beat")
    beat.add_argument("role")
    beat.add_argument("--max-age-s", type=float, default=60.0)
    options = parser.parse_args(arguments)
    give_up_s = time.monotonic() + options.wait_s
    while (fault := fault_of(options)) and time.monotonic() < give_up_s:
        time.sleep(AGAIN_S)
    if fault:
        print(fault, file=sys.stderr)
    return 1 if fault else 0


if __name__ == "__main__":
    sys.exit(main())
