"""The linter finds every fault at once, says where, and never falls over."""

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.protocol.spec_fault import Ground
from controlplane.protocol.spec_lint import effective, lint
from controlplane.protocol.spec_text import parse_yaml

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))

GOOD: dict[str, Any] = {
    "apiVersion": "holdfast/v1",
    "kind": "TrainJob",
    "metadata": {"name": "gpt"},
    "spec": {
        "resources": {"nodes": 4, "gpus_per_node": 2, "min_replicas": 1, "spares": {"gpus": 2}},
        "parallelism": {"tp": 1, "pp": 2, "dp": 4},
        "model": {"layers": 4, "hidden": 64, "heads": 4, "kv_heads": 2, "vocab_size": 256},
        "training": {"steps": 100, "global_batch": 12, "micro_batch": 1},
        "checkpoint": {"interval_steps": 10, "keep": 2},
        "env": {"NCCL_DEBUG": "WARN"},
    },
}

# pointer of the field to set, its faulty value, pointer at which the fault must be told
SEEDED: list[tuple[str, object, str]] = [
    ("/metadata/name", "Not A Name", "/metadata/name"),
    ("/metadata/name", "a" * 64, "/metadata/name"),
    ("/metadata/name", "ends-", "/metadata/name"),
    ("/metadata/name", "ge\u0301nie", "/metadata/name"),
    ("/metadata/name", None, "/metadata/name"),
    ("/apiVersion", "v2", "/apiVersion"),
    ("/spec/nodes", 3, "/spec/nodes"),
    ("/spec/resources/nodes", 0, "/spec/resources/nodes"),
    ("/spec/resources/nodes", True, "/spec/resources/nodes"),
    ("/spec/resources/nodes", "4", "/spec/resources/nodes"),
    ("/spec/resources/nodes", 10**400, "/spec/resources/nodes"),
    ("/spec/resources/nodes", 2.5, "/spec/resources/nodes"),
    ("/spec/resources/min_replicas", 5, "/spec/resources/min_replicas"),
    ("/spec/resources/spares/gpus", 1, "/spec/resources/spares/gpus"),
    ("/spec/resources/spares/gpus", -1, "/spec/resources/spares/gpus"),
    ("/spec/parallelism/dp", 3, "/spec/parallelism/dp"),
    ("/spec/parallelism/dp", "many", "/spec/parallelism/dp"),
    ("/spec/parallelism/cp", 3, "/spec/parallelism/cp"),
    ("/spec/parallelism/ep", 4, "/spec/parallelism/ep"),
    ("/spec/model/layers", 5, "/spec/model/layers"),
    ("/spec/model/hidden", 66, "/spec/model/hidden"),
    ("/spec/model/kv_heads", 3, "/spec/model/heads"),
    ("/spec/training/global_batch", 3, "/spec/training/global_batch"),
    ("/spec/training/micro_batch", 5, "/spec/training/global_batch"),
    ("/spec/training/learning_rate", float("nan"), "/spec/training/learning_rate"),
    ("/spec/training/learning_rate", float("inf"), "/spec/training/learning_rate"),
    ("/spec/training/min_learning_rate", 1.0, "/spec/training/min_learning_rate"),
    ("/spec/training/warmup_steps", 100, "/spec/training/warmup_steps"),
    ("/spec/training/dtype", "fp8", "/spec/training/dtype"),
    ("/spec/training/data", "../etc/passwd", "/spec/training/data"),
    ("/spec/checkpoint/interval_steps", 0, "/spec/checkpoint/interval_steps"),
    ("/spec/checkpoint/keep", 0, "/spec/checkpoint/keep"),
    ("/spec/checkpoint/dir", "relative/dir", "/spec/checkpoint/dir"),
    ("/spec/checkpoint/dir", "s3://", "/spec/checkpoint/dir"),
    ("/spec/checkpoint/dir", "s3://bucket/../other", "/spec/checkpoint/dir"),
    ("/spec/checkpoint/dir", "ftp://host/dir", "/spec/checkpoint/dir"),
    ("/spec/checkpoint/local", {"dir": "nvme"}, "/spec/checkpoint/local/dir"),
    ("/spec/checkpoint/local", {"dir": "/nvme", "interval_steps": 11}, "/spec/checkpoint/local/interval_steps"),
    ("/spec/checkpoint/local", {"dir": "/nvme", "keep": 0}, "/spec/checkpoint/local/keep"),
    ("/spec/checkpoint/local", {"medium": "memory", "interval_steps": 11}, "/spec/checkpoint/local/interval_steps"),
    ("/spec/checkpoint/local", {"medium": "memory", "dir": "ram"}, "/spec/checkpoint/local/dir"),
    ("/spec/checkpoint/local", {"medium": "tape", "dir": "/nvme"}, "/spec/checkpoint/local/medium"),
    ("/spec/checkpoint/async", "yes", "/spec/checkpoint/async"),
    ("/spec/checkpoint/emergency", {"deadline_s": 500.0}, "/spec/checkpoint/emergency/deadline_s"),
    ("/spec/resiliency", {"risk": {"threshold": 1.5}}, "/spec/resiliency/risk/threshold"),
    ("/spec/resiliency", {"timeouts": {"silence_s": 0}}, "/spec/resiliency/timeouts/silence_s"),
    ("/spec/resiliency", {"timeouts": {"step_s": -1.0}}, "/spec/resiliency/timeouts/step_s"),
    ("/spec/resiliency", {"timeouts": {"step_s": 1.0}}, "/spec/resiliency/timeouts/step_s"),
    ("/spec/resiliency", {"timeouts": {"checkpoint_s": "auto"}}, "/spec/resiliency/timeouts/checkpoint_s"),
    ("/spec/resiliency", {"timeouts": {"setup_s": "soon"}}, "/spec/resiliency/timeouts/setup_s"),
    ("/spec/resiliency", {"budget": {"max_restarts": 1}}, "/spec/resiliency/budget/restarts_per_window"),
    ("/spec/resiliency", {"look_every_s": 5.0}, "/spec/resiliency/look_every_s"),
    ("/spec/resiliency", {"act_after_s": 60.0}, "/spec/resiliency/act_after_s"),
    ("/spec/resiliency", {"mode": "recommend", "act_after_s": 5.0}, "/spec/resiliency/act_after_s"),
    ("/spec/resiliency", {"mode": "recommend", "act_after_s": -60.0}, "/spec/resiliency/act_after_s"),
    ("/spec/resiliency", {"mode": "recommend", "act_after_s": 1e6}, "/spec/resiliency/act_after_s"),
    ("/spec/resiliency", {"look_ranks": 0}, "/spec/resiliency/look_ranks"),
    ("/spec/resiliency", {"mode": "yolo"}, "/spec/resiliency/mode"),
    ("/spec/resiliency", {"faults": {"kind": "rank_killed"}}, "/spec/resiliency/faults/kind"),
    ("/spec/resiliency", {"faults": {"kind": "meteor"}, "allow_faults": True}, "/spec/resiliency/faults/kind"),
    ("/spec/resiliency", {"allow_faults": True, "faults": {"times": 0}}, "/spec/resiliency/faults/times"),
    ("/spec/scheduling", {"priority": 1001}, "/spec/scheduling/priority"),
    ("/spec/scheduling", "urgent", "/spec/scheduling"),
    ("/spec/env/BAD", "line\nbreak", "/spec/env/BAD"),
    ("/spec/env/1X", "x", "/spec/env/1X"),
    ("/spec/env/HOLDFAST_SOCKET", "/tmp/x", "/spec/env/HOLDFAST_SOCKET"),
    ("/spec/env", {f"K{i}": "" for i in range(129)}, "/spec/env"),
    ("/spec/entrypoint", "python train.py", "/spec/entrypoint"),
    ("/spec/entrypoint", [], "/spec/entrypoint"),
    ("/spec/entrypoint", ["python", 3], "/spec/entrypoint/1"),
]


