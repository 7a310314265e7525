"""Settings: one place, typed, unknown ones refused, secrets never shown."""

import sys

import pytest

from agents.config import load
from agents.errors import ConfigError
from agents.link.enrol import Credential, load_credential, store_credential
from agents.link.server import check_server_url


def test_the_command_line_wins_over_the_environment(tmp_path):
    environment = {"HOLDFAST_AGENT_NAME": "from-env", "HOLDFAST_AGENT_DEVICES": "3", "HOME": "/root"}
    config = load(["--name", "from-argv", "--state-dir", str(tmp_path)], environment)
    assert (config.name, config.devices) == ("from-argv", 3)


def test_an_unknown_setting_is_refused_by_name():
    with pytest.raises(ConfigError, match="HOLDFAST_AGENT_SERVR"):
        load([], {"HOLDFAST_AGENT_SERVR": "ws://x"})


@pytest.mark.parametrize(
    "environment",
    [
        {"HOLDFAST_AGENT_DEVICES": "many"},
        {"HOLDFAST_AGENT_PROBE": "magic"},
        {"HOLDFAST_AGENT_INSECURE_DEV": "perhaps"},
        {"HOLDFAST_AGENT_NAME": "../etc"},
        {"HOLDFAST_AGENT_NAME": "gpu-1\n"},
        {"HOLDFAST_AGENT_SEGMENT": "rack-2\n"},
        {"HOLDFAST_AGENT_NOTICES": "gce", "HOLDFAST_AGENT_NOTICE_URL": "http://metadata\n"},
        {"HOLDFAST_AGENT_JOIN_TOKEN_FILE": sys.executable},
        {"HOLDFAST_AGENT_STATE_DIR": "/" + "x" * 120},
    ],
)
def test_wrong_values_are_refused(environment):
    with pytest.raises(ConfigError):
        load([], environment)


def test_the_token_is_read_from_its_file_and_masked(tmp_path):
    token = tmp_path / "token"
    token.write_text("holdfast_join_secret\n")
    config = load(["--join-token-file", str(token)], {})
    assert config.join_token == "holdfast_join_secret"
    assert "secret" not in str(config.masked())


def test_plain_sockets_are_for_loopback_only():
    check_server_url("ws://127.0.0.1:8000", insecure_dev=False)
    check_server_url("wss://control.example", insecure_dev=False)
    check_server_url("ws://10.0.0.1:8000", insecure_dev=True)
    for bad in ("ws://10.0.0.1:8000", "http://x", "ws://user:pw@127.0.0.1", "wss://x/?token=1"):
        with pytest.raises(ConfigError):
            check_server_url(bad, insecure_dev=False)


def test_a_credential_that_others_can_read_is_refused(tmp_path):
    path = tmp_path / "credential"
    store_credential(path, Credential(node_id="node_1"))
    assert load_credential(path) == Credential(node_id="node_1")
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="readable by others"):
        load_credential(path)
