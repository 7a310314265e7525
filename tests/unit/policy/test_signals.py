"""One table of findings: what it derives is what was always told, and no list stands beside it."""

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from controlplane.policy import signals
from controlplane.policy.signals import BY_KIND, KINDS, SIGNALS, with_trait
from controlplane.policy.signals.base import PLACE, Finding, Severity, Trait
from controlplane.policy.signals.devices import DeviceAtRisk, DeviceGone, ReadingPastLimit, XidError
from controlplane.policy.signals.nodes import NodeDeaf, NodeInDoubt, NodeSilent, NodeUnfit, SignatureRejected
from controlplane.policy.signals.numbers import LossNotFinite, LossSpike, RefusedResult
from controlplane.policy.signals.ranks import (
    ExchangeFailed,
    RankExit,
    RankOverdue,
    SetupTimeout,
    SlowRank,
    StartFailed,
)
from tests.findings import finding

ROOT = Path(__file__).resolve().parents[3]
RANK: dict[str, Any] = {"job_id": "j", "node_id": "n", "replica": 1, "incarnation": 2, "rank": 3}
LATE = {"attempt": 4, "timeout_s": 5.0, "age_s": 6.0, "phase": "forward", "section": "step"}
# What rows and events have held since before there was a table: (struct, key, evidence, value, threshold, sentence).
TOLD: tuple[tuple[Finding, str, str, float, float, str], ...] = (
    (
        finding(RankExit, **RANK, attempt=4, node="n1", signal=9, how="ended with signal 9"),
        "rank_exit:j:4:1:2:3", "told node exit_code signal cause hint", -9.0, 0.0,
        "Rank 3 of replica 1 on n1 ended with signal 9.",
    ),
    (
        finding(RankOverdue, **RANK, **LATE), "rank_overdue:j:4:1:2:3", "age_s section phase step silent_s",
        6.0, 5.0, "Rank 3 of replica 1 sits in forward for 6.0 s.",
    ),
    (
        finding(SetupTimeout, **RANK, **LATE), "setup_timeout:j:4:1:2:3", "age_s section phase step silent_s",
        6.0, 5.0, "Rank 3 of replica 1 sits in forward for 6.0 s.",
    ),
    (
        finding(StartFailed, replica=1, command="cmd_1", node="n1", said="expired", ttl_s=30.0),
        "start_failed:cmd_1", "command node detail reason", 30.0, 30.0,
        "Replica 1 could not be started on n1: expired.",
    ),
    (
        finding(NodeSilent, job_id="j", node_id="n", node="n1", silent_s=2.34567, limit_s=2.0),
        "node_silent:n:j", "node", 2.346, 2.0, "Node n1 was not heard for 2.3 s.",
    ),
    (
        finding(NodeUnfit, node_id="n", node="n1", detail="driver: old", checks="driver"),
        "node_check:n", "detail checks node", 0.0, 0.0,
        "Node n1 fails its checks, nothing is started there: driver: old.",
    ),
    (
        finding(NodeDeaf, node_id="n", node="n1", why="w", waited_s=31.26, limit_s=30.0),
        "node_deaf:n", "node last_event_seq", 31.3, 30.0, "Node n1 receives no work: w.",
    ),
    (
        finding(NodeInDoubt, node_id="n", node="n1", why="w"),
        "node_identity:n", "node why", 0.0, 0.0, "It is in doubt which machine node n1 is: w.",
    ),
    (
        finding(SignatureRejected, node_id="n", node="n1", command="c", kind="stop_ranks", detail="no key"),
        "signature_rejected:n", "command kind detail node", 0.0, 0.0,
        "Node n1 refused command c (stop_ranks): no key. Nothing was carried out;"
        " find out who writes to the database, or enrol the node again if its keys are old.",
    ),
    (
        finding(DeviceGone, node_id="n", device_index=0, node="n1"),
        "device_lost:n:0", "uuid", 1.0, 0.0, "Device 0 of n1 fell off the bus.",
    ),
    (
        finding(XidError, node_id="n", device_index=0, xid=79, at_s=5.0, node="n1", meaning="m", more={"repeats": 2}),
        "xid:n:0:79:5.000", "detail meaning uuid model repeats", 79.0, 0.0, "XID 79 (m) on device 0 of n1.",
    ),
    (
        finding(
            ReadingPastLimit, device_index=0, device_id="d", node="n1", what="9 PCIe replays", found=9.0, limit=8.0,
            reading="pcie_replay", more={"power_w": 300.0},
        ),
        "device_reading:d:pcie_replay", "reading uuid power_w", 9.0, 8.0, "Device 0 of n1: 9 PCIe replays.",
    ),
    (
        finding(
            DeviceAtRisk, device_index=0, device_id="d", node="n1", score=0.81234, limit=0.8,
            parts={"heat": 0.3, "past_errors": 0.51, "drop": 0.0},
        ),
        "device_risk:d", "uuid part_heat part_past_errors part_drop", 0.8123, 0.8,
        "Device 0 of n1 scores 0.81: past errors 0.51, heat 0.30.",
    ),
    (
        finding(ExchangeFailed, **RANK, epoch=5, step=7, error="gone"),
        "outer_error:j:5:1:3", "epoch step error", 0.0, 0.0, "Replica 1 could not exchange in epoch 5: gone",
    ),
    (
        finding(LossNotFinite, **RANK, attempt=4, step=7, loss="nan"),
        "nan_loss:j:4", "step epoch loss", 7.0, 0.0, "The loss of step 7 is no finite number (nan).",
    ),
    (
        finding(LossSpike, job_id="j", attempt=4, steps_before=16, resume_step=10, before=2.0, after=5.0),
        "loss_spike:j:4", "resume_step steps before after", 5.0, 2.0,
        "Since the resume from step 10 the loss is 5; in the 16 steps before that checkpoint it was 2 at most.",
    ),
    (
        finding(RefusedResult, **RANK, attempt=4, step=7, epoch=5, check="grad_norm", diagnosis="not_valid"),
        "numerics:j:4:1:2:3:7:5:grad_norm:not_valid",
        "check diagnosis first_result second_result step epoch earlier_transients", 7.0, 0.0,
        "Rank 3 of replica 1 refused a result of step 7: grad norm, not valid.",
    ),
    (
        finding(SlowRank, **RANK, attempt=4, node="n1", score="individual", individual=0.5, limit_ratio=0.75),
        "straggler:j:4:1:2:3",
        "score relative individual cause late_s compute_s data_s step_s stage spread epoch", 0.5, 0.75,
        "Rank 3 of replica 1 on n1 works at 50 % of the speed of its own best.",
    ),
)  # fmt: skip


