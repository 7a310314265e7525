"""docker-compose.yml, the units and the image describe this code and not another.

No container runs here: commands, modules, settings, files and health checks are compared
with the program itself, and with what the demo starts.
"""

import importlib.util
import ipaddress
import os
import re
import shutil
import string
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.urls import resolve

from controlplane.config import env as server_env
from controlplane.demo import processes
from controlplane.runtime.address import parse_networks

ROOT = Path(__file__).resolve().parents[2]
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
VERIFY_TIMEOUT_S = 60.0
# Flags whose values say where something listens or lives; they differ by installation.
PLACES = frozenset(
    [
        "--host",
        "--port",
        "--server",
        "--name",
        "--state-dir",
        "--devices",
        "--join-token-file",
        "--concurrency",
        "--schedule",
        "--dir",
        "--bind",
        "--requirepass",
        "--timeout-graceful-shutdown",
        "--appendonly",
        "--save",
        "--daemonize",
        "--probe",
        "--key-file",
        "--metrics-bind",
    ]
)
# What makes the production Redis keep its data, and the demo's forget it.
DEMO_ONLY = frozenset({"--save", "--bind", "--port", "--dir", "--daemonize"})
ADDRESSES = processes.Addresses(host="127.0.0.1", web_port=8000, redis_port=6379, store_port=29400)


def compose() -> dict[str, Any]:
    """The parsed file, anchors merged; what has a default and is not set has it."""
    return filled({})


def filled(settings: dict[str, str]) -> dict[str, Any]:
    """As compose reads it with these variables."""
    text = re.sub(r"\$\{([A-Z_]+):-([^}]*)\}", lambda m: settings.get(m[1]) or m[2], read("docker-compose.yml"))
    return yaml.safe_load(text)


def offered() -> dict[str, str]:
    """What the example leaves to whoever has nodes on other machines."""
    return dict(re.findall(r"^# ([A-Z_]+)=(\S+)$", read("deploy/env.example"), re.MULTILINE))


def read(name: str) -> str:
    """A file of the repository."""
    return (ROOT / name).read_text(encoding="ascii")


def services() -> dict[str, dict[str, Any]]:
    return compose()["services"]


def demo_commands() -> dict[str, tuple[str, ...]]:
    """What `make demo` starts, by role."""
    here = Path("here")
    agent = processes.agent_process(
        addresses=ADDRESSES, node="node-1", state_dir=here, join_token_file=here, devices=2, seed=1
    )
    return {
        "web": processes.web_process(ADDRESSES).argv,
        "sentinel": processes.sentinel_process().argv,
        "worker": processes.worker_process().argv,
        "beat": processes.beat_process(here).argv,
        "store": processes.store_process(ADDRESSES, here).argv,
        "agent": agent.argv,
        "redis": processes.redis_process(
            binary="redis-server", addresses=ADDRESSES, directory=here, password_file=here
        ).argv,
    }


def role(name: str) -> str:
    """`web-2`, `holdfast-web@` -> `web`."""
    return name.removeprefix("holdfast-").split("@")[0].split("-")[0]


def shape(argv: tuple[str, ...] | list[str]) -> tuple[list[str], dict[str, str]]:
    """(program and its plain words, flag -> value), without the values of places."""
    words: list[str] = []
    flags: dict[str, str] = {}
    tokens = ["python" if index == 0 and "python" in token else token for index, token in enumerate(argv)]
    index = 0
    while index < len(tokens):
        token = tokens[index]
        follower = tokens[index + 1] if index + 1 < len(tokens) else "--"
        if not token.startswith("--"):
            words.append(token)
        elif follower.startswith("--"):
            flags[token] = ""
        else:
            flags[token] = "" if token in PLACES else follower
            index += 1
        index += 1
    return words, flags


def unit_argv(path: Path) -> list[str]:
    """The words of ExecStart, quotes removed."""
    line = next(line for line in path.read_text(encoding="ascii").splitlines() if line.startswith("ExecStart="))
    return [word.strip('"') for word in line.removeprefix("ExecStart=").split()]


def own_services() -> dict[str, list[str]]:
    """Services of ours that a process of the demo answers to."""
    return {name: service["command"] for name, service in services().items() if role(name) in demo_commands()}


