"""What may be asked of Slurm: everything else is refused with what is wrong and how to put it right."""

from typing import Any

import pytest

from controlplane.slurm.plan import MAX_SPEC_BYTES, Plan, PlanError, plan_of

SPEC = b"metadata: {name: first}\nspec:\n  resources: {nodes: 2, gpus_per_node: 4}\n"
GIVEN: dict[str, Any] = {"nodes": 2, "spares": 1, "python": "/opt/hf/bin/python", "directory": "/home/ada/runs"}


def made(spec: bytes = SPEC, *, gpus_per_node: int | None = None, **given: Any) -> Plan:
    return plan_of(spec, gpus_per_node=gpus_per_node, **(GIVEN | given))


def test_a_plan_takes_name_and_devices_from_the_spec() -> None:
    plan = made()
    assert (plan.job_name, plan.gpus_per_node, plan.nodes, plan.spares) == ("first", 4, 2, 1)
    assert made(gpus_per_node=8).gpus_per_node == 8


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("nodes", [2, 4096], [0, -1, 4097, True, "2"]),
        ("spares", [0, 4096], [-1, 4097]),
        ("grace_s", [10, 3600], [9, 3601]),
        ("kill_wait_s", [1, 3600], [0, 3601]),
        ("time", ["", "30", "4:00:00", "2-12", "1-00:30:00"], ["4h", "1:2:3:4", "30\n#SBATCH --uid=0", "UNLIMITED;"]),
        ("partition", ["", "gpu", "a,b", "gpu_h100.1"], ["gpu x", "-gpu", "gpu\nx", "$(id)", "`id`", "a" * 257]),
        ("account", ["", "ml-research"], ["a,b", "a b", "--uid=0", "a\n"]),
        ("qos", ["", "high"], ["high low", "'"]),
        ("constraint", ["", "h100&ib", "[rack1|rack2]", "!old"], ["a b", '"', "$x", "a;b", "a\n"]),
        ("reservation", ["", "week-1"], ["week 1", "a\n"]),
        ("python", ["/usr/bin/python3"], ["python", "", "/usr/bin/py thon", "/a/../b", "/a;b", "/a\n", "/a'b"]),
        ("directory", ["/scratch/ada"], ["runs", "", "/a b", "/a/../b", "/a%j", "/a$HOME", "/" + "a" * 400]),
        ("checkout", ["", "/opt/holdfast"], ["opt", "/a b"]),
        ("continues", ["", "7", "4294967295"], ["7a", "-1", "7,8", "7\n", "12345678901", "../7"]),
        ("probe", ["nvml", "simulated"], ["", "rocm"]),
    ],
)
def test_a_value_outside_its_range_is_refused_with_its_option(name: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert getattr(made(**{name: value}), name) == value
    for value in bad:
        with pytest.raises(PlanError) as refused:
            made(**{name: value})
        option = {"continues": "continue"}.get(name, name.replace("_", "-"))
        assert f"--{option} " in str(refused.value), value
        assert refused.value.fix


def test_a_server_is_named_by_https_or_on_loopback_and_comes_with_a_token() -> None:
    token = {"join_token_file": "/home/ada/token"}
    for good in ("https://hf.example.org", "https://10.0.0.1:8443", "http://127.0.0.1:8000"):
        assert made(server=good, **token).server == good
    for bad in ("http://hf.example.org", "https://a b", "https://u:p@h", "wss://h", "https://h/x", "https://h\n"):
        with pytest.raises(PlanError, match="--server"):
            made(server=bad, **token)
    for half in ({"server": "https://h"}, token):
        with pytest.raises(PlanError, match="belong together"):
            made(**half)


def test_a_job_that_would_never_start_is_refused() -> None:
    with pytest.raises(PlanError, match="wants 2 nodes") as refused:
        made(nodes=1)
    assert "--nodes 2" in refused.value.fix
    with pytest.raises(PlanError, match="wants 4 devices") as refused:
        made(gpus_per_node=2)
    assert "--gpus-per-node 4" in refused.value.fix


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (b"", "not valid"),
        (b"[1, 2]", "not valid"),
        (b"metadata: {name: 'a b'}\nspec: {resources: {nodes: 1, gpus_per_node: 1}}\n", "/metadata/name"),
        (b"metadata: {name: first", "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (b"#" * (MAX_SPEC_BYTES + 1), "bytes"),
        (SPEC.replace(b"\n", b"\r\n"), "carriage return"),
    ],
)
def test_a_spec_that_is_none_is_refused_before_slurm_sees_it(spec: bytes, words: str) -> None:
    with pytest.raises(PlanError, match=words) as refused:
        made(spec)
    assert refused.value.fix
