"""V1: the server opens a job's training data below the roots of the settings alone, and nothing else that a
spec names: what an undisturbed run shows of its losses would tell each byte of it."""

import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from controlplane.checkpoints.places import Outside
from controlplane.config import env
from controlplane.jobs.models import StepRecord
from controlplane.protocol.launch import TrainerConfig
from controlplane.protocol.spec import Checkpoint, Model, Parallelism, Training
from controlplane.recovery import proof
from controlplane.recovery.certificate import certify
from controlplane.recovery.models import Incident
from controlplane.recovery.reconcile import reconcile_job
from controlplane.recovery.reference import Length, task_of
from controlplane.runtime.clock import ago
from controlplane.runtime.sandbox.service import Task
from tests.integration.backend.builders import (
    commit_step,
    flush_all,
    install_all,
    kill_rank,
    live_ranks,
    make_fleet,
    run_job,
)

pytestmark = pytest.mark.timeout(300)

SECRET = b"the key of the server"


@dataclass(frozen=True)
class Site:
    """`root` is the one data root; `secret`, a file that everybody may read, lies beside it."""

    root: Path
    secret: Path


@pytest.fixture
def site(tmp_path: Path, settings: Settings) -> Site:
    root, secret = tmp_path / "data", tmp_path / "secret"
    root.mkdir(mode=0o755)
    secret.write_bytes(SECRET)
    secret.chmod(0o644)
    settings.DATA_ROOTS = (str(root),)
    return Site(root, secret)


def file_at(path: Path, content: bytes = b"text", mode: int = 0o644) -> str:
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


def config_of(data: str | None) -> TrainerConfig:
    return TrainerConfig(
        model=Model(), parallelism=Parallelism(dp=1), training=Training(data=data), checkpoint=Checkpoint(),
        checkpoint_dir="none", replicas=1, store="127.0.0.1:1",
    )  # fmt: skip


def opened(data: str | None, place: Path) -> tuple[Task, list[bytes]]:
    """The task, and what it hands to the sandbox."""
    with ExitStack() as held:
        task = task_of(config_of(data), place, held, length=Length(wall_s=1.0))
        return task, [os.pread(descriptor, 100, 0) for descriptor in task.inputs]


def outside(site: Site) -> str:
    return str(site.secret)


def beside(site: Site) -> str:
    return file_at(site.root.with_name("database"), SECRET)


def suffix_of_the_root(site: Site) -> str:
    file_at(site.root.with_name("data.bin"), SECRET)
    return str(site.root)


def link(site: Site) -> str:
    (site.root / "text").symlink_to(site.secret)
    return str(site.root / "text")


def link_to_etc(site: Site) -> str:
    (site.root / "text").symlink_to("/etc/passwd")
    return str(site.root / "text")


def link_of_a_part(site: Site) -> str:
    file_at(site.root / "set.idx")
    (site.root / "set.bin").symlink_to(site.secret)
    return str(site.root / "set")


def link_of_a_directory(site: Site) -> str:
    (site.root / "set").symlink_to(site.secret.parent)
    return str(site.root / "set" / site.secret.name)


def upwards(site: Site) -> str:
    return f"{site.root}/../{site.secret.name}"


def upwards_before_a_scheme(site: Site) -> str:
    (site.root / "a:").mkdir()
    return f"{site.root}/a:/../../{site.secret.name}://x"


def pipe(site: Site) -> str:
    os.mkfifo(site.root / "pipe")
    (site.root / "pipe").chmod(0o644)
    return str(site.root / "pipe")


def device(site: Site) -> str:
    return "/dev/zero"


def of_the_kernel(site: Site) -> str:
    return "/proc/self/environ"


def by_descriptor(site: Site) -> str:
    (site.root / "self").symlink_to("/proc/self")
    return str(site.root / "self" / "environ")


def for_its_group(site: Site) -> str:
    return file_at(site.root / "team", SECRET, 0o640)


def in_a_closed_directory(site: Site) -> str:
    (site.root / "team").mkdir()
    path = file_at(site.root / "team" / "text", SECRET)
    (site.root / "team").chmod(0o750)
    return path


def with_a_nul(site: Site) -> str:
    return f"{site.root}/text\0"


@pytest.mark.parametrize(
    "name",
    [
        outside, beside, suffix_of_the_root, link, link_to_etc, link_of_a_part, link_of_a_directory, upwards,
        upwards_before_a_scheme, pipe, device, of_the_kernel, by_descriptor, for_its_group, in_a_closed_directory,
        with_a_nul,
    ],
)  # fmt: skip
def test_nothing_else_that_a_spec_names_is_opened(name: Callable[[Site], str], site: Site, tmp_path: Path) -> None:
    data = name(site)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(Outside):
        opened(data, tmp_path)
    assert set(os.listdir("/proc/self/fd")) <= before, "nothing stays open"