def test_each_struct_of_the_table_has_its_words_here() -> None:
    assert {type(row[0]) for row in TOLD} == set(SIGNALS)


@pytest.mark.parametrize("row", TOLD, ids=lambda row: type(row[0]).__name__)
def test_people_are_shown_a_value_and_a_limit_only_of_what_has_them(
    row: tuple[Finding, str, str, float, float, str],
) -> None:
    found, _, _, value, threshold, _ = row
    kind = type(found)
    valued = any("value" in vars(each) for each in kind.__mro__ if each is not Finding)
    limited = any("threshold" in vars(each) for each in kind.__mro__ if each is not Finding)
    shown = signals.shown(kind.KIND, found.value, found.threshold, found.evidence)
    assert shown == (value if valued else None, threshold if limited else None)
    assert valued or value == 0.0, "no 0 that nobody measured"


def test_no_value_is_shown_of_an_end_that_nobody_saw_and_that_of_a_stranger_as_it_is() -> None:
    assert signals.shown("rank_exit", -1.0, 0.0, {"told": False}) == (None, None)
    assert signals.shown("rank_exit", -1.0, 0.0, {"told": True}) == (-1.0, None)
    assert signals.shown("of a newer release", 3.0, 2.0, {}) == (3.0, 2.0)
    valueless = {"node_check", "node_identity", "outer_error", "signature_rejected"}
    assert {kind for kind in KINDS if signals.shown(kind, 1.0, 1.0, {})[0] is None} == valueless


@pytest.mark.parametrize("row", TOLD, ids=lambda row: type(row[0]).__name__)
def test_what_is_stored_and_told_is_as_before(row: tuple[Finding, str, str, float, float, str]) -> None:
    found, key, evidence, value, threshold, sentence = row
    assert (found.key, found.value, found.threshold, found.sentence) == (key, value, threshold, sentence)
    assert set(found.evidence) == set(evidence.split())
    assert all(isinstance(each, str | int | float | bool | None) for each in found.evidence.values())


