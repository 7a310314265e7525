"""What the images and the documents install, from nothing, is all that our programs need.

Each environment is fresh and holds the pinned packages alone (`packages`): a package that only the
tests' own environment happens to have is missing there, and what needs it does not start. The steps
are those of deploy/Dockerfile, run as they stand. What is not shown: a download and a container.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from controlplane.demo.ports import free_port
from tests.integration.backend.servers import RedisServer, _die_with_parent
from tests.integration.install import packages
from tests.integration.install.packages import ROOT, site_of

pytestmark = pytest.mark.timeout(240)
STEP_TIMEOUT_S, IMPORT_TIMEOUT_S, STOP_S = 120.0, 120.0, 15.0
IMPORT_ALL = """
import importlib, os, pkgutil, sys
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.config.settings.test")
if "controlplane.config" in sys.argv[1:]:
    import controlplane.config.celery, django
    django.setup()
failed = []
for package in sys.argv[1:]:
    found = importlib.import_module(package)
    for module in pkgutil.walk_packages(found.__path__, package + "."):
        if module.name.endswith(".__main__") or ".migrations." in module.name or ".settings." in module.name:
            continue
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            failed.append(f"{module.name}: {error}")
print("\\n".join(failed))
"""
# The demo, which starts all of Holdfast on one machine, is for a checkout.
SERVER = (
    *("access", "api", "checkpoints", "config", "dispatch", "fleet", "jobs", "live", "policy", "protocol"),
    *("recovery", "runtime", "scheduling", "sentinel", "telemetry", "simulator"),
)
CLI = ("controlplane.cli", "controlplane.sdk", "controlplane.policy", "controlplane.protocol")
# Of the protocol and the policy a node has what its own programs import.
NODE = ("agents", "trainer")
WHAT_EACH_NEEDS = {
    ("server",): tuple(f"controlplane.{name}" for name in SERVER),
    ("cli",): CLI,
    ("agent",): ("agents",),
    ("agent", "trainer"): NODE,
}


@dataclass
class Image:
    """One stage of deploy/Dockerfile, built in a directory: `work` is its WORKDIR."""

    work: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def venv(self) -> Path:
        return self.work.parent / "venv"

    @property
    def python(self) -> str:
        return str(self.venv / "bin" / "python")

    def run(self, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
        """A program of the image, by its own interpreter, until it ends."""
        return subprocess.run(
            [self.python, *argv], cwd=self.work, env={"PATH": f"{self.venv}/bin:/usr/bin:/bin"} | env,
            capture_output=True, text=True, timeout=STEP_TIMEOUT_S, check=False,
        )  # fmt: skip

    def start(self, name: str, *argv: str, **env: str) -> None:
        """One that goes on; its log beside the image."""
        with (self.work.parent / f"{name}.log").open("wb") as log:
            self.running[name] = subprocess.Popen(
                [self.python, *argv], cwd=self.work, env={"PATH": f"{self.venv}/bin:/usr/bin:/bin"} | env,
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_die_with_parent,
            )  # fmt: skip

    def stop(self) -> None:
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def logs(self) -> str:
        """The ends of all logs."""
        return "\n".join(
            f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in self.work.parent.glob("*.log")
        )


def build(stage: str, directory: Path) -> Image:
    """COPY, ARG (as it stands) and RUN of the stage, in order. Raises AssertionError where a step fails."""
    text = (ROOT / "deploy" / "Dockerfile").read_text(encoding="ascii").replace("\\\n", " ")
    lines = re.split(r"^FROM .+ AS ", text, flags=re.MULTILINE)
    steps = next(part.split("\n", 1)[1] for part in lines if part.startswith(f"{stage}\n"))
    image = Image(directory / "work")
    image.work.mkdir(parents=True)
    packages.make(image.venv)
    arguments = {"PATH": f"{image.venv}/bin:/usr/bin:/bin"}
    for line in steps.splitlines():
        word, _, rest = line.partition(" ")
        if word == "COPY":
            *sources, target = rest.split()
            for source in sources:
                copy(ROOT / source, image.work / target, into=len(sources) > 1 or target.endswith("/"))
        if word == "ARG":
            name, _, value = rest.partition("=")
            arguments[name] = value
        if word == "RUN":
            done = subprocess.run(
                ["sh", "-euc", rest], cwd=image.work, env=arguments, timeout=STEP_TIMEOUT_S,
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"RUN {rest}\n{done.stdout}{done.stderr}"
    return image


def copy(source: Path, target: Path, *, into: bool) -> None:
    """As COPY does: a directory's content, or a file."""
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        return
    place = target / source.name if into or target.is_dir() else target
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, place)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    image = build("server", tmp_path_factory.mktemp("server"))
    yield image
    image.stop()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    image = build("node", tmp_path_factory.mktemp("node"))
    yield image
    image.stop()


def missing(python: str, cwd: Path, modules: tuple[str, ...]) -> list[str]:
    """Modules of these packages that cannot be imported there, with the reason."""
    done = subprocess.run(
        [python, "-c", IMPORT_ALL, *modules], cwd=cwd, capture_output=True, text=True, timeout=IMPORT_TIMEOUT_S,
        env={"PATH": "/usr/bin:/bin", "HOLDFAST_STATE_DIR": str(cwd / "state"), "PYTHONDONTWRITEBYTECODE": "1"},
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1] if done.stdout.strip() else []


