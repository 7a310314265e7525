"""Every field of the job spec has something behind it (N8): no field is decoration.

The models are walked, so that a new field without a row here fails. A row of CHANGES names a value and what
it changes, which is looked at here; a row of ELSEWHERE names the test that shows the effect, which must exist and speak
of the field; REFUSED is what is accepted with its default alone; ONE_VALUE has no other.
"""

import ast
import re
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

import msgspec
import pytest

from controlplane.protocol.spec import JobSpec
from controlplane.protocol.spec_limits import RANGES
from controlplane.protocol.spec_lint import lint
from tests.unit.protocol import field_effects as effect
from tests.unit.protocol.test_effects import REFUSED
from tests.unit.protocol.test_spec_lint import broken

ROOT = Path(__file__).resolve().parents[3]
BASE = (
    ("/spec/parallelism/dp", "auto"),
    ("/spec/resources/spares/gpus", 0),
)


class Change(NamedTuple):
    """`value` of the field and what it changes; `given` is set in both documents."""

    value: object
    shown: Callable[[JobSpec], Any]
    given: tuple[tuple[str, object], ...] = ()


P, M, T, C, R = "/spec/parallelism", "/spec/model", "/spec/training", "/spec/checkpoint", "/spec/resiliency"
MOE = ((f"{M}/family", "moe"),)
SPARES = ((f"{T}/batch_mode", "spares"),)
LIMITS, BEATS = f"{R}/timeouts", ((f"{R}/timeouts/watchdog", "heartbeat"),)
FAULT = ((f"{R}/allow_faults", True), (f"{R}/faults/kind", "rank_killed"))
LOOKS = ((f"{R}/look_every_s", 60.0),)
CHANGES: dict[str, Change] = {
    "/spec/resources/nodes": Change(2, effect.placed),
    "/spec/resources/gpus_per_node": Change(4, effect.placed),
    "/spec/resources/min_replicas": Change(2, effect.counted, SPARES),
    "/spec/resources/gpu_type": Change("A100", effect.devices_offered),
    "/spec/resources/spares/gpus": Change(8, effect.placed),
    f"{P}/tp": Change(2, effect.placed),
    f"{P}/pp": Change(4, effect.placed),
    f"{P}/vp": Change(2, effect.transformer),
    f"{P}/cp": Change(2, effect.placed),
    f"{P}/ep": Change(2, effect.transformer, (*MOE, (f"{P}/replica_dp", 2))),
    f"{P}/replica_dp": Change(2, effect.placed),
    f"{P}/sequence_parallel": Change(True, effect.transformer, ((f"{P}/tp", 2),)),
    f"{P}/distributed_optimizer": Change(True, effect.device_bytes, ((f"{P}/replica_dp", 2),)),
    f"{M}/family": Change("moe", effect.transformer),
    f"{M}/preset": Change("gpt-345m", effect.model),
    f"{M}/layers": Change(8, effect.transformer),
    f"{M}/hidden": Change(128, effect.transformer),
    f"{M}/heads": Change(8, effect.transformer),
    f"{M}/kv_heads": Change(4, effect.transformer),
    f"{M}/ffn_hidden": Change(96, effect.transformer),
    f"{M}/experts": Change(4, effect.transformer, MOE),
    f"{M}/experts_per_token": Change(1, effect.transformer, MOE),
    f"{M}/sequence_length": Change(128, effect.samples),
    f"{M}/vocab_size": Change(512, effect.device_bytes),
    f"{T}/steps": Change(150, effect.rates),
    f"{T}/global_batch": Change(24, effect.counted),
    f"{T}/micro_batch": Change(3, effect.counted),
    f"{T}/learning_rate": Change(1e-3, effect.rates),
    f"{T}/min_learning_rate": Change(1e-4, effect.rates),
    f"{T}/warmup_steps": Change(20, effect.rates),
    f"{T}/weight_decay": Change(0.1, effect.rates),
    f"{T}/clip_grad": Change(0.5, effect.adam),
    f"{T}/seed": Change(1, effect.samples),
    f"{T}/dtype": Change("bf16", effect.adam),
    f"{T}/data": Change(str(ROOT / "LICENSE"), effect.samples),
    f"{T}/batch_mode": Change("spares", effect.counted),
    f"{C}/emergency/min_gap_ratio": Change(0.5, effect.emergency),
    f"{C}/emergency/cooldown_s": Change(120.0, effect.emergency),
    f"{R}/risk/threshold": Change(0.2, effect.watched),
    f"{R}/risk/hysteresis_s": Change(5.0, effect.watched),
    f"{LIMITS}/watchdog": Change("heartbeat", effect.limits),
    f"{LIMITS}/first_heartbeat_s": Change(100.0, effect.limits, BEATS),
    f"{LIMITS}/heartbeat_s": Change(100.0, effect.limits, BEATS),
    f"{LIMITS}/setup_s": Change(100.0, effect.limits),
    f"{LIMITS}/step_s": Change(100.0, effect.limits),
    f"{LIMITS}/step_floor_s": Change(20.0, effect.limits),
    f"{LIMITS}/checkpoint_s": Change(100.0, effect.limits),
    f"{LIMITS}/out_of_section_s": Change(100.0, effect.limits),
    f"{LIMITS}/silence_s": Change(4.0, effect.watched),
    f"{LIMITS}/lease_s": Change(100.0, effect.limits),
    f"{R}/budget/max_restarts": Change(40, effect.budgets),
    f"{R}/budget/restarts_per_window": Change(50, effect.budgets),
    f"{R}/budget/window_s": Change(100.0, effect.budgets),
    f"{R}/budget/max_no_progress": Change(5, effect.budgets),
    f"{R}/budget/max_attempt_restarts": Change(2, effect.budgets),
    f"{R}/budget/restarts_per_attempt": Change(2, effect.budgets),
    f"{R}/budget/program_restarts_per_window": Change(2, effect.budgets),
    f"{R}/stragglers/relative": Change(False, effect.slow_ones),
    f"{R}/stragglers/individual": Change(False, effect.slow_ones),
    f"{R}/stragglers/relative_threshold": Change(0.85, effect.slow_ones),
    f"{R}/stragglers/individual_threshold": Change(0.85, effect.slow_ones),
    f"{R}/faults/kind": Change("slow", effect.rehearsed, FAULT),
    f"{R}/faults/delay_s": Change(20.0, effect.rehearsed, FAULT),
    f"{R}/faults/rank": Change(5, effect.rehearsed, FAULT),
    f"{R}/faults/times": Change(2, effect.rehearsed, FAULT),
    f"{R}/look_every_s": Change(60.0, effect.looks),
    f"{R}/look_ranks": Change(1, effect.looks, LOOKS),
    "/spec/scheduling/preempt_grace_s": Change(10.0, effect.cancelled),
    "/spec/scheduling/time_limit_s": Change(60.0, effect.limited),
}
ORDERS = "tests/integration/backend/test_launch_fields.py"
LAUNCH = f"{ORDERS}::test_a_changed_field_changes_the_order_that_starts_ranks"
SAVES, NUMERICS = "tests/integration/trainer/test_checkpoints.py", "tests/integration/trainer/test_numerics.py"
LOCAL = "tests/integration/trainer/test_local_tier.py"
COPIES = f"{LOCAL}::test_copies_in_memory_outlive_all_ranks_and_one_node_and_are_newer_than_the_disk"
PRUNED = f"{LOCAL}::test_replicas_are_each_others_copies_and_old_steps_go"
STEP = "tests/unit/trainer/test_step_fields.py"
LADDER = "tests/integration/backend/test_checkpoints.py"
SECOND = f"{NUMERICS}::test_the_second_run_decides_how_a_rank_goes_on_and_what_it_keeps_counts_once"
INTERVAL = f"{SAVES}::test_interval_saves_are_verified_and_old_ones_pruned"
SECRETS = "tests/attacks/backend/test_f26_env_at_rest.py"
JOBS = "tests/integration/api/test_jobs.py"
ELSEWHERE: dict[str, str] = {
    "/metadata/name": f"{JOBS}::test_a_live_name_is_taken_in_its_project",
    "/metadata/project": f"{JOBS}::test_a_live_name_is_taken_in_its_project",
    "/metadata/labels": f"{JOBS}::test_jobs_are_listed_by_all_the_labels_that_are_asked_for",
    "/spec/scheduling/priority": "tests/integration/backend/test_queue.py"
    "::test_of_two_jobs_on_a_full_fleet_the_urgent_one_starts_first_whoever_is_asked_first",
    "/spec/scheduling/elastic": "tests/unit/policy/test_elastic_start.py"
    "::test_it_starts_with_what_fits_and_has_places_for_the_rest",
    "/spec/scheduling/preemptible": "tests/integration/backend/test_make_room.py"
    "::test_a_job_that_is_not_preemptible_keeps_its_devices",
    "/spec/resources/spares/warm": "tests/unit/policy/test_spares.py::test_cold_spares_are_reserved_and_not_warmed",
    "/spec/entrypoint": LAUNCH,
    "/spec/env": f"{SECRETS}::test_a_dump_of_the_database_has_no_value_of_a_jobs_env_and_its_nodes_get_them_all",
    f"{P}/dp": "tests/unit/protocol/test_spec_lint.py::test_each_seeded_fault_is_told_at_its_pointer_with_a_fix",
    f"{T}/hash_every_steps": f"{STEP}::test_the_state_is_hashed_as_often_as_asked_for",
    f"{T}/step_delay_s": f"{STEP}::test_a_micro_batch_is_slowed_down_by_so_much",
    f"{T}/numerics/rerun": SECOND,
    f"{T}/numerics/check_nan": SECOND,
    f"{T}/numerics/check_spike": SECOND,
    f"{T}/numerics/spike_factor": f"{STEP}::test_a_loss_so_many_times_the_largest_is_a_spike",
    f"{C}/dir": LAUNCH,
    f"{C}/interval_steps": INTERVAL,
    f"{C}/keep": INTERVAL,
    f"{C}/async": INTERVAL,
    f"{C}/emergency/deadline_s": f"{ORDERS}::test_an_emergency_save_that_is_late_lapses",
    f"{C}/local/medium": COPIES,
    f"{C}/local/dir": COPIES,
    f"{C}/local/interval_steps": PRUNED,
    f"{C}/local/copies": PRUNED,
    f"{C}/local/keep": PRUNED,
    f"{C}/restore_test": f"{LADDER}::test_one_that_loads_into_the_jobs_own_model_is_at_the_top_of_the_ladder",
    f"{R}/mode": "tests/unit/policy/test_replica_limits.py::test_the_jobs_mode_is_on_the_decision",
    f"{R}/act_after_s": "tests/unit/policy/test_consent.py::test_what_nobody_objects_to_is_carried_out_in_time",
    f"{R}/allow_relayout": "tests/unit/policy/test_layouts.py::test_no_layout_is_said_with_what_is_missing",
    f"{R}/allow_faults": LAUNCH,
    f"{R}/stragglers/interval_s": LAUNCH,
    f"{R}/log_markers": LAUNCH,
}
JUDGED_WHOLE = {f"{R}/look_every_s", f"{R}/look_ranks"}
"""Numbers whose range a check of `resiliency_checks` states, with its reason."""
ONE_VALUE = {"/apiVersion", "/kind", f"{C}/format"}


