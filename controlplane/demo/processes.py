"""What runs: one `ProcessSpec` for each process of a Holdfast installation.

`docker-compose.yml` and the systemd units start the same commands; a contract test
compares them. The supervisor fills in the addresses and starts them in this order.
"""

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from controlplane.demo.config import Outside

NODE_STOP_ORDER_LAST = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """One process. `name` is unique; `restart` False leaves it down when it ends;
    `stop_order`: lower numbers are stopped first; `settings` False: it gets none of the server's
    HOLDFAST_* settings, which hold its secrets."""

    name: str
    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    restart: bool = True
    restart_delay_s: float = 0.3
    stop_order: int = 50
    settings: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where everything listens; all on loopback in the demo."""

    host: str
    web_port: int
    redis_port: int
    store_port: int

    @property
    def web(self) -> str:
        """Base URL of the control plane."""
        return f"http://{self.host}:{self.web_port}"


def redis_process(*, binary: str, addresses: Addresses, directory: Path, password_file: Path) -> ProcessSpec:
    """A private Redis: hints only, so nothing is persisted and nothing is evicted.
    `password_file`: a configuration with `requirepass`, as everybody can read command lines."""
    options = ("--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction", "--daemonize", "no")
    bounds = ("--proto-max-bulk-len", "16mb")
    listen = ("--bind", addresses.host, "--port", str(addresses.redis_port), "--dir", str(directory))
    return ProcessSpec(
        name="redis",
        argv=(binary, str(password_file), *listen, *options, *bounds),
        stop_order=80,
        restart_delay_s=0.5,
        settings=False,
    )


def store_process(addresses: Addresses, key_file: Path, metrics_port: int = 0, *, bind: str = "") -> ProcessSpec:
    """The rendezvous store: losing the control plane must not lose it. `metrics_port` 0: any that is
    free, which it tells. `bind`: where ranks of other machines reach it; its figures stay where all else is."""
    argv = (
        sys.executable, "-m", "trainer.store", "--host", bind or addresses.host, "--port", str(addresses.store_port),
        "--key-file", str(key_file), "--metrics-bind", f"{addresses.host}:{metrics_port}",
    )  # fmt: skip
    return ProcessSpec(name="store", argv=argv, stop_order=70, settings=False)


def web_process(addresses: Addresses) -> ProcessSpec:
    """REST API, page, browser and agent WebSockets."""
    argv = (
        sys.executable, "-m", "controlplane.config.serve",
        "--host", addresses.host, "--port", str(addresses.web_port), "--timeout-graceful-shutdown", "3",
    )  # fmt: skip
    return ProcessSpec(name="web-1", argv=argv, stop_order=30)


def outside_process(addresses: Addresses, outside: Outside) -> ProcessSpec:
    """A second web process, for agents on other machines: the same rows, over TLS, known by the certificate."""
    web = web_process(addresses)
    argv = (
        *web.argv, "--host", outside.bind, "--port", str(outside.port),
        "--tls-certificate", str(outside.certificate), "--tls-key", str(outside.key),
    )  # fmt: skip
    env = {
        "HOLDFAST_BIND": f"{outside.bind}:{outside.port}",
        "HOLDFAST_ALLOW_REMOTE_EMBEDDED": "true",
        "HOLDFAST_ALLOWED_HOSTS": ",".join(dict.fromkeys((outside.host, "127.0.0.1", "localhost"))),
        "HOLDFAST_ORIGINS": f"https://{outside.host}:{outside.port}",
        "HOLDFAST_TLS_CERTIFICATE": str(outside.certificate),
    }
    return replace(web, name="web-tls", argv=argv, env=env)


def sentinel_process() -> ProcessSpec:
    """The detector and the net under Celery."""
    return ProcessSpec(name="sentinel", argv=(sys.executable, "manage.py", "sentinel"), stop_order=20)


def worker_process(concurrency: int = 1) -> ProcessSpec:
    """Celery worker. Gossip and remote control stay on: without both it can hang for
    good after a broker kill."""
    argv = (
        sys.executable, "-m", "celery", "-A", "controlplane.config.celery", "worker",
        "--concurrency", str(concurrency), "--loglevel", "warning",
    )  # fmt: skip
    return ProcessSpec(name="worker", argv=argv, stop_order=10)


def beat_process(directory: Path) -> ProcessSpec:
    """A tick that only wakes; running none, one or three changes nothing but latency."""
    schedule = str(directory / "celerybeat-schedule")
    argv = (
        sys.executable, "-m", "celery", "-A", "controlplane.config.celery", "beat",
        "--schedule", schedule, "--pidfile", "", "--loglevel", "warning",
    )  # fmt: skip
    return ProcessSpec(name="beat", argv=argv, stop_order=5)


def agent_process(
    *, addresses: Addresses, node: str, state_dir: Path, join_token_file: Path, devices: int, seed: int
) -> ProcessSpec:
    """A node's agent with the simulated probe."""
    argv = (
        sys.executable, "-m", "agents", "--server", f"ws://{addresses.host}:{addresses.web_port}",
        "--name", node, "--state-dir", str(state_dir), "--probe", "simulated",
        "--devices", str(devices), "--join-token-file", str(join_token_file),
    )  # fmt: skip
    # Several agents share this machine, so each takes a port that is free and tells it in its log.
    env = {"HOLDFAST_AGENT_SEED": str(seed), "HOLDFAST_AGENT_METRICS_BIND": f"{addresses.host}:0"}
    return ProcessSpec(name=f"agent:{node}", argv=argv, env=env, stop_order=NODE_STOP_ORDER_LAST - 45, settings=False)