@pytest.mark.parametrize("extras", WHAT_EACH_NEEDS, ids="+".join)
def test_the_extras_bring_all_that_their_part_imports(extras: tuple[str, ...], tmp_path: Path) -> None:
    venv, source = tmp_path / "venv", tmp_path / "source"
    packages.make(venv)
    for found in packages.closure(extras):
        packages.put(found, site_of(venv))
    for name in ("controlplane", "agents", "trainer"):
        copy(ROOT / name, source / name, into=False)
    assert missing(str(venv / "bin" / "python"), source, WHAT_EACH_NEEDS[extras]) == []


def test_a_package_that_is_not_pinned_is_found_missing(server: Image) -> None:
    """As `packaging` was: worker and beat need it, and only the tests' environment had it."""
    there = site_of(server.venv) / "packaging"
    away = there.with_name("away")
    there.rename(away)
    try:
        found = missing(server.python, server.work, ("controlplane.config", "controlplane.runtime"))
    finally:
        away.rename(there)
    assert "controlplane.runtime.broker: No module named 'packaging'" in found
    assert missing(server.python, server.work, ("controlplane.config", "controlplane.runtime")) == []


def test_every_program_of_the_images_starts_and_becomes_healthy(server: Image, node: Image, tmp_path: Path) -> None:
    redis = RedisServer(tmp_path)
    redis.start()
    port, store = free_port("127.0.0.1"), free_port("127.0.0.1")
    env = {
        "HOLDFAST_PROFILE": "embedded",
        "HOLDFAST_STATE_DIR": str(tmp_path / "state"),
        "HOLDFAST_REDIS_URL": redis.url,
        "HOLDFAST_METRICS_BIND": "127.0.0.1:0",
        "HOLDFAST_STORE_ADDRESS": f"127.0.0.1:{store}",
    }
    try:
        for command in (("migrate", "--verbosity", "0"), ("check",)):
            done = server.run("manage.py", *command, **env)
            assert done.returncode == 0, done.stderr
        celery = ("-m", "celery", "-A", "controlplane.config.celery")
        server.start("web", "-m", "controlplane.config.serve", "--port", str(port), **env)
        server.start("sentinel", "manage.py", "sentinel", **env)
        server.start("worker", *celery, "worker", "--concurrency", "1", "--loglevel", "warning", **env)
        schedule = ("--schedule", str(tmp_path / "schedule"), "--pidfile", "")
        server.start("beat", *celery, "beat", *schedule, "--loglevel", "warning", **env)
        key = tmp_path / "state" / "store_key"
        node.start("store", "-m", "trainer.store", "--port", str(store), "--key-file", str(key))
        healthy(server, env, ("url", f"http://127.0.0.1:{port}/readyz"))
        for role in ("sentinel", "worker", "beat"):
            healthy(server, env, ("beat", role))
        healthy(node, {}, ("tcp", f"127.0.0.1:{store}"))
        enrol(server, node, env, tmp_path, port)
        assert [name for name, one in (server.running | node.running).items() if one.poll() is not None] == []
    except AssertionError as error:
        raise AssertionError(f"{error}\n{server.logs()}\n{node.logs()}") from error
    finally:
        node.stop()
        server.stop()
        redis.stop()


def healthy(image: Image, env: dict[str, str], question: tuple[str, ...]) -> None:
    """Until the image's own health check says so."""
    for _ in range(40):
        done = image.run("deploy/probe.py", *question, **env)
        if done.returncode == 0:
            return
    raise AssertionError(f"{question}: {done.stderr}")


def enrol(server: Image, node: Image, env: dict[str, str], directory: Path, port: int) -> None:
    """The node's agent becomes a node that the server's own command line shows."""
    token = server.run("manage.py", "create_join_token", "--name", "node-1", **env).stdout
    (directory / "join-token").write_text(token)
    (directory / "join-token").chmod(0o600)
    reads = server.run("manage.py", "create_admin", **env)
    assert reads.returncode == 0, reads.stderr
    secret = server.run("manage.py", "create_api_token", "admin", **env).stdout.strip()
    node.start(
        "agent", "-m", "agents", "--server", f"ws://127.0.0.1:{port}", "--name", "node-1",
        "--state-dir", str(directory / "agent"), "--probe", "simulated", "--devices", "2",
        "--metrics-bind", "127.0.0.1:0", "--join-token-file", str(directory / "join-token"),
    )  # fmt: skip
    asked = {"HOLDFAST_URL": f"http://127.0.0.1:{port}", "HOLDFAST_TOKEN": secret, "HOME": str(directory)}
    for _ in range(40):
        done = server.run("-m", "controlplane.cli", "node", "ls", "-o", "json", **asked)
        if '"connected": true' in done.stdout:
            return
    raise AssertionError(f"node-1 did not enrol: {done.stdout}{done.stderr}")