def structs(struct: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Pointer and type of every section."""
    yield at, struct
    for field in msgspec.structs.fields(struct):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from structs(field.type, f"{at}/{field.encode_name}")


def fields(struct: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Pointer and type of every field of the spec that holds a value."""
    for field in msgspec.structs.fields(struct):
        pointer = f"{at}/{field.encode_name}"
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from fields(field.type, pointer)
        else:
            yield pointer, field.type


def test_every_field_has_exactly_one_row() -> None:
    rows = [*CHANGES, *ELSEWHERE, *REFUSED, *ONE_VALUE]
    assert sorted(rows) == sorted(pointer for pointer, _ in fields(JobSpec))


def words() -> str:
    """What documents say that people write: of a generated page, or of a list of requirements, nothing follows."""
    pages = [path for path in (ROOT / "docs").glob("*.md") if path.name not in ("protocol.md", "requirements.md")]
    return "\n".join(path.read_text(encoding="utf-8") for path in pages)


def test_every_field_is_explained_in_its_section_or_in_a_document() -> None:
    pages, missing = words(), set()
    sections = {at: kind.__doc__ or "" for at, kind in structs(JobSpec)}
    for pointer, _ in fields(JobSpec):
        section, _, name = pointer.rpartition("/")
        told = re.search(rf"\b{name}\b", sections[section]) or re.search(rf"`(?:\w+\.)*{name}\b", pages)
        missing |= set() if told else {pointer}
    assert missing - ONE_VALUE == set(), (
        "say what it means in the docstring of its struct in controlplane/protocol/spec.py, or by its name, as code, in"
        " the document of its feature"
    )


def is_number(kind: Any) -> bool:
    if get_origin(kind) in (Union, types.UnionType):
        return any(map(is_number, get_args(kind)))
    return kind in (int, float)


def test_every_number_has_its_range() -> None:
    numbers = {pointer for pointer, kind in fields(JobSpec) if is_number(kind)}
    assert numbers - JUDGED_WHOLE == set(RANGES)


def document(*changes: tuple[str, object]) -> JobSpec:
    result = lint(broken(*BASE, *changes))
    assert result.faults == ()
    assert result.spec is not None
    return result.spec


@pytest.mark.parametrize("pointer", sorted(CHANGES))
def test_a_changed_value_changes_what_is_done(pointer: str) -> None:
    row = CHANGES[pointer]
    before, after = document(*row.given), document(*row.given, (pointer, row.value))
    assert row.shown(before) == row.shown(before), "it is not the field that changes it"
    assert row.shown(before) != row.shown(after)


@pytest.mark.parametrize("pointer", sorted(ELSEWHERE))
def test_the_test_that_shows_it_is_there_and_speaks_of_the_field(pointer: str) -> None:
    path, _, name = ELSEWHERE[pointer].partition("::")
    source = (ROOT / path).read_text(encoding="ascii")
    assert name in {found.name for found in ast.walk(ast.parse(source)) if isinstance(found, ast.FunctionDef)}
    field = {"async": "asynchronous"}.get(pointer.rpartition("/")[2], pointer.rpartition("/")[2])
    assert re.search(rf"\b{field}\b", source), f"{path} does not speak of {field}"


def test_what_has_one_value_has_no_other() -> None:
    choices = {pointer: get_args(kind) for pointer, kind in fields(JobSpec) if get_origin(kind) is Literal}
    assert {pointer for pointer, values in choices.items() if len(values) == 1} == ONE_VALUE
