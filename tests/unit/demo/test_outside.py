"""An installation that agents on other machines reach: by TLS, on one address; all else stays on loopback."""

from pathlib import Path
from typing import Any

import pytest

from controlplane.config import serve
from controlplane.demo.config import DemoConfig, Outside
from controlplane.demo.installation import Installation
from controlplane.demo.processes import Addresses, outside_process, store_process, web_process

ADDRESSES = Addresses(host="127.0.0.1", web_port=8000, redis_port=6379, store_port=29400)


def outside(folder: Path) -> Outside:
    return Outside(host="gpu-1", bind="10.0.0.1", port=8443, certificate=folder / "c.pem", key=folder / "k.pem")


def test_it_is_the_web_process_on_another_address_and_known_by_its_certificate(tmp_path: Path) -> None:
    spec, plain = outside_process(ADDRESSES, outside(tmp_path)), web_process(ADDRESSES)
    assert spec.name != plain.name and spec.argv[: len(plain.argv)] == plain.argv
    assert spec.argv[len(plain.argv) :] == (
        "--host", "10.0.0.1", "--port", "8443",
        "--tls-certificate", f"{tmp_path}/c.pem", "--tls-key", f"{tmp_path}/k.pem",
    )  # fmt: skip
    assert spec.env == {
        "HOLDFAST_BIND": "10.0.0.1:8443",
        "HOLDFAST_ALLOW_REMOTE_EMBEDDED": "true",
        "HOLDFAST_ALLOWED_HOSTS": "gpu-1,127.0.0.1,localhost",
        "HOLDFAST_ORIGINS": "https://gpu-1:8443",
        "HOLDFAST_TLS_CERTIFICATE": f"{tmp_path}/c.pem",
    }


def test_of_the_store_ranks_alone_are_let_in_from_outside(tmp_path: Path) -> None:
    words = store_process(ADDRESSES, tmp_path / "key", 9000, bind="10.0.0.1").argv
    assert words[words.index("--host") + 1] == "10.0.0.1"
    assert words[words.index("--metrics-bind") + 1] == "127.0.0.1:9000"
    assert "10.0.0.1" not in store_process(ADDRESSES, tmp_path / "key", 9000).argv


def environment(folder: Path, **changes: Any) -> dict[str, str]:
    return Installation(DemoConfig(directory=folder / "d", port=0, nodes=0, spare_nodes=0, **changes)).env


def test_ranks_meet_at_the_name_that_nodes_know_and_nothing_else_leaves_loopback(tmp_path: Path) -> None:
    env = environment(tmp_path, outside=outside(tmp_path), demo=False)
    assert env["HOLDFAST_STORE_ADDRESS"].startswith("gpu-1:")
    assert env["HOLDFAST_BIND"].startswith("127.0.0.1:") and "@127.0.0.1:" in env["HOLDFAST_REDIS_URL"]
    assert "HOLDFAST_ALLOW_REMOTE_EMBEDDED" not in env
    assert env["HOLDFAST_DEMO"] == "false" and "HOLDFAST_DEMO_CONTROL" not in env, "no panel of faults"
    demo = environment(tmp_path)
    assert demo["HOLDFAST_DEMO"] == "true" and demo["HOLDFAST_STORE_ADDRESS"].startswith("127.0.0.1:")


def test_certificate_and_key_go_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for half in (["--tls-key", "k"], ["--tls-certificate", "c"]):
        with pytest.raises(SystemExit):
            serve.main(half)
        assert "--tls-certificate and --tls-key go together" in capsys.readouterr().err
    made = serve.config("127.0.0.1", 1, graceful_s=1, tls=(tmp_path / "c", tmp_path / "k"))
    assert (made.ssl_certfile, made.ssl_keyfile) == (f"{tmp_path}/c", f"{tmp_path}/k")
    assert serve.config("127.0.0.1", 1, graceful_s=1).ssl_certfile is None
