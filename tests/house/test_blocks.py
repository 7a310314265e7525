"""Every fenced block of the documents is parsed by what it is for, and what speaks to a server is run."""

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import yaml

from controlplane.policy.document import Ground, checked
from controlplane.protocol import rest
from controlplane.protocol.spec_lint import lint
from tests.house.blocks import Block, all_blocks, blocks_of
from tests.house.tree import ROOT, read, relative

BLOCKS = tuple(all_blocks())
LANGUAGES = frozenset({"sh", "python", "yaml", "json", "sql", "mermaid", "text", "toml", "ini", "nginx", "{toctree}"})
RUN_WHOLE = frozenset({"docs/sdk.md"})
"""Pages whose Python is run, top to bottom (`tests/integration/backend/test_documents.py`)."""
DIAGRAMS = ("flowchart", "stateDiagram-v2", "sequenceDiagram", "graph")


def written(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_every_block_says_what_it_is(block: Block) -> None:
    assert block.language in LANGUAGES, "name the block's language, so that it can be checked"


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize("block", written("sh"), ids=lambda block: block.name)
def test_a_shell_block_is_shell(block: Block) -> None:
    done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", written("python"), ids=lambda block: block.name)
def test_a_python_block_is_python_and_imports_what_is_there(block: Block) -> None:
    parsed = ast.parse(block.text)
    ours = [
        (node.module, alias.name)
        for node in ast.walk(parsed)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("controlplane", "trainer", "agents"))
        for alias in node.names
    ]
    for module, name in ours:
        folder = ROOT / (module or "").replace(".", "/")
        source = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
        assert source.exists(), module
        assert re.search(rf"\b{name}\b", read(source)) or (folder / f"{name}.py").exists() or (folder / name).is_dir()


@pytest.mark.parametrize("block", written("yaml"), ids=lambda block: block.name)
def test_a_yaml_block_is_a_part_of_a_spec_that_passes(block: Block) -> None:
    told = yaml.safe_load(block.text)
    if relative(block.page) == "docs/policy.md":
        assert checked(told, Ground()) == ()
        return
    if "spec" in told:
        assert lint(told).faults == ()
        return
    whole = yaml.safe_load((ROOT / "examples" / "minimal.yaml").read_text())
    whole["spec"] |= told
    # Which fields there are, and what they take; that they fit one another is the whole spec's matter.
    wrong = [fault for fault in lint(whole).faults if any(fault.pointer.startswith(f"/spec/{name}") for name in told)]
    assert wrong == []


def test_the_entrypoint_of_the_guide_is_the_shipped_examples() -> None:
    (told,) = [yaml.safe_load(block.text) for block in written("yaml") if block.text.startswith("entrypoint:")]
    example = yaml.safe_load((ROOT / "examples" / "entrypoint.yaml").read_text())
    assert told["entrypoint"] == example["spec"]["entrypoint"]


def test_where_a_program_begins_is_what_the_unit_and_the_image_say() -> None:
    (unit,) = re.findall(r"^WorkingDirectory=(.+)$", (ROOT / "deploy/systemd/holdfast-agent.service").read_text(), re.M)
    (image,) = re.findall(r"^WORKDIR (.+)$", (ROOT / "deploy/Dockerfile").read_text(), re.M)
    told = read(ROOT / "docs" / "hooks.md")
    assert f"`{unit}` under the shipped systemd unit, `{image}` in the\n  image" in told


@pytest.mark.parametrize("block", written("json"), ids=lambda block: block.name)
def test_a_json_block_that_shows_a_problem_is_what_the_schema_says(block: Block) -> None:
    value = json.loads(block.text)
    problem = msgspec.convert(value, rest.Problem)
    schema = json.loads((ROOT / "controlplane" / "api" / "openapi.json").read_text())["components"]["schemas"]
    known = schema["Problem"]["properties"]
    assert set(value) <= set(known)
    assert problem.errors and all(set(error) <= set(schema["FieldError"]["properties"]) for error in value["errors"])


@pytest.mark.parametrize("block", written("mermaid"), ids=lambda block: block.name)
def test_a_diagram_is_of_a_kind_that_is_drawn(block: Block) -> None:
    assert block.text.split()[0] in DIAGRAMS