def broken(*faults: tuple[str, object]) -> dict[str, Any]:
    """GOOD with each (pointer, value) set."""
    document = copy.deepcopy(GOOD)
    for pointer, value in faults:
        *path, last = pointer.split("/")[1:]
        section = document
        for token in path:
            section = section.setdefault(token, {})
        section[last] = value
    return document


def own_program(*argv: object) -> tuple[tuple[str, object], ...]:
    """A job of a program of its own: one replica over all devices."""
    one = {"tp": 1, "pp": 2, "replica_dp": 4, "dp": 1}
    command = list(argv) or ["python", "train.py"]
    return (("/spec/entrypoint", command), ("/spec/parallelism", one), ("/spec/resources/spares/gpus", 0))


def pointers(document: object) -> list[str]:
    return [fault.pointer for fault in lint(document).faults]


def test_a_sound_spec_has_no_faults_and_keeps_what_was_written() -> None:
    result = lint(GOOD)
    assert result.faults == ()
    assert result.spec is not None
    assert result.spec.spec.resources.nodes == 4
    assert "/spec/training/seed" in result.defaults
    assert "/spec/resources/nodes" not in result.defaults


def test_checkpoints_may_lie_on_object_stores_and_on_the_nodes_own_disks() -> None:
    for place in ("/shared/checkpoints", "s3://bucket", "s3://bucket/a/b", "gs://bucket/prefix/"):
        assert pointers(broken(("/spec/checkpoint/dir", place))) == []
    assert pointers(broken(("/spec/checkpoint/local", {"dir": "/nvme", "copies": 3, "interval_steps": 5}))) == []
    assert pointers(broken(("/spec/checkpoint/restore_test", True))) == []