@pytest.mark.parametrize("name", sorted(own_services()))
def test_a_container_starts_what_the_demo_starts(name: str) -> None:
    words, flags = shape(own_services()[name])
    demo_words, demo_flags = shape(demo_commands()[role(name)])
    if role(name) == "redis":
        # The demo gives its password in a file; here the container's own environment does.
        assert flags.pop("--requirepass") == ""
        assert demo_words.pop() == "here"
    assert words == demo_words
    assert flags == {
        flag: value for flag, value in demo_flags.items() if role(name) != "redis" or flag not in DEMO_ONLY
    }


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_a_unit_starts_what_the_demo_starts(unit: Path) -> None:
    words, flags = shape(unit_argv(unit))
    demo_words, demo_flags = shape(demo_commands()[role(unit.stem)])
    assert words == demo_words
    assert set(flags) <= set(demo_flags)
    assert set(demo_flags) - set(flags) <= {"--devices"}


def test_every_process_of_the_demo_has_a_container_and_a_unit() -> None:
    assert {role(name) for name in services()} >= set(demo_commands())
    assert {role(unit.stem) for unit in UNITS} == set(demo_commands()) - {"redis"}


@pytest.mark.parametrize(
    "module", ["controlplane.config.asgi", "controlplane.config.celery", "trainer.store", "agents"]
)
def test_every_module_started_exists(module: str) -> None:
    assert importlib.util.find_spec(module)


def test_every_management_command_started_exists() -> None:
    from django.core.management import get_commands

    started = {
        command[command.index("manage.py") + 1]
        for command in [*(service.get("command", []) for service in services().values()), *map(unit_argv, UNITS)]
        if "manage.py" in command
    }
    assert started == {"migrate", "sentinel"}
    assert started <= set(get_commands())


def test_every_setting_is_read_by_the_server() -> None:
    texts = [
        ROOT / "docker-compose.yml",
        ROOT / "deploy" / "env.example",
        *(ROOT / "deploy" / "systemd").glob("*.example"),
    ]
    keys = {key for path in texts for key in re.findall(r"\bHOLDFAST_[A-Z_]+", path.read_text(encoding="ascii"))}
    assert keys
    assert server_env.unknown_keys(keys) == []


def test_every_variable_without_a_default_is_in_the_example() -> None:
    asked = set(re.findall(r"\$\{([A-Z_]+):\?", (ROOT / "docker-compose.yml").read_text(encoding="ascii")))
    example = (ROOT / "deploy" / "env.example").read_text(encoding="ascii")
    assert {name for name in asked if not re.search(rf"^{name}=", example, re.MULTILINE)} == set()


def test_every_health_address_is_a_route() -> None:
    addresses = re.findall(r"http://127\.0\.0\.1:8000(/\w+)", (ROOT / "docker-compose.yml").read_text(encoding="ascii"))
    assert addresses
    for path in addresses:
        assert resolve(path)


def test_every_long_running_service_restarts_and_all_but_the_named_are_probed() -> None:
    unprobed = {"migrate", "beat", "proxy", "agent-1", "agent-2"}
    for name, service in services().items():
        assert service["restart"] == ("no" if name == "migrate" else "unless-stopped"), name
        assert ("healthcheck" in service) == (name not in unprobed), name


def test_containers_of_ours_run_without_privileges() -> None:
    for name, service in services().items():
        if "build" not in service:
            continue
        assert service["user"] == "10001:10001", name
        assert service["cap_drop"] == ["ALL"], name
        assert "privileged" not in service, name
    image = (ROOT / "deploy" / "Dockerfile").read_text(encoding="ascii")
    assert image.count("USER 10001:10001") == image.count("FROM base AS")


def test_every_volume_network_and_secret_used_is_declared() -> None:
    whole = compose()
    for name, service in services().items():
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            assert source in whole["volumes"] or (ROOT / source).exists(), f"{name}: {mount}"
        assert set(service["networks"]) <= set(whole["networks"]), name
        assert set(service.get("secrets", [])) <= set(whole["secrets"]), name
    assert {entry["file"].rpartition("/")[0] for entry in whole["secrets"].values()} == {"./deploy/secrets"}


