"""Follow the pages about containers on this machine, as written, to a job that outlives a killed rank.

    python -m scripts.compose_drill [--stand-ins] [--wheels DIR] [--keep]

What is run: the block of deploy/secrets/README.md, the block with `docker compose` of docs/operations.md (the join
token put where the page says between its last two lines), then what a user does: a token, a job over TLS, a rank of it
killed, every container's own health check, a restart of all. Needs an engine (`DOCKER_HOST` names another), the compose
plug-in, root, and a registry; `--stand-ins` makes the base images of Debian's packages instead (compose_images.py).
It works in a copy of the checkout as committed, in a project of its own, and removes its containers and volumes.
"""

import argparse
import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.compose_images import stand_ins

ROOT = Path(__file__).resolve().parents[1]
PORT = 18443
HEALTHY_WITHIN_S = 300.0
TRAINS_WITHIN_S = 240.0
RECOVERS_WITHIN_S = 240.0
ALWAYS = {"postgres", "redis", "web-1", "web-2", "sentinel", "worker", "beat", "store", "proxy"}
JOB = {
    "metadata": {"name": "in-containers"},
    "spec": {
        "resources": {"nodes": 2, "gpus_per_node": 2},
        "training": {"steps": 400, "global_batch": 8, "step_delay_s": 0.1},
        "checkpoint": {"interval_steps": 50, "keep": 2},
    },
}


class Failed(RuntimeError):
    """What was to be seen was not."""


