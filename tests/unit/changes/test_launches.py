"""What a start command says: the job's spec, the attempt's layout, what was learned, and the ranks of one node."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from controlplane.changes import kinds
from controlplane.changes.kinds import Change, CreateReplica, ReplicaKey
from controlplane.changes.launches import (
    START_TTL_S,
    Launcher,
    checkpoint_dir,
    step_reports_within_s,
    trainer_config,
)
from controlplane.changes.rows import Terms
from controlplane.policy.timeouts import SectionTimeout
from controlplane.protocol.launch import ReplicaLaunch, Resume
from controlplane.protocol.states import Section

from .builders import World, home, placed, training

LEARNED_S = {
    Section.SETUP: 71.0,
    Section.STEP: 72.0,
    Section.CHECKPOINTING: 73.0,
    Section.OUT_OF_SECTION: 74.0,
}


def limits(world: World) -> tuple[SectionTimeout, ...]:
    """Of each section a length of its own."""
    given = world.store.terms("").limits
    return tuple(msgspec.structs.replace(limit, value_s=LEARNED_S[limit.section]) for limit in given)


def launches(changes: Iterator[Change]) -> dict[str, ReplicaLaunch]:
    """By node."""
    commands = [each for change in changes if isinstance(change, kinds.Enqueue) for each in change.commands]
    return {node: body.launch for node, body in commands}  # type: ignore[union-attr]


def start(world: World, **terms: Any) -> ReplicaLaunch:
    """Of the next replica, on a node of its own, on these terms."""
    store = world.store
    given = replace(store.terms(""), **terms)
    type(store).terms, before = lambda self, loads: given, type(store).terms  # type: ignore[method-assign]
    try:
        launcher = Launcher(store, store.job(), store.attempt())
    finally:
        type(store).terms = before  # type: ignore[method-assign]
    (launch,) = launches(launcher.start(3, 1, home(4))).values()
    return launch


def test_the_rows_of_a_replica_are_there_before_its_commands() -> None:
    world = placed()
    launcher = Launcher(world.store, world.store.job(), world.store.attempt())
    first, second = launcher.start(3, 1, home(4))
    assert first == CreateReplica(ReplicaKey(1, 3, 1), home(4))
    assert isinstance(second, kinds.Enqueue)
    assert (second.attempt, second.ttl_s) == (1, START_TTL_S)


def test_each_sections_timeout_is_what_the_jobs_rows_have_taught() -> None:
    world = placed()
    launch = start(world, limits=limits(world))
    assert launch.setup_timeout_s == LEARNED_S[Section.SETUP]
    assert launch.step_timeout_s == LEARNED_S[Section.STEP]
    assert launch.checkpoint_timeout_s == LEARNED_S[Section.CHECKPOINTING]
    assert launch.out_of_section_timeout_s == LEARNED_S[Section.OUT_OF_SECTION]


def test_the_environment_and_the_store_come_from_outside() -> None:
    launch = start(placed(), env={"TOKEN": "x"}, store="store:9", outer_timeout_s=12.0)
    assert launch.env == {"TOKEN": "x"}
    assert (launch.config.store, launch.config.outer_timeout_s) == ("store:9", 12.0)


@pytest.mark.parametrize(
    ("entrypoint", "expected"),
    [(None, None), (("python", "train.py"), ("python", "train.py"))],
)
def test_a_program_of_its_own_is_started_in_place_of_the_rank_host(
    entrypoint: tuple[str, ...] | None, expected: tuple[str, ...] | None
) -> None:
    world = placed()
    world.rows.spec = msgspec.structs.replace(world.rows.spec, entrypoint=entrypoint)
    assert start(world).entrypoint == expected


def test_markers_faults_and_the_pace_of_timings_are_the_specs() -> None:
    world = placed()
    resiliency = world.rows.spec.resiliency
    stragglers = msgspec.structs.replace(resiliency.stragglers, interval_s=7.0)
    changed = msgspec.structs.replace(
        resiliency, log_markers={"oom": "out of memory"}, allow_faults=True, stragglers=stragglers
    )
    world.rows.spec = msgspec.structs.replace(world.rows.spec, resiliency=changed)
    launch = start(world)
    assert launch.log_markers == {"oom": "out of memory"}
    assert (launch.config.allow_faults, launch.config.timing_interval_s) == (True, 7.0)


def test_who_starts_before_the_first_view_resumes_and_who_joins_later_does_not() -> None:
    world = World()
    world.place(resume_step=20, resume_path="/checkpoints/job/20")
    assert start(world).config.resume == Resume(path="/checkpoints/job/20", step=20)
    assert start(training()).config.resume is None


@pytest.mark.parametrize(("told", "expected"), [(2, 2), (None, None)])
def test_an_attempt_keeps_the_number_that_its_ranks_were_told(told: int | None, expected: int | None) -> None:
    world = placed()
    store, attempt = world.store, replace(world.store.attempt(), max_contributors=told)
    terms = Terms("store:1", "", 60.0, (), {})
    assert trainer_config(store.job(), attempt, terms).max_contributors == expected


def test_a_setup_that_was_learned_to_be_long_is_waited_for() -> None:
    world = placed()
    store = world.store
    configs = [
        trainer_config(store.job(), store.attempt(), store.terms(""), learned_setup_s=learned_s)
        for learned_s in (None, 5000.0)
    ]
    assert configs[0].inner_timeout_s <= configs[1].inner_timeout_s


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [("", "/root/job_sim"), ("/data/saves/", "/data/saves/job_sim"), ("s3://bucket/a", "s3://bucket/a/job_sim")],
)
def test_each_job_saves_in_a_place_of_its_own(wanted: str, expected: str) -> None:
    spec = World().rows.spec
    spec = msgspec.structs.replace(spec, checkpoint=msgspec.structs.replace(spec.checkpoint, dir=wanted or None))
    assert checkpoint_dir(spec, "/root", "job_sim") == expected


@pytest.mark.parametrize(("ranks", "expected_s"), [(6, 0.0), (64, 0.0), (1_024, 0.32), (16_384, 5.0), (131_072, 5.0)])
def test_nodes_of_a_large_job_gather_reports_of_steps_for_longer(ranks: int, expected_s: float) -> None:
    assert step_reports_within_s(ranks) == pytest.approx(expected_s)


def test_a_launch_says_how_long_by_all_ranks_of_the_attempt() -> None:
    world = placed()
    assert start(world).step_reports_within_s == 0.0
    store = world.store
    many = replace(store.attempt(), replicas=2_048)
    launcher = Launcher(store, store.job(), many)
    (launch,) = launches(launcher.start(3, 1, home(4))).values()
    assert launch.step_reports_within_s == step_reports_within_s(launch.world_size * 2_048) > 0.0
