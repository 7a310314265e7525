"""`make demo`: starts everything on this machine and prints where to look.

Loopback only. Ctrl-C stops every process that it started, a second one ends them at once.
"""

import argparse
import logging
import os
import sys
from pathlib import Path

from controlplane.config.guards import private_file
from controlplane.demo.config import DemoConfig
from controlplane.demo.directory import DirectoryError, take
from controlplane.demo.ending import Ending
from controlplane.demo.installation import REPOSITORY, Installation, InstallationError
from controlplane.demo.job import demo_job
from controlplane.demo.ports import MissingProgram

BANNER = """
  Holdfast is up.

    page      {url}
    user      admin
    password  {password}   (works once; the session lasts)

  A job of three replicas is being submitted; the page shows it in a few seconds.
  Break something: press "Inject a fault" on the page, or run
    {python} -m controlplane.cli chaos kill-rank
  Logs: {logs}
  Ctrl-C stops everything.
"""


def parse(argv: list[str]) -> argparse.Namespace:
    """Command line of the demo."""
    parser = argparse.ArgumentParser(prog="python -m controlplane.demo", description=__doc__)
    parser.add_argument("--port", type=int, default=8000, help="port of the page (another one if it is taken)")
    parser.add_argument("--dir", type=_absolute, default="var/demo", help="where the demo keeps its files")
    parser.add_argument("--keep", action="store_true", help="continue with the files of the last demo")
    parser.add_argument("--no-job", action="store_true", help="start without submitting the demo job")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--spare-nodes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.0, help="stop by itself after this long (0: never)")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Run until Ctrl-C, SIGTERM or --seconds."""
    args = parse(argv)
    os.chdir(REPOSITORY)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        take(args.dir, keep=args.keep)
    except DirectoryError as error:
        print(f"The demo could not start: {error}.", file=sys.stderr)
        return 1
    config = DemoConfig(directory=args.dir, port=args.port, nodes=args.nodes, spare_nodes=args.spare_nodes)
    installation = Installation(config, stopped=lambda: ending.asked())
    ending = Ending(installation.supervisor.kill_all)
    print("Starting Holdfast: database, Redis, web, sentinel, worker, beat and agents ...", flush=True)
    try:
        installation.start()
        password = installation.one_time_password()
        url = installation.addresses.web
        print(BANNER.format(url=url, password=password, logs=config.logs, python=sys.executable), flush=True)
        if not args.no_job:
            submit_demo_job(installation)
        if args.seconds:
            ending.after(args.seconds)
        installation.supervisor.run(until=ending.asked)
    except (InstallationError, MissingProgram) as error:
        print(f"The demo could not start: {error}", file=sys.stderr)
        return 1
    finally:
        print("Stopping ... (again: at once)", flush=True)
        installation.supervisor.stop_all()
    return 0


def _absolute(path: str) -> Path:
    """Relative to where the demo was started; its processes work in the checkout."""
    return Path(path).resolve()


def submit_demo_job(installation: Installation) -> None:
    """Submit the way a user does: with a token, through the REST API."""
    from controlplane.sdk import Client

    token = installation.api_token("admin")
    private_file(installation.config.directory / "token", token)
    (installation.config.directory / "url").write_text(installation.addresses.web)
    with Client(installation.addresses.web, token=token) as client:
        client.jobs.submit(demo_job())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