def test_nodes_on_other_machines_reach_the_proxy_the_store_and_the_checkpoints() -> None:
    """The quick start has one server and one GPU node: its ranks are not on the network of compose."""
    settings = offered()
    whole = filled(settings)["services"]
    host, _, port = settings["HOLDFAST_STORE_ADDRESS"].rpartition(":")
    assert whole["store"]["ports"] == [f"{host}:{port}:29400"]
    assert whole["proxy"]["ports"] == ["443:8443"]
    servers = {
        name: each for name, each in whole.items() if "HOLDFAST_STORE_ADDRESS" in (each.get("environment") or {})
    }
    assert {"web-1", "web-2", "worker", "sentinel"} <= set(servers)
    for server in servers.values():
        assert server["environment"]["HOLDFAST_STORE_ADDRESS"] == settings["HOLDFAST_STORE_ADDRESS"]
        assert f"{settings['CHECKPOINTS']}:{server['environment']['HOLDFAST_CHECKPOINT_ROOT']}" in server["volumes"]
    assert services()["store"]["ports"] == ["127.0.0.1:29400:29400"]
    missing = [name for name in settings if name not in read("docs/quickstart.md")]
    assert missing == [], "the quick start does not name them"


def test_redis_keeps_and_never_evicts() -> None:
    _, flags = shape(services()["redis"]["command"])
    assert flags["--maxmemory-policy"] == "noeviction"
    assert services()["redis"]["command"][1:3] == ["--appendonly", "yes"]