def test_more_copies_than_other_nodes_are_refused() -> None:
    for copies, told in ((3, []), (4, ["/spec/checkpoint/local/copies"])):
        for place in ({"dir": "/nvme"}, {"medium": "memory"}):
            tier = {**place, "copies": copies, "interval_steps": 5}
            assert pointers(broken(("/spec/checkpoint/local", tier))) == told


def test_a_job_with_its_own_program_has_neither_local_tier_nor_restore_test() -> None:
    own = ("/spec/entrypoint", ["python", "train.py"])
    for name, value in (("dir", "/nvme"), ("medium", "memory")):
        tier = ("/spec/checkpoint/local", {name: value, "interval_steps": 5})
        assert f"/spec/checkpoint/local/{name}" in pointers(broken(own, tier))
    assert "/spec/checkpoint/restore_test" in pointers(broken(own, ("/spec/checkpoint/restore_test", True)))


@pytest.mark.parametrize(("where", "value", "told_at"), SEEDED, ids=[f"{w}={str(v)[:20]}" for w, v, _ in SEEDED])
def test_each_seeded_fault_is_told_at_its_pointer_with_a_fix(where: str, value: object, told_at: str) -> None:
    result = lint(broken((where, value)))
    assert told_at in [fault.pointer for fault in result.faults]
    assert result.spec is None
    assert all(fault.message and fault.fix for fault in result.faults)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SEEDED), st.sampled_from(SEEDED))
def test_two_faults_in_different_sections_are_both_told(
    one: tuple[str, object, str], other: tuple[str, object, str]
) -> None:
    first, second = one[0].split("/")[:3], other[0].split("/")[:3]
    if first == second or {"resources", "parallelism", "model", "training"} >= {first[-1], second[-1]}:
        return  # sections that are checked against one another: one fault may hide the other
    if {first[-1], second[-1]} == {"checkpoint", "resiliency"}:
        return  # how long a save may take depends on how it is made
    if "entrypoint" in {first[-1], second[-1]}:
        return  # another program is held to other rules than the built-in trainer
    told = pointers(broken(one[:2], other[:2]))
    assert one[2] in told or one[2].startswith(other[0])
    assert other[2] in told or other[2].startswith(one[0])


def test_the_limit_of_saves_is_learned_only_from_saves_that_hold_training_up() -> None:
    auto = ("/spec/resiliency", {"timeouts": {"checkpoint_s": "auto", "setup_s": "auto", "out_of_section_s": "auto"}})
    assert pointers(broken(auto)) == ["/spec/resiliency/timeouts/checkpoint_s"]
    assert pointers(broken(auto, ("/spec/checkpoint/async", False))) == []


def test_a_heartbeat_may_be_waited_for_for_ever_and_is_never_zero() -> None:
    beats = {"watchdog": "heartbeat", "first_heartbeat_s": None, "heartbeat_s": 60}
    assert pointers(broken(("/spec/resiliency", {"timeouts": beats}))) == []
    assert pointers(broken(("/spec/resiliency", {"timeouts": {**beats, "heartbeat_s": 0}}))) == [
        "/spec/resiliency/timeouts/heartbeat_s"
    ]
    assert pointers(broken(("/spec/resiliency", {"timeouts": {"watchdog": "dog"}}))) == [
        "/spec/resiliency/timeouts/watchdog"
    ]


def test_missing_required_fields_are_all_told() -> None:
    assert pointers({}) == ["/metadata/name", "/spec/resources/nodes", "/spec/resources/gpus_per_node"]


def test_an_unknown_field_names_the_nearest_known_one() -> None:
    result = lint(broken(("/spec/resources/gpu_per_node", 2)))
    assert [(f.pointer, f.fix) for f in result.faults] == [
        ("/spec/resources/gpu_per_node", "did you mean 'gpus_per_node'?")
    ]


def test_layout_that_leaves_devices_idle_is_refused() -> None:
    document = broken(("/spec/parallelism", {"tp": 1, "pp": 3, "dp": "auto"}), ("/spec/model/layers", 6))
    assert "/spec/parallelism" in pointers(document)


