"""V1 and V6, at submit: a job cannot have its checkpoints where the server keeps none."""

from typing import Any

import pytest
from pytest_django.fixtures import Settings

from controlplane.config import env
from controlplane.jobs.models import Job
from tests.integration.api.conftest import SPEC

pytestmark = pytest.mark.django_db


def spec_at(place: str, name: str = "tiny") -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {**SPEC["spec"], "checkpoint": {"dir": place}}}


def local_spec(place: str, name: str = "tiny") -> dict[str, Any]:
    local = {"dir": place, "copies": 0}
    return {"metadata": {"name": name}, "spec": {**SPEC["spec"], "checkpoint": {"local": local}}}


@pytest.mark.parametrize(
    "place",
    [
        "/",
        "/proc/self",
        "/root/.ssh",
        "/etc",
        "{root}/../x",
        "{root}x",
        "{root}//a",
        "s3://others/runs",
        "s3://ours/runsx",
    ],
)
def test_a_place_below_no_root_is_refused_and_says_how_to_mend_it(place: str, caller: Any, settings: Settings) -> None:
    settings.CHECKPOINT_ROOTS = ("/srv/checkpoints", "s3://ours/runs")
    answer = caller("submit").post("/jobs", spec_at(place.format(root="/srv/checkpoints")))
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["pointer"] == "/spec/checkpoint/dir"
    assert "/srv/checkpoints" in error["fix"] or "full path" in error["fix"]
    assert not Job.objects.exists()


def test_a_place_below_a_root_is_taken(caller: Any, settings: Settings) -> None:
    settings.CHECKPOINT_ROOTS = ("/srv/checkpoints", "s3://ours/runs")
    for number, place in enumerate(("/srv/checkpoints", "/srv/checkpoints/team/a", "s3://ours/runs/a")):
        assert caller("submit").post("/jobs", spec_at(place, f"job-{number}")).status_code == 201


@pytest.mark.parametrize("place", ["/root/.ssh", "/srv/checkpointsx", "/srv/checkpoints//a", "s3://ours/runs/a", "/"])
def test_a_local_tier_below_no_root_is_refused_where_roots_are_named(
    place: str, caller: Any, settings: Settings
) -> None:
    settings.LOCAL_ROOTS = ("/srv/checkpoints", "s3://ours/runs")
    answer = caller("submit").post("/jobs", local_spec(place))
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["pointer"] == "/spec/checkpoint/local/dir"
    assert not Job.objects.exists()


def test_a_local_tier_below_a_root_is_taken_and_anywhere_where_none_is_named(caller: Any, settings: Settings) -> None:
    settings.LOCAL_ROOTS = ("/srv/checkpoints", "s3://ours/runs")
    assert caller("submit").post("/jobs", local_spec("/srv/checkpoints/fast", "job-0")).status_code == 201
    settings.LOCAL_ROOTS = None
    assert caller("submit").post("/jobs", local_spec("/nvme/fast", "job-1")).status_code == 201


@pytest.mark.parametrize(
    "roots", ["/", "/etc", "/proc/self", "relative", "/srv/../etc", "file:///x", "s3://", "{state}", "{above}"]
)
def test_a_root_that_would_open_the_server_stops_its_start(roots: str, tmp_path: Any) -> None:
    state = tmp_path / "state"
    text = roots.format(state=state, above=tmp_path)
    made = env.Env(state_dir=state, checkpoint_roots=text)
    with pytest.raises(ValueError, match="HOLDFAST_CHECKPOINT_ROOTS"):
        env.checkpoint_roots(made, state / "checkpoints")