def test_the_lines_for_a_framework_are_those_of_its_example() -> None:
    page = ROOT / "docs" / "hooks.md"
    for heading, example in (("HoldfastCallback", "megatron_bridge.py"), ("Hooked", "megatron_lm.py")):
        (block,) = [b for b in blocks_of(page) if b.language == "python" and heading in b.text]
        source = _squeezed(read(ROOT / "examples" / example))
        for line in block.text.splitlines():
            code = _squeezed(line.partition("#")[0])
            if code and "(" in code and "holdfast" in code.lower():
                assert code.rstrip(":") in source, f"{example} has no {code!r}"


def test_the_five_lines_run_as_they_stand_where_no_agent_is() -> None:
    (block,) = [
        b for b in blocks_of(ROOT / "docs" / "hooks.md") if b.text.startswith("from trainer import hooks\n\nrun")
    ]
    own = "import sys\n\nsteps, tokens, own_path = 3, 8, None\nbuild, load, save = list, print, print\n"
    own += "train = lambda step: print('step', step) or 1.0\n"
    done = subprocess.run(
        [sys.executable, "-c", own + block.text], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:3] == ["step 0", "step 1", "step 2"]


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def test_every_block_that_speaks_to_a_server_is_run() -> None:
    from tests.integration.backend.test_documents import CURL_PAGES, PYTHON_PAGES
    from tests.integration.install.machine import PAGE

    assert sorted({relative(block.page) for block in BLOCKS if block.asks}) == sorted((*CURL_PAGES, relative(PAGE)))
    sdk = {relative(block.page) for block in written("python") if "controlplane.sdk" in block.text}
    assert sorted(sdk) == sorted(PYTHON_PAGES) == sorted(RUN_WHOLE)


def ran() -> set[str]:
    """Shell blocks that a test runs as they are written, by their first line."""
    from tests.integration.backend.test_documents import COMMAND_PAGES, CURL_PAGES, NOT_RUN
    from tests.integration.install.blocks_run import RUN_HERE as RUN_ALONE
    from tests.integration.install.machine import PAGE
    from tests.integration.trainer.blocks_run import RUN_HERE

    shell = [block for block in BLOCKS if block.language == "sh"]
    whole = [block for block in shell if block.page == PAGE or (block.asks and relative(block.page) in CURL_PAGES)]
    orders = [block for block in shell if block.orders and relative(block.page) in COMMAND_PAGES]
    return {block.first for block in (*whole, *orders)} - set(NOT_RUN) | set(RUN_HERE) | set(RUN_ALONE)


def test_every_shell_block_is_run_or_is_named_with_the_reason_why_not() -> None:
    from tests.integration.backend.test_documents import NOT_RUN

    shell = {block.first for block in BLOCKS if block.language == "sh"}
    assert shell == ran() | set(NOT_RUN), "run it (test_documents.py), or say why it cannot be"
    assert all(reason.strip() for reason in NOT_RUN.values())


def test_no_more_blocks_are_left_out_than_there_were() -> None:
    from tests.integration.backend.test_documents import MOST_NOT_RUN, NOT_RUN

    assert len(NOT_RUN) <= MOST_NOT_RUN, "this number only ever becomes smaller"


def test_no_two_blocks_of_a_page_begin_alike() -> None:
    firsts = [block.first for block in BLOCKS if block.language == "sh" and "install.md" not in block.first]
    assert len(firsts) == len(set(firsts))


def test_the_fronts_of_the_project_are_among_the_pages() -> None:
    pages = {relative(block.page) for block in BLOCKS}
    assert {"README.md", "ARCHITECTURE.md", "docs/quickstart.md"} <= pages


def test_what_make_is_told_to_do_is_a_target() -> None:
    told = [name for block in written("sh") for name in re.findall(r"^make ([\w-]+)", block.text, re.M)]
    targets = set(re.findall(r"^([\w-]+):", read(ROOT / "Makefile"), re.M))
    assert told and set(told) <= targets


def test_a_job_that_a_page_asks_about_is_one_that_it_submitted() -> None:
    page = Path(ROOT / "docs" / "api.md")
    asked = {name for block in blocks_of(page) for name in re.findall(r"\$URL/jobs/([\w$-]+)", block.text)}
    assert asked == {"$JOB"}


def test_a_comment_between_blocks_is_one_that_the_run_knows() -> None:
    from tests.integration.backend.test_documents import BETWEEN

    assert {block.note for block in BLOCKS} - {""} == set(BETWEEN)