@pytest.mark.parametrize("kind", SIGNALS, ids=lambda kind: kind.__name__)
def test_a_kind_says_what_it_means_how_bad_it_is_and_where_it_is(kind: type[Finding]) -> None:
    own = {each.name for each in fields(kind)}
    assert kind.MEANS and kind.SEVERITY in Severity
    assert all(hasattr(kind, name) or name in own for name in kind.KEY)
    assert set(kind.UNKEPT) <= own - set(PLACE)
    assert (Trait.PEOPLE in kind.TRAITS) == (kind.SEVERITY is Severity.NOTICE)
    with pytest.raises(ValueError, match="a key of"):
        kind.key_of()


def test_two_structs_of_one_kind_are_one_kind_to_everybody() -> None:
    for kind in SIGNALS:
        assert (kind.MEANS, kind.TRAITS, kind.SEVERITY) == (
            BY_KIND[kind.KIND].MEANS, BY_KIND[kind.KIND].TRAITS, BY_KIND[kind.KIND].SEVERITY,
        )  # fmt: skip
    assert len({(kind.KIND, kind.PREFIX) for kind in SIGNALS}) == len(SIGNALS)


def test_every_list_of_kinds_holds_what_it_held() -> None:
    assert {trait.name: set(with_trait(trait)) for trait in Trait} == {
        "HARDWARE": {"xid", "device_lost", "device_reading"},
        "ENDS": {"xid", "device_lost"},
        "SUSPECT": {"node_silent", "device_risk", "xid", "device_lost", "device_reading"},
        "DEVICE": {"device_risk", "xid", "device_lost", "device_reading"},
        "ATTEMPT": {"rank_exit", "rank_overdue", "outer_error", "setup_timeout", "nan_loss", "loss_spike"},
        "INCARNATION": {"rank_exit", "rank_overdue", "setup_timeout"},
        "STAYS": {"node_silent", "numerics"},
        "LASTS": {"straggler", "node_check"},
        "PEOPLE": {"signature_rejected"},
    }


def asked() -> Iterator[tuple[str, str]]:
    """(file, kind) of each kind that code asks findings for, or makes them of, in a word of its own."""
    for folder in ("controlplane", "benchmarks", "tests/unit/policy", "tests/properties/policy"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(call, ast.Call):
                    continue
                name = ast.unparse(call.func).rpartition(".")[2]
                place = {"signals_of": 1, "signals_about": 1, "_open": 0, "signal": 0, "SignalFact": -1}.get(name)
                named = [word.value for word in call.keywords if word.arg == "kind"] if name == "SignalFact" else []
                if place is not None and 0 <= place < len(call.args):
                    named.append(call.args[place])
                if ast.unparse(call.func).startswith("Signal.objects.") and name in ("filter", "exclude"):
                    named += [word.value for word in call.keywords if word.arg == "kind"]
                for word in named:
                    if isinstance(word, ast.Constant) and isinstance(word.value, str):
                        yield str(path.relative_to(ROOT)), word.value


def shown() -> Iterator[tuple[str, str]]:
    """(file, kind) of each kind that the page or a benchmark tells from the others."""
    pages = [*(ROOT / "frontend" / "src").rglob("*.ts"), *(ROOT / "frontend" / "src").rglob("*.tsx")]
    for path in sorted(pages):
        for kind in re.findall(r"signal\.kind [!=]== \"(\w+)\"", path.read_text(encoding="utf-8")):
            yield str(path.relative_to(ROOT)), kind
    for path in sorted((ROOT / "benchmarks").rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.keyword) and call.arg == "kinds" and isinstance(call.value, ast.Tuple):
                for word in call.value.elts:
                    yield str(path.relative_to(ROOT)), ast.literal_eval(word)


def test_the_page_and_the_benchmarks_tell_apart_what_is_in_the_table() -> None:
    found = list(shown())
    assert {"xid", "device_reading"} <= {kind for _, kind in found}
    assert [(path, kind) for path, kind in found if kind not in KINDS] == []


def test_nobody_asks_for_a_kind_that_is_not_in_the_table() -> None:
    found = list(asked())
    assert len({kind for _, kind in found}) >= 12
    assert [(path, kind) for path, kind in found if kind not in KINDS] == []