def test_spares_mode_needs_replicas_beyond_those_that_compute() -> None:
    spares = ("/spec/training/batch_mode", "spares")
    assert not pointers(broken(spares))
    assert pointers(broken(spares, ("/spec/resources/min_replicas", 4))) == ["/spec/training/batch_mode"]


def test_replicas_that_stand_by_need_no_micro_batches() -> None:
    few = (("/spec/training/global_batch", 3), ("/spec/resources/min_replicas", 3))
    assert pointers(broken(*few)) == ["/spec/training/global_batch"]
    assert not pointers(broken(*few, ("/spec/training/batch_mode", "spares")))


def test_one_mistake_in_the_layout_is_told_once() -> None:
    assert pointers(broken(("/spec/parallelism/pp", "two"))) == ["/spec/parallelism/pp"]


def test_a_threshold_is_judged_by_what_the_fleet_can_reach() -> None:
    document = broken(("/spec/resiliency", {"risk": {"threshold": 0.95}}))
    assert lint(document, Ground(reachable_risk=0.75)).spec is None
    assert lint(document).spec is not None


def test_effective_spec_is_complete_and_lints_clean_again() -> None:
    first = lint(GOOD)
    assert first.spec is not None
    again = lint(effective(first.spec))
    assert again.spec == first.spec
    assert again.defaults == ()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_shipped_examples_are_sound(path: Path) -> None:
    assert lint(parse_yaml(path.read_bytes())).faults == ()


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.dates(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10) | st.integers(), inner, max_size=5)
    ),
    max_leaves=20,
)
SECTIONS = ["resources", "parallelism", "model", "training", "checkpoint", "resiliency", "scheduling", "env"]
SECTIONS += ["entrypoint"]


@settings(max_examples=200, deadline=None)
@given(anything)
def test_never_raises_on_arbitrary_documents(document: object) -> None:
    result = lint(document)
    assert (result.spec is None) == bool(result.faults)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(SECTIONS), anything, max_size=5))
def test_never_raises_when_known_sections_hold_anything(spec: dict[str, object]) -> None:
    result = lint({"metadata": {"name": "x"}, "spec": {**GOOD["spec"], **spec}})
    assert (result.spec is None) == bool(result.faults)


def test_the_list_of_faults_is_bounded() -> None:
    document = broken(("/spec/env", {f"{i} x": i for i in range(128)}), *((f"/spec/k{i}", 1) for i in range(500)))
    assert len(lint(document).faults) <= 200


@pytest.mark.parametrize("kind", ["rank_killed", "communication", "random"])
def test_a_job_that_allows_faults_may_schedule_them(kind: str) -> None:
    faults = {"allow_faults": True, "faults": {"kind": kind, "delay_s": 5, "rank": -1, "times": 2}}
    assert pointers(broken(("/spec/resiliency", faults))) == []


def test_a_program_of_the_jobs_own_is_reached_by_signals_alone() -> None:
    def with_kind(kind: str) -> list[str]:
        faults = {"allow_faults": True, "faults": {"kind": kind}}
        return pointers(broken(("/spec/resiliency", faults), *own_program()))

    assert with_kind("nan") == ["/spec/resiliency/faults/kind"]
    assert with_kind("rank_hung") == with_kind("random") == []


def test_a_fault_for_a_rank_the_job_does_not_have_is_refused() -> None:
    faults = {"allow_faults": True, "faults": {"kind": "nan", "rank": 8}}
    assert pointers(broken(("/spec/resiliency", faults))) == ["/spec/resiliency/faults/rank"]


def test_one_replica_has_nobody_to_be_cut_off_from() -> None:
    alone = (("/spec/resources/nodes", 1), ("/spec/parallelism/dp", 1), ("/spec/resources/spares/gpus", 0))
    faults = {"allow_faults": True, "faults": {"kind": "communication"}}
    assert pointers(broken(("/spec/resiliency", faults), *alone)) == ["/spec/resiliency/faults/kind"]


def test_a_range_is_written_as_people_write_numbers() -> None:
    spec = copy.deepcopy(GOOD)
    spec["spec"]["training"] |= {"steps": 0, "global_batch": "many", "learning_rate": 99.0}
    fixes = {fault.pointer: fault.fix for fault in lint(spec).faults}
    assert fixes["/spec/training/steps"] == "write a whole number from 1 to 1,000,000,000"
    assert fixes["/spec/training/global_batch"] == "write a whole number from 1 to 16,777,216"
    assert fixes["/spec/training/learning_rate"] == "write a number from 1e-12 to 10"