class Drill:
    """One copy of the checkout and its containers."""

    def __init__(self, here: Path) -> None:
        self.here = here
        self.env = os.environ | {"COMPOSE_PROJECT_NAME": "holdfast-drill"}
        self.token = ""

    def typed(self, line: str) -> str:
        """What it says at a terminal, as a person would run it. Raises Failed as `sh` does."""
        print(f"$ {line}", flush=True)
        return self.sh(f"script --quiet --return --command {shlex.quote(line)} /dev/null", shown=False)

    def sh(self, command: str, *, at: str = ".", shown: bool = True) -> str:
        """Its standard output. Raises Failed with what it said."""
        if shown:
            print(f"$ {command}", flush=True)
        done = subprocess.run(
            ["bash", "-euc", command], cwd=self.here / at, env=self.env, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise Failed(f"{command}: exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        return done.stdout

    def settings(self) -> None:
        """`.env` from its example, filled in."""
        text = (self.here / "deploy" / "env.example").read_text()
        text = re.sub(r"^([A-Z_]+)=$", lambda found: f"{found[1]}={secrets.token_hex(32)}", text, flags=re.MULTILINE)
        more = f"\nHTTPS_PORT={PORT}\nTORCH=cpu\n"
        (self.here / ".env").write_text(
            text.replace("https://holdfast.local:8443", f"https://holdfast.local:{PORT}") + more
        )

    def api(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The server's answer, asked through the proxy by its name, its certificate checked."""
        data = ["--header", "Content-Type: application/json", "--data", json.dumps(body)] if body is not None else []
        done = subprocess.run(
            ["curl", "--silent", "--show-error", "--fail-with-body", "--max-time", "20",
             "--resolve", f"holdfast.local:{PORT}:127.0.0.1", "--cacert", str(self.here / "deploy/secrets/tls.crt"),
             "--header", f"Authorization: Bearer {self.token}", *data, f"https://holdfast.local:{PORT}/api/v1{path}"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise Failed(f"{path}: {done.stdout[-1000:]}{done.stderr[-500:]}")
        return json.loads(done.stdout)

    def wait(self, what: str, seen: Callable[[], Any], *, within_s: float) -> Any:
        """Until it is seen. Raises Failed with what the containers say."""
        began_s, last = time.monotonic(), ""
        while time.monotonic() - began_s < within_s:
            try:
                if found := seen():
                    print(f"  {what} ({time.monotonic() - began_s:.0f} s)", flush=True)
                    return found
            except Failed as error:
                last = str(error)
            time.sleep(2.0)
        logs = self.sh("docker compose --profile nodes logs --tail 25 2>&1", shown=False)
        raise Failed(f"not within {within_s:.0f} s: {what}. {last}\n{logs[-12000:]}")

    def states(self) -> dict[str, str]:
        """State or health of each container that runs."""
        lines = self.sh("docker compose --profile nodes ps --format json", shown=False).splitlines()
        rows = [json.loads(line) for line in lines if line.strip()]
        return {row["Service"]: row.get("Health") or row["State"] for row in rows}

    def is_well(self, services: set[str]) -> bool:
        """All run, and those with a check pass it."""
        states = self.states()
        return all(states.get(name) in ("healthy", "running") for name in services)


def block(page: str, start: str) -> list[str]:
    """The lines of the shell block of a page that has a line beginning so. Raises Failed where there is none."""
    for found in re.findall(r"```sh\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL):
        lines = [line for line in found.splitlines() if line.strip()]
        if any(line.startswith(start) for line in lines):
            return lines
    raise Failed(f"{page} has no block with {start}")


def bases(checkout: Path) -> set[str]:
    """The images that are not built of the checkout."""
    text = (checkout / "docker-compose.yml").read_text() + (checkout / "deploy" / "Dockerfile").read_text()
    names = set(re.findall(r"(?:image: |FROM )([a-z/-]+:[0-9][\w.-]+)", text))
    return {name for name in names if not name.startswith("holdfast/")}


def first_start(drill: Drill) -> None:
    """What the pages say, in their order."""
    drill.settings()
    drill.sh("\n".join(block("deploy/secrets/README.md", "openssl")), at="deploy/secrets")
    for line in block("docs/operations.md", "docker compose"):
        if "--profile nodes" in line:
            drill.wait("every process is healthy", lambda: drill.is_well(ALWAYS), within_s=HEALTHY_WITHIN_S)
        said = drill.typed(line)
        if "create_join_token" in line:
            (drill.here / "deploy/secrets/join_token").write_text(token_in(said))


def token_in(said: str) -> str:
    """The one word of it that is a token. Raises Failed where there is none."""
    found = re.search(r"\b(holdfast_[A-Za-z0-9_-]{20,})", said)
    if found is None:
        raise Failed(f"no token in: {said}")
    return found[1]


def use(drill: Drill) -> None:
    """A job over TLS, a rank of it killed, and everything started again while it trains."""
    drill.token = token_in(
        drill.sh("docker compose exec -T web-1 python manage.py create_api_token admin --name drill --scope submit")
    )
    drill.wait(
        "both agents are connected", lambda: drill.api("/overview")["health"]["agents_connected"] == 2, within_s=120
    )
    job = drill.api("/jobs", JOB)["id"]

    def step(least: int) -> Callable[[], bool]:
        return lambda: drill.api(f"/jobs/{job}")["committed_step"] >= least

    drill.wait("it trains", step(10), within_s=TRAINS_WITHIN_S)
    replicas = [row for row in drill.api(f"/jobs/{job}/replicas")["items"] if row["current"]]
    rank = replicas[0]["ranks"][0]
    drill.sh(f"docker compose exec -T agent-{rank['node_name'][-1]} sh -c 'kill -KILL {rank['pid']}'")
    recovered = drill.wait(
        "the incident is resolved",
        lambda: [row for row in drill.api("/incidents")["items"] if row["state"] == "resolved"],
        within_s=RECOVERS_WITHIN_S,
    )
    print(f"  {recovered[0]['title']}: {recovered[0]['resolution']}", flush=True)
    at = drill.api(f"/jobs/{job}")["committed_step"]
    drill.sh("docker compose restart web-1 web-2 sentinel worker beat postgres redis")
    drill.wait("it trains on after all of them were started again", step(at + 20), within_s=TRAINS_WITHIN_S)
    drill.wait("every process is healthy again", lambda: drill.is_well(ALWAYS), within_s=HEALTHY_WITHIN_S)
    shown = drill.api(f"/jobs/{job}")
    if (shown["restarts"], shown["attempt"]) != (0, 1):
        raise Failed(f"it was restarted: {shown['state_reason']}")


def main(argv: list[str]) -> int:
    """0 when all was seen; 1 with what was not."""
    parser = argparse.ArgumentParser(prog="python -m scripts.compose_drill", description=__doc__)
    parser.add_argument("--stand-ins", action="store_true", help="make the base images of Debian's packages")
    parser.add_argument("--wheels", type=Path, help="a folder of packages that no index has (torch's CPU build)")
    parser.add_argument("--keep", action="store_true", help="leave the containers")
    args = parser.parse_args(argv)
    work = Path(tempfile.mkdtemp(prefix="holdfast-compose-"))
    drill = Drill(work / "checkout")
    try:
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(drill.here)], check=True)
        if args.stand_ins:
            stand_ins(bases(drill.here), work, wheels=args.wheels)
            drill.env["TORCH_INDEX"] = ""
        first_start(drill)
        use(drill)
    except Failed as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    finally:
        if not args.keep:
            drill.sh("docker compose --profile nodes down --volumes --timeout 5 || true")
            shutil.rmtree(work, ignore_errors=True)
    print("passed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