def test_everything_the_image_copies_is_let_through_and_exists() -> None:
    image = (ROOT / "deploy" / "Dockerfile").read_text(encoding="ascii")
    ignored = (ROOT / ".dockerignore").read_text(encoding="ascii").splitlines()
    let_through = {line[1:] for line in ignored if line.startswith("!")}
    for line in re.findall(r"^COPY (.+)$", image, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert source in let_through or source.split("/")[0] in let_through, source


def test_the_proxy_knows_every_web_process() -> None:
    proxy = (ROOT / "deploy" / "nginx.conf").read_text(encoding="ascii")
    webs = {name for name in services() if role(name) == "web"}
    assert set(re.findall(r"server (web-\d+):8000", proxy)) == webs
    for secret in services()["proxy"]["secrets"]:
        assert f"/run/secrets/{secret}" in proxy


def test_each_client_behind_the_proxy_keeps_its_own_address() -> None:
    """What the web processes trust is the proxy alone, and it passes on the peer and not a claim."""
    trusted = re.search(
        r"HOLDFAST_TRUSTED_PROXIES: \$\{HOLDFAST_TRUSTED_PROXIES:-([^}]+)\}", read("docker-compose.yml")
    )
    assert trusted is not None
    address = ipaddress.ip_address(services()["proxy"]["networks"]["inside"]["ipv4_address"])
    assert parse_networks(trusted[1]) == (ipaddress.ip_network(address),)
    assert f"HOLDFAST_TRUSTED_PROXIES={trusted[1]}\n" in read("deploy/env.example")
    assert address in ipaddress.ip_network(compose()["networks"]["inside"]["ipam"]["config"][0]["subnet"])
    proxy = read("deploy/nginx.conf")
    assert "proxy_set_header X-Forwarded-For $remote_addr;" in proxy
    assert "$proxy_add_x_forwarded_for" not in proxy


def test_sessions_are_bound_to_the_certificate_that_the_proxy_shows() -> None:
    """The example names it, the proxy shows it, and every process that reads the setting has it mounted."""
    shown = re.search(r"^ +ssl_certificate +(\S+);", read("deploy/nginx.conf"), re.MULTILINE)
    assert shown is not None
    assert f"\nHOLDFAST_TLS_CERTIFICATE={shown[1]}\n" in read("deploy/env.example")
    readers = {
        name: service["secrets"]
        for name, service in services().items()
        if "HOLDFAST_TLS_CERTIFICATE" in (service.get("environment") or {})
    }
    assert {"web-1", "web-2", "migrate"} < set(readers)
    assert [name for name, secrets in readers.items() if Path(shown[1]).name not in secrets] == []


def secret_rows() -> dict[str, tuple[str, int]]:
    """Owner and mode of each file, as its page has them."""
    rows = re.findall(r"^\| `(\w[\w.]*)` \| (\w+) \| (\d+) \|", read("deploy/secrets/README.md"), re.MULTILINE)
    return {name: (owner, int(mode, 8)) for name, owner, mode in rows}


def test_a_secret_is_readable_by_whom_it_is_mounted_for_and_nobody_else() -> None:
    rows, declared = secret_rows(), compose()["secrets"]
    assert set(rows) == {entry["file"].rpartition("/")[2] for entry in declared.values()}
    users = {name: service.get("user", "image's own").split(":")[0] for name, service in services().items()}
    for secret, entry in declared.items():
        owner, mode = rows[entry["file"].rpartition("/")[2]]
        readers = {users[name] for name, service in services().items() if secret in service.get("secrets", [])}
        assert readers, secret
        if secret != "tls_certificate":
            assert (readers, mode) == ({owner}, 0o400), secret
    assert rows["tls.crt"][1] == 0o444
    # Our own processes, whoever gets into them, do not hold the key that speaks for the host.
    assert [name for name, service in services().items() if "tls_key" in service.get("secrets", [])] == ["proxy"]
    assert users["proxy"] not in {user for name, user in users.items() if name != "proxy"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_commands_of_the_page_make_the_files_as_the_page_says(tmp_path: Path) -> None:
    block = re.findall(r"^```sh\n(.*?)^```", read("deploy/secrets/README.md"), re.MULTILINE | re.DOTALL)[0]
    subprocess.run(["sh", "-euc", block], cwd=tmp_path, check=True, capture_output=True, timeout=VERIFY_TIMEOUT_S)
    made = {path.name: path.stat() for path in tmp_path.iterdir()}
    names = {"root": 0, "101": 101, "10001": 10001}
    assert {name: (one.st_uid, one.st_mode & 0o777) for name, one in made.items()} == {
        name: (names[owner], mode) for name, (owner, mode) in secret_rows().items()
    }


def test_the_proxy_waits_for_no_request_for_ever() -> None:
    assert {"client_header_timeout", "client_body_timeout"} <= set(
        re.findall(r"^ +(client_\w+)", read("deploy/nginx.conf"), re.MULTILINE)
    )


def test_restarting_the_agent_never_ends_ranks() -> None:
    unit = (ROOT / "deploy" / "systemd" / "holdfast-agent.service").read_text(encoding="ascii")
    assert "\nKillMode=process\n" in unit
    assert "\nSendSIGKILL=no\n" in unit


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_systemd_accepts_the_unit(unit: Path, tmp_path: Path) -> None:
    """The interpreter's path is replaced, as it exists only on an installed host."""
    text = unit.read_text(encoding="ascii").replace("/opt/holdfast/.venv/bin/python", sys.executable)
    copy = tmp_path / unit.name.replace("@.", "@8000.")
    copy.write_text(re.sub(r"^(User|Group|Documentation)=.*\n", "", text, flags=re.MULTILINE), encoding="ascii")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)],
        capture_output=True,
        text=True,
        timeout=VERIFY_TIMEOUT_S,
        check=False,
    )
    complaints = [line for line in done.stderr.splitlines() if unit.name.split("@")[0].split(".")[0] in line]
    assert complaints == []


def test_the_settings_of_the_containers_pass_the_deployment_check(tmp_path: Path) -> None:
    """With every variable filled in, Django has nothing to warn about."""
    text = (ROOT / "docker-compose.yml").read_text(encoding="ascii")
    filled = re.sub(r"\$\{[A-Z_]+:-([^}]*)\}", r"\1", text)
    filled = re.sub(r"\$\{[A-Z_]+:\?[^}]*\}", string.ascii_letters + string.digits, filled)
    environment = yaml.safe_load(filled)["services"]["web-1"]["environment"]
    (tmp_path / "store_key").write_text(string.ascii_letters)
    places = {
        "HOLDFAST_STATE_DIR": str(tmp_path),
        "HOLDFAST_CHECKPOINT_ROOT": str(tmp_path / "checkpoints"),
        "HOLDFAST_STORE_KEY_FILE": str(tmp_path / "store_key"),
    }
    done = subprocess.run(
        [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", **environment, **places},
        capture_output=True,
        text=True,
        timeout=VERIFY_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is no setting of Holdfast" not in done.stderr