def test_a_device_below_the_root_is_not_opened(site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Opening a pipe or a device may do something already."""
    real, names = os.open, list[str]()
    monkeypatch.setattr(
        os, "open", lambda path, *more, **others: (names.append(str(path)), real(path, *more, **others))[1]
    )
    with pytest.raises(Outside, match="no plain file"):
        opened(pipe(site), tmp_path)
    assert names == [str(site.root)]


def test_without_the_setting_no_data_is_opened_and_the_refusal_names_it(settings: Settings, tmp_path: Path) -> None:
    settings.DATA_ROOTS = ()
    with pytest.raises(Outside, match="an administrator adds its directory to HOLDFAST_DATA_ROOTS"):
        opened(file_at(tmp_path / "text"), tmp_path)
    assert opened(None, tmp_path)[1] == [], "the shipped text needs none"


def test_data_below_a_root_is_opened_also_where_the_root_is_a_link(
    site: Site, settings: Settings, tmp_path: Path
) -> None:
    (site.root / "team").mkdir(mode=0o755)
    text = file_at(site.root / "team" / "text")
    task, found = opened(text, tmp_path)
    assert found == [b"text"]
    assert task.links == {"data": "{in0}"}
    for part in ("bin", "idx", "json"):
        file_at(site.root / f"set.{part}", part.encode())
    (site.root / "set").mkdir()
    task, found = opened(str(site.root / "set"), tmp_path)
    assert dict(zip(task.links, found, strict=True)) == {"data.bin": b"bin", "data.idx": b"idx", "data.json": b"json"}
    (tmp_path / "link").symlink_to(site.root)
    settings.DATA_ROOTS = (str(tmp_path / "link"),)
    assert opened(f"{tmp_path}/link/team/text", tmp_path)[1] == [b"text"], "the root is the administrator's word"


def incident_of(data: str, settings: Settings, place: Path) -> Incident:
    """Of a job that trains on `data` and lost a rank."""
    settings.REFERENCE_RUNS, settings.REFERENCE_DIR = True, place
    fleet = make_fleet(5)
    job = run_job(fleet, training=Training(steps=100, global_batch=12, data=data))
    for row in live_ranks(job):
        if row.replica.index == 1:
            kill_rank(fleet, row)
    reconcile_job(job.id)
    flush_all(fleet, job, committed=2)
    reconcile_job(job.id)
    install_all(fleet, job)
    for step in range(2, 6):
        commit_step(fleet, job, step)
    StepRecord.objects.filter(job=job).update(at=ago(30.0))
    Incident.objects.filter(job=job).update(opened_at=ago(45.0), resolved_at=ago(20.0))
    return Incident.objects.get(job=job)


def losses_of(incident: Incident) -> dict[str, object]:
    checks = certify(incident)["checks"]
    return next(check for check in checks if check["name"] == "loss_matches_reference")


@pytest.mark.django_db
def test_a_certificate_says_not_judged_why_and_how_to_mend_it(site: Site, settings: Settings, tmp_path: Path) -> None:
    incident = incident_of(str(site.secret), settings, tmp_path / "references")
    assert not proof.comes(incident)
    told = losses_of(incident)
    assert told["ok"] is None
    assert str(told["detail"]).startswith(f"not judged: the server opens training data below {site.root} only")
    assert str(told["detail"]).endswith("an administrator adds its directory to HOLDFAST_DATA_ROOTS")


@pytest.mark.django_db
def test_data_that_turns_out_to_be_a_link_gives_no_run_and_the_certificate_says_so(
    site: Site, settings: Settings, tmp_path: Path
) -> None:
    incident = incident_of(link(site), settings, tmp_path / "references")
    assert proof.comes(incident), "by its text it lies below the root"
    proof.folder(incident).mkdir(parents=True)
    assert incident.job is not None
    assert proof._start(config_of(link_path := str(site.root / "text")), proof.folder(incident), 5) is None
    assert not proof.comes(incident)
    assert proof.why_missing(incident) == (
        f"not judged: {link_path} is a link or no plain file, and the server opens neither as training data"
    )


@pytest.mark.django_db
@pytest.mark.parametrize(("off", "shown", "ok"), [(1.23456789e-6, 1.23e-6, True), (0.00123456789, 0.00123, False)])
def test_a_difference_is_shown_to_three_digits_and_judged_in_full(
    off: float, shown: float, ok: bool, site: Site, settings: Settings, tmp_path: Path
) -> None:
    incident = incident_of(file_at(site.root / "text"), settings, tmp_path / "references")
    proof.folder(incident).mkdir(parents=True)
    losses = {"losses": [4.0] * 5 + [4.0 + off], "tolerance": 1e-5}
    (proof.folder(incident) / "losses.json").write_text(json.dumps(losses))
    told = losses_of(incident)
    assert (told["value"], told["limit"], told["ok"]) == (shown, 6e-5, ok)


@pytest.mark.django_db
def test_a_difference_just_over_its_limit_is_red_though_both_are_shown_alike(
    site: Site, settings: Settings, tmp_path: Path
) -> None:
    incident = incident_of(file_at(site.root / "text"), settings, tmp_path / "references")
    proof.folder(incident).mkdir(parents=True)
    losses = {"losses": [4.0] * 5 + [4.0 + 6.0001e-5], "tolerance": 1e-5}
    (proof.folder(incident) / "losses.json").write_text(json.dumps(losses))
    told = losses_of(incident)
    assert (told["value"], told["limit"], told["ok"]) == (6e-5, 6e-5, False)


@pytest.mark.parametrize(
    "roots", ["/", "/etc", "/proc/self", "relative", "/srv/../etc", "/srv:/dev", "s3://ours/a", "{state}", "{above}",
              "{state}/data"],
)  # fmt: skip
def test_a_root_that_would_open_the_server_stops_its_start(roots: str, tmp_path: Path) -> None:
    state = tmp_path / "state"
    made = env.Env(state_dir=state, data_roots=roots.format(state=state, above=tmp_path))
    with pytest.raises(ValueError, match="HOLDFAST_DATA_ROOTS"):
        env.data_roots(made)


def test_roots_are_named_by_colons(tmp_path: Path) -> None:
    assert env.data_roots(env.Env(state_dir=tmp_path, data_roots="/srv/a/: /srv/b::/srv/a")) == ("/srv/a", "/srv/b")
    assert env.data_roots(env.Env(state_dir=tmp_path)) == ()
