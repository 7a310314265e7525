"""`fields=` on lists: what is asked for, of each row, and nothing else; what is not known is named."""

import gzip
import json
from typing import Any

import pytest

from controlplane.api import openapi
from controlplane.fleet import selectors
from controlplane.recovery.models import RankLook
from controlplane.recovery.requests import checkpoint
from controlplane.runtime import bus
from controlplane.runtime.clock import now
from controlplane.runtime.ids import new_id
from tests.integration.api.conftest import SPEC, make_node
from tests.integration.api.world import running_job

pytestmark = pytest.mark.django_db
LISTS = (
    ("/nodes", "a node", ("id", "state")),
    ("/jobs", "a job", ("name", "ettr")),
    ("/incidents", "an incident", ("id", "capabilities")),
    ("/requests", "a request", ("id", "kind")),
    ("/jobs/{job_id}/replicas", "a replica", ("index", "state")),
    ("/jobs/{job_id}/steps", "a step", ("step", "loss")),
    ("/jobs/{job_id}/decisions", "a decision", ("id", "commands")),
    ("/jobs/{job_id}/incidents", "an incident", ("id", "title")),
    ("/jobs/{job_id}/checkpoints", "a checkpoint", ("step", "state")),
    ("/jobs/{job_id}/commands", "a command", ("id", "kind")),
)
AS_COLUMNS = {"/nodes:columns", "/jobs/{job_id}/mesh"}


def test_these_are_the_lists_that_take_it() -> None:
    taking = {
        path.removeprefix("/api/v1")
        for path, operations in openapi.document()["paths"].items()
        for operation in operations.values()
        if any(each["name"] == "fields" for each in operation.get("parameters", ()))
    }
    assert taking == {path for path, _, _ in LISTS} | AS_COLUMNS


def test_each_row_has_what_is_asked_for_and_nothing_else(caller: Any) -> None:
    job = running_job([make_node("a"), make_node("b")], SPEC)
    checkpoint(job, reason="r", actor="user:ada")
    reader = caller("read")
    for path, of, names in LISTS:
        where = path.format(job_id=job.id)
        whole = reader.get(where).json()
        some = reader.get(f"{where}?fields={','.join(names)}")
        assert whole["items"], path
        # Ages move between two reads.
        still = [name for name in names if name != "ettr"]
        assert [list(row) for row in some.json()["items"]] == [list(names)] * len(whole["items"])
        for row, all_of_it in zip(some.json()["items"], whole["items"], strict=True):
            assert {name: row[name] for name in still} == {name: all_of_it[name] for name in still}, path
        assert len(some.content) < len(reader.get(where).content)
        refused = reader.get(f"{where}?fields={names[0]},colour").json()
        (fault,) = refused["errors"]
        assert (refused["status"], fault["pointer"]) == (422, "/query/fields")
        assert fault["message"] == f"'colour' is no field of {of}"
        assert fault["fix"].startswith("use ") and names[0] in fault["fix"]


def test_live_state_is_read_where_a_field_of_it_is_asked_for(caller: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    node = make_node("a")
    asked: list[list[str]] = []

    def read(names: list[str]) -> dict[str, Any]:
        asked.append(names)
        return {f"node:{node.id}": {"agent": {"cpu_ratio": 0.5}, "devices": []}, "nodes": {node.id: 7.5}}

    monkeypatch.setattr(bus, "read_live_of", read)
    reader = caller("read")
    assert reader.get("/nodes?fields=name,state,capabilities").json()["items"][0]["name"] == "a"
    assert asked == []
    row = reader.get("/nodes?fields=name,last_seen_age_s,agent_cpu_ratio").json()["items"][0]
    assert (row["last_seen_age_s"], row["agent_cpu_ratio"], len(asked)) == (7.5, 0.5, 1)
    for name in selectors.LIVE:
        reader.get(f"/nodes?fields={name}")
    assert len(asked) == 1 + len(selectors.LIVE)


def test_a_name_of_another_size_or_kind_is_refused_and_empty_ones_say_nothing(caller: Any) -> None:
    make_node("a")
    reader = caller("read")
    assert reader.get("/nodes?fields=" + "a" * 1001).status_code == 422
    assert "'" + "a" * 64 + "' is no field" in reader.get("/nodes?fields=" + "a" * 900).json()["errors"][0]["message"]
    assert reader.get("/nodes?fields=").json() == reader.get("/nodes").json()
    assert [list(row) for row in reader.get("/nodes?fields=, name ,,").json()["items"]] == [["name"]]
    nothing = reader.get("/nodes?fields=,").json()["items"]
    assert [set(row) for row in nothing] == [set(row) for row in reader.get("/nodes").json()["items"]]


def test_a_list_is_compressed_where_that_is_read_and_an_object_is_not(caller: Any) -> None:
    job = running_job([make_node(f"node-{number}") for number in range(20)], SPEC)
    RankLook.objects.create(
        id=new_id("look"), job=job, replica=0, incarnation=1, rank=0, look="log", method="tail", text="key " * 1_000,
        at=now(),
    )  # fmt: skip
    reader = caller("read")
    for path, packed in (
        (f"/jobs/{job.id}/diagnostics", False),
        ("/nodes", True),
        (f"/jobs/{job.id}/replicas", True),
        (f"/jobs/{job.id}", False),
        ("/jobs?q=x", False),
    ):
        plain = reader.get(path)
        some = reader.get(path, **{"Accept-Encoding": "gzip"})
        assert plain.get("Content-Encoding") is None
        assert (some.get("Content-Encoding") == "gzip") is packed, path
        assert int(some["Content-Length"]) == len(some.content)
        if packed:
            assert list(json.loads(gzip.decompress(some.content))) == list(plain.json())
            assert len(some.content) * 3 < len(plain.content)
            assert "Accept-Encoding" in plain["Vary"]
            assert "Accept-Encoding" in some["Vary"]


def test_no_list_has_a_secret_which_its_length_could_betray(caller: Any) -> None:
    admin = caller("admin")
    shown = admin.post("/tokens", {"name": "ci", "scope": "read"}).json()["token"]
    joins = admin.post("/join-tokens", {"name": "n9"}).json()["token"]
    for path in ("/tokens", "/join-tokens", "/audit", "/events", "/settings"):
        text = admin.get(path).content.decode()
        assert shown not in text
        assert joins not in text
