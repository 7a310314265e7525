"""A copy of the shipped Prometheus configuration with other targets and a shorter patience.

    python scripts/prometheus_drill.py OUT --target holdfast-web=127.0.0.1:8000 --interval-s 1 --for-s 0
    prometheus --config.file OUT/prometheus.yml --storage.tsdb.path OUT/data

For a drill of the alerts, and for tests: the expressions, labels and texts stay those of
deploy/prometheus, only where to scrape, how often, and how long an alert waits are changed. Run
by hand or by tests; it starts nothing.
"""

import argparse
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import yaml

SHIPPED = Path(__file__).resolve().parent.parent / "deploy" / "prometheus"


def drill(out: Path, targets: dict[str, list[str]], *, interval_s: int, for_s: int) -> Path:
    """Write the files into `out`; the configuration's path. Raises KeyError for a job that is not shipped."""
    out.mkdir(parents=True, exist_ok=True)
    config = _read("prometheus.yml")
    config["global"] = {"scrape_interval": f"{interval_s}s", "evaluation_interval": f"{interval_s}s"}
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    for name, addresses in targets.items():
        jobs[name]["static_configs"] = [{"targets": addresses}]
    config["scrape_configs"] = [jobs[name] for name in targets]
    for file in config["rule_files"]:
        rules = _read(file)
        for group in rules["groups"]:
            group["interval"] = f"{interval_s}s"
            for rule in group["rules"]:
                if "alert" in rule:
                    rule["for"] = f"{for_s}s"
        (out / file).write_text(yaml.safe_dump(rules, sort_keys=False), encoding="ascii")
    (out / "prometheus.yml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="ascii")
    return out / "prometheus.yml"


def _read(file: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((SHIPPED / file).read_text(encoding="ascii"))
    return found


def main(argv: list[str] | None = None) -> int:
    """2 where a job or a target is not known."""
    parser = argparse.ArgumentParser(description="the shipped Prometheus configuration for a drill")
    parser.add_argument("out", type=Path)
    parser.add_argument("--target", action="append", default=[], metavar="JOB=HOST:PORT", help="again for each")
    parser.add_argument("--interval-s", type=int, default=1, help="scrapes and evaluations")
    parser.add_argument("--for-s", type=int, default=0, help="how long what an alert says must be so")
    options = parser.parse_args(argv)
    targets: dict[str, list[str]] = defaultdict(list)
    for text in options.target:
        job, _, address = text.partition("=")
        targets[job].append(address)
    try:
        print(drill(options.out, targets, interval_s=options.interval_s, for_s=options.for_s))
    except KeyError as error:
        print(f"no job {error} in {SHIPPED}/prometheus.yml", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
