"""What the drill of the containers rests on is what docker-compose.yml, the Dockerfile and the pages say.

The drill itself needs a container engine: `make compose-drill`."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts import compose_drill, compose_images
from tests.house.tree import ROOT


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def services() -> dict[str, Any]:
    return yaml.safe_load(text_of("docker-compose.yml"))["services"]


def test_every_base_image_has_a_stand_in() -> None:
    names = compose_drill.bases(ROOT)
    assert {name.partition(":")[0] for name in names} == set(compose_images.FILES)
    built_on = re.findall(r"^FROM (\S+)", text_of("deploy/Dockerfile"), re.MULTILINE)
    named = {built_on[0]} | {row["image"] for row in services().values() if "build" not in row}
    assert names == named


def test_it_waits_for_every_process_that_always_runs() -> None:
    always = {name for name, row in services().items() if "profiles" not in row and row.get("restart") != "no"}
    assert always == compose_drill.ALWAYS


@pytest.mark.parametrize(
    ("page", "start", "last"),
    [
        ("deploy/secrets/README.md", "openssl", "chmod 0400"),
        ("docs/operations.md", "docker compose", "docker compose --profile nodes up"),
    ],
)
def test_it_runs_the_blocks_of_the_pages(page: str, start: str, last: str) -> None:
    assert compose_drill.block(page, start)[-1].startswith(last)


def test_the_quick_starts_block_is_a_part_of_what_it_runs() -> None:
    whole = compose_drill.block("docs/operations.md", "docker compose")
    assert compose_drill.block("docs/quickstart.md", "docker compose") == whole[:3]


def test_every_setting_that_the_example_leaves_empty_is_filled(tmp_path: Path) -> None:
    (tmp_path / "deploy").mkdir()
    (tmp_path / "deploy" / "env.example").write_text(text_of("deploy/env.example"))
    compose_drill.Drill(tmp_path).settings()
    made = dict(line.split("=", 1) for line in (tmp_path / ".env").read_text().splitlines() if re.match("[A-Z]", line))
    needed = set(re.findall(r"\$\{([A-Z_]+):\?", text_of("docker-compose.yml")))
    assert needed and all(len(made[name]) >= 32 for name in needed)
    assert f":{made['HTTPS_PORT']}" in made["HOLDFAST_ORIGINS"]
