"""docs/install.md is followed, block by block: packages to a first job behind TLS, and back from a
backup. Real PostgreSQL, Redis, nginx, services, agent and ranks; `machine` says what stands in."""

import http.client
import json
import shutil
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from controlplane.demo.private_postgres import MissingPostgres, private_cluster
from controlplane.protocol.codec import decode_to_agent
from controlplane.protocol.handshake import CHANNEL_CERTIFICATE, CHANNEL_HEADER, Challenge
from tests.integration.install.machine import ROOT, Site, blocks

pytestmark = pytest.mark.timeout(420)
PROGRAMS = ("nginx", "redis-server", "openssl", "curl", "setpriv")
MISSING = [name for name in PROGRAMS if not (shutil.which(name) or Path("/usr/sbin", name).exists())]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """The page was followed to its end."""
    if MISSING:
        pytest.skip(f"the install page was not followed: {', '.join(MISSING)} is not installed (apt-get install)")
    # Short, as unix sockets lie in it, and open to nginx's own user.
    directory = Path(tempfile.mkdtemp(prefix="hfi-", dir="/tmp"))
    directory.chmod(0o755)
    (directory / "checkpoints").mkdir()
    try:
        with private_cluster("postgres", passwords=True) as cluster:
            made = Site(directory, cluster)
            try:
                for block in blocks():
                    made.follow(block)
                yield made
            finally:
                made.close()
    except MissingPostgres as error:
        pytest.skip(f"the install page was not followed: {error}")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def ask(
    site: Site, method: str, path: str, body: object = None, *, source: str = "127.0.0.1"
) -> http.client.HTTPResponse:
    """An answer through nginx, whose certificate is checked, to a client at `source`."""
    trusted = ssl.create_default_context(cafile=str(site.directory / "server/etc/holdfast/tls.crt"))
    connection = http.client.HTTPSConnection(
        "localhost", site.ports["tls"], context=trusted, source_address=(source, 0), timeout=20
    )
    connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer


def test_a_first_job_ends_well_and_a_second_one_after_the_backup_was_put_back(site: Site) -> None:
    first, back = site.printed("cat > first.yaml"), site.printed("> second.yaml")
    assert "succeeded" in first
    # What was known before is known again, and orders reach the same agent.
    assert "succeeded" in back.partition("second")[0]
    assert "succeeded" in back.partition("second")[2]
    assert site.units.ended() == []


def test_every_unit_that_ships_was_started_as_it_stands(site: Site) -> None:
    assert site.units.started == {path.name for path in (ROOT / "deploy" / "systemd").glob("*.service")}


def test_all_of_it_was_on_postgresql_and_its_files_are_closed(site: Site) -> None:
    assert list(site.directory.rglob("*.sqlite3")) == []
    etc = site.directory / "server/etc/holdfast"
    for name in ("server.env", "store_key", "tls.key"):
        assert (etc / name).stat().st_mode & 0o077 == 0, name
    assert (site.directory / "server/var/lib/holdfast/keys/signing_key").stat().st_mode & 0o077 == 0


def test_a_browser_is_told_to_use_tls_for_this_host_alone(site: Site) -> None:
    answer = ask(site, "GET", "/")
    assert answer.status == 200
    assert answer.headers["Strict-Transport-Security"] == "max-age=31536000"


def test_who_guesses_passwords_holds_back_nobody_else_behind_the_proxy(site: Site) -> None:
    """Each client is counted by its own address: nginx says it, the web processes believe nginx alone."""
    wrong = {"username": "ada", "password": "a wrong guess"}
    first = [ask(site, "POST", "/api/v1/login", wrong, source="127.0.0.2").status for _ in range(8)]
    assert first[0] == 401
    assert first[-1] == 429
    assert ask(site, "POST", "/api/v1/login", wrong, source="127.0.0.3").status == 401


async def test_an_agent_that_comes_through_nginx_is_asked_to_bind_its_session(site: Site) -> None:
    """The header goes through nginx, and the setting of the page is in effect; the jobs above ran so."""
    trusted = ssl.create_default_context(cafile=str(site.directory / "server/etc/holdfast/tls.crt"))
    offer = {CHANNEL_HEADER: CHANNEL_CERTIFICATE}
    for headers, asked in ((offer, True), ({}, False)):
        async with connect(
            f"wss://localhost:{site.ports['tls']}/agent/v1/stream", ssl=trusted, additional_headers=headers
        ) as socket:
            said = decode_to_agent(await socket.recv())  # type: ignore[arg-type]
        assert isinstance(said, Challenge)
        assert said.bind_tls == asked


def test_a_command_without_its_settings_does_nothing_and_says_how(site: Site) -> None:
    """Where the services run, `create_admin` by itself is no second database beside theirs."""
    import subprocess

    here = site.directory / "server/opt/holdfast"
    done = subprocess.run(
        [".venv/bin/python", "manage.py", "create_admin"], cwd=here, env={"PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "HOLDFAST_PROFILE is not set" in done.stderr
    assert "holdfast-server manage.py" in done.stderr
    assert not (here / "var").exists()
