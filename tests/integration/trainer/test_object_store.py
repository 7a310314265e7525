"""A directory and object stores are one API; credentials that end are renewed; a job saves
to s3:// and resumes from there."""

import datetime
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from controlplane.protocol.launch import RankRef, Resume
from controlplane.protocol.rank import CheckpointReport, StepReport
from controlplane.protocol.spec import Checkpoint, Training
from tests.integration.trainer.cluster import Cluster, tiny_config
from tests.integration.trainer.object_store import BUCKET, NEW, OLD, Door, GoogleStore, ObjectStore
from tests.unit.trainer.test_manifest import seal
from trainer.checkpoint import manifest
from trainer.checkpoint.fence import Fence
from trainer.checkpoint.objects import CHUNK_BYTES
from trainer.checkpoint.resume import fetch
from trainer.checkpoint.retention import prune
from trainer.checkpoint.staging import outgoing
from trainer.checkpoint.storage import Storage, storage_at
from trainer.errors import CheckpointFault
from trainer.reference import TOLERANCE

pytestmark = pytest.mark.trainer
Make = Callable[..., Cluster]


@pytest.fixture(scope="module")
def object_store() -> Iterator[ObjectStore]:
    store = ObjectStore()
    yield store
    store.close()


@pytest.fixture
def credentials(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """This process uses the store; the file is where its keys come from."""
    for name, value in object_store.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    path = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    give(path, NEW)
    return path


@pytest.fixture(scope="module")
def google_store() -> Iterator[GoogleStore]:
    store = GoogleStore()
    yield store
    store.close()


@pytest.fixture(params=["directory", "s3", "gs"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Storage:
    if request.param == "directory":
        return storage_at(tmp_path / "root")
    if request.param == "s3":
        request.getfixturevalue("credentials")
        return storage_at(f"s3://{BUCKET}/{tmp_path.name}")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", request.getfixturevalue("google_store").url)
    # Else gcsfs asks Google itself what kind of bucket it is.
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    return storage_at(f"gs://{BUCKET}/{tmp_path.name}")


def give(path: Path, key: str) -> None:
    path.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = secret\n")


def commit(root: Storage, step: int, epoch: int = 1) -> Storage:
    checkpoint = root.child(manifest.directory_name(step, epoch))
    checkpoint.write("__0_0.distcp", b"shard" * 100)
    checkpoint.write("sub/common.pt", b"common")
    seal(checkpoint, step, epoch)
    return checkpoint


def test_all_kinds_of_storage_behave_alike(place: Storage, tmp_path: Path) -> None:
    assert (place.files(), place.folders()) == ({}, [])
    with pytest.raises(FileNotFoundError):
        place.read("absent", 10)
    place.write("a/one", b"1" * 10)
    place.write("a/one", b"2" * 20)
    (tmp_path / "source").write_bytes(b"3" * 30)
    place.upload(tmp_path / "source", "b/two")
    assert place.files() == {"a/one": 20, "b/two": 30}
    assert sorted(place.folders()) == ["a", "b"]
    assert (place.size("a/one"), place.read("a/one", 5)) == (20, b"22222")
    with place.child("b").open("two") as file:
        assert file.read() == b"3" * 30
    place.download("b/two", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == b"3" * 30
    place.remove("a/one")
    place.remove("a/one")
    assert place.files() == {"b/two": 30}
    place.child("b").remove_all()
    assert place.files() == {}


def test_checkpoints_are_listed_verified_fenced_and_pruned_alike(place: Storage) -> None:
    for step in (10, 20, 30):
        commit(place, step)
    place.child("step_00000040-e1").write("__0_0.distcp", b"torso")
    assert [found.step for _, found in manifest.list_complete(place)] == [30, 20, 10]
    newest = manifest.newest_complete(place)
    assert newest is not None
    assert manifest.verify(newest[0]).ok
    newest[0].write("__0_0.distcp", b"sharD" * 100)
    assert manifest.verify(newest[0]).faults == ("__0_0.distcp: content differs",)
    prune(place, keep=2, epoch=1)
    assert [found.step for _, found in manifest.list_complete(place)] == [30, 20]
    fence = Fence(place)
    fence.raise_now(1, 5)
    fence.raise_now(1, 4)
    assert [fence.allows(1, 4), fence.allows(1, 5), fence.allows(2, 1)] == [False, True, True]


def test_what_is_fetched_is_compared_before_it_is_used(credentials: Path, tmp_path: Path) -> None:
    root = storage_at(f"s3://{BUCKET}/{tmp_path.name}")
    checkpoint = commit(root, 10)
    folder = fetch(str(checkpoint), tmp_path / "staging", life=1)
    assert manifest.verify(folder).ok
    (folder / "of our own").touch()
    assert fetch(str(checkpoint), tmp_path / "staging", life=2) == folder
    assert (folder / "of our own").exists(), "what still compares is not fetched again"
    (folder / "sub" / "common.pt").write_bytes(b"Common")
    assert fetch(str(checkpoint), tmp_path / "staging", life=3) == folder
    assert manifest.verify(folder).ok
    shutil.rmtree(folder)
    checkpoint.write("sub/common.pt", b"Common")
    with pytest.raises(CheckpointFault, match=r"sub/common\.pt: content differs"):
        fetch(str(checkpoint), tmp_path / "staging", life=4)
    assert not folder.exists()
    checkpoint.remove("sub/common.pt")
    with pytest.raises(CheckpointFault, match="a file is missing"):
        fetch(str(checkpoint), tmp_path / "staging", life=4)


@pytest.mark.parametrize("code", ["ExpiredToken", "ExpiredTokenException", "RequestExpired"])
def test_an_expired_token_is_renewed_and_the_request_made_once_more(
    object_store: ObjectStore, credentials: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str
) -> None:
    door = Door(object_store, code=code)
    monkeypatch.setenv("AWS_ENDPOINT_URL", door.url)
    give(credentials, OLD)
    place = storage_at(f"s3://{BUCKET}/{tmp_path.name}")
    with pytest.raises(OSError):
        place.write("first", b"refused twice: the file still holds the old key")
    assert door.refused == 2
    door.on_refusal = lambda: give(credentials, NEW)
    place.write("second", b"kept")
    assert (door.refused, place.read("second", 10)) == (3, b"kept")
    door.close()


def test_a_token_that_expires_while_a_file_is_read_is_renewed_and_no_byte_is_lost(
    object_store: ObjectStore, credentials: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    door, data = Door(object_store, code="ExpiredToken"), bytes(range(256)) * (3 * CHUNK_BYTES // 256)
    monkeypatch.setenv("AWS_ENDPOINT_URL", door.url)
    place = storage_at(f"s3://{BUCKET}/{tmp_path.name}")
    place.write("file", data)
    with place.open("file") as file:
        read = file.read(1000)
        door.expired = NEW
        with pytest.raises(OSError):
            file.read()
        door.on_refusal = lambda: give(credentials, OLD)
        read += file.read()
    assert read == data
    assert door.refused > 1
    door.close()


def test_credentials_that_end_within_five_minutes_are_asked_for_anew(
    object_store: ObjectStore, credentials: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first answer of the credential process ends in 200 s; it is used for one request at most."""
    in_s = {
        key: datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=s) for key, s in ((OLD, 200), (NEW, 3600))
    }
    for key, end in in_s.items():
        answer = {
            "Version": 1,
            "AccessKeyId": key,
            "SecretAccessKey": "s",
            "SessionToken": "t",
            "Expiration": end.isoformat(),
        }
        (tmp_path / key).write_text(json.dumps(answer))
    script = tmp_path / "process.sh"
    once = (
        f"if [ -e {tmp_path}/asked ]; then cat {tmp_path}/{NEW}; else touch {tmp_path}/asked; cat {tmp_path}/{OLD}; fi"
    )
    script.write_text(f"#!/bin/sh\n{once}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "config").write_text(f"[default]\ncredential_process = {script}\n")
    credentials.unlink()
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    door = Door(object_store, code=None)
    monkeypatch.setenv("AWS_ENDPOINT_URL", door.url)
    place = storage_at(f"s3://{BUCKET}/{tmp_path.name}")
    place.write("one", b"1")
    before = len(door.keys)
    place.write("two", b"2")
    place.write("three", b"3")
    assert set(door.keys[before:]) == {NEW}
    door.close()


def test_a_job_saves_to_an_object_store_and_resumes_from_it(
    cluster: Make, object_store: ObjectStore, credentials: Path, reference: list[float], tmp_path: Path
) -> None:
    root = f"s3://{BUCKET}/{tmp_path.name}"
    config = tiny_config(tmp_path, checkpoint=Checkpoint(interval_steps=12, keep=2, asynchronous=False))
    run = cluster(msgspec.structs.replace(config, checkpoint_dir=root))
    run.env = object_store.environment() | {"HOLDFAST_STAGING_DIR": str(tmp_path / "staging")}
    run.start(0)
    run.wait_all_done()
    assert [found.step for _, found in manifest.list_complete(root)] == [36, 24]
    assert all(manifest.verify(path).ok for path, _ in manifest.list_complete(root))
    assert not list((tmp_path / "staging").rglob("*.distcp"))
    resume = Resume(f"{root}/step_00000024-e1", 24)
    again = cluster(msgspec.structs.replace(run.config, resume=resume, checkpoint=Checkpoint(interval_steps=0)))
    again.env = run.env
    killed = (
        outgoing(tmp_path / "staging" / f"holdfast-{os.getuid()}", RankRef(again.job_id, 1, 0, 0, 1))
        / "step_00000030-e1"
    )
    killed.mkdir(parents=True)
    again.start(0)
    again.wait_all_done()
    assert not killed.parent.exists(), "what its replica's life before has staged is swept"
    losses = again.losses()
    assert min(losses) == 24
    assert max(abs(losses[step] - reference[step]) for step in losses) <= TOLERANCE


def test_a_store_that_is_down_fails_the_save_and_training_goes_on(
    cluster: Make, object_store: ObjectStore, tmp_path: Path
) -> None:
    # Slow enough that training is still under way when the driver gives up.
    training = Training(steps=12, global_batch=6, step_delay_s=0.02)
    config = tiny_config(tmp_path, checkpoint=Checkpoint(interval_steps=6), training=training)
    run = cluster(msgspec.structs.replace(config, checkpoint_dir=f"s3://{BUCKET}/{tmp_path.name}"))
    run.env = object_store.environment("http://127.0.0.1:9") | {"HOLDFAST_STAGING_DIR": str(tmp_path / "staging")}
    run.start(0)
    run.wait_all_done(timeout_s=110)
    failed = [said for said in run.of(CheckpointReport) if said.state == "failed"]
    assert failed
    assert all("127.0.0.1:9" in said.error for said in failed)
    assert {gone.exit_code for gone in run.gone.values()} == {0}
    assert len(run.of(StepReport, 0, 0)) == run.config.training.steps
