"""State tables, configuration, risk, XIDs, layouts, placement, costs, deadlines."""

import math

import msgspec
import pytest

from controlplane.policy import states_doc
from controlplane.policy.checkpoints import newest_loadable, newest_trusted, skipped_corrupt
from controlplane.policy.config import PolicyConfig
from controlplane.policy.decide import claims, decide
from controlplane.policy.errors import IllegalTransition, NoLayout, Unsatisfiable
from controlplane.policy.goodput import break_even_precision, daly_ettr, replica_ettr, young_interval_s
from controlplane.policy.ladder import backoff_s
from controlplane.policy.layout import plan_layout
from controlplane.policy.placement import Pool, build_pool, choose_spares, place_gang, place_replica
from controlplane.policy.risk import SAMPLE_S, WEIGHTS, RiskSample, risk_parts, risk_score
from controlplane.policy.transitions import TABLES, check, is_final
from controlplane.policy.xid import XidBucket, known_xids, look_up
from controlplane.protocol.spec import Model, Parallelism
from controlplane.protocol.spec_fault import Ground
from controlplane.protocol.spec_lint import lint
from controlplane.protocol.states import CheckpointState, NodeState

from .builders import CONFIG, NOW_S, checkpoint, node, pending, replica, running, signal, spec, starting

# --- tables ----------------------------------------------------------------------------


def test_every_state_has_a_row_in_its_table():
    for name, table in TABLES.items():
        kind = type(next(iter(table)))
        assert set(table) == set(kind), name


def test_every_move_leads_to_a_state_and_says_why():
    for table in TABLES.values():
        for moves in table.values():
            assert all(after in table and reason for after, reason in moves.items())


def test_no_state_moves_to_itself():
    assert all(before not in moves for table in TABLES.values() for before, moves in table.items())


def test_every_state_can_be_reached():
    for name, table in TABLES.items():
        start = next(iter(table))
        reached, front = {start}, [start]
        while front:
            front = [after for before in front for after in table[before] if after not in reached]
            reached |= set(front)
        assert reached == set(table), name


def test_a_legal_move_tells_its_reason():
    assert check("job", "running", "recovering") == "a replica was lost"


@pytest.mark.parametrize(
    ("machine", "before", "after"),
    [("job", "succeeded", "running"), ("replica", "evicted", "active"), ("rank", "exited", "training")],
)
def test_an_illegal_move_is_refused_with_the_legal_ones(machine, before, after):
    with pytest.raises(IllegalTransition, match=f"{before} -> {after} is not allowed"):
        check(machine, before, after)


def test_an_unknown_state_is_refused():
    with pytest.raises(IllegalTransition, match="no state"):
        check("job", "asleep", "running")


@pytest.mark.parametrize(("machine", "state", "final"), [("job", "failed", True), ("job", "pending", False)])
def test_final_states_are_known(machine, state, final):
    assert is_final(machine, state) is final


def test_the_page_of_states_is_current():
    assert states_doc.TARGET.read_text(encoding="utf-8") == states_doc.render()


# --- configuration --------------------------------------------------------------------------


def test_equal_policies_have_equal_versions():
    assert PolicyConfig().version == PolicyConfig().version
    assert PolicyConfig().version != PolicyConfig(lease_s=11.0).version


def spec_with(threshold: float) -> dict[str, object]:
    return {
        "apiVersion": "holdfast/v1",
        "kind": "TrainJob",
        "metadata": {"name": "a"},
        "spec": {"resources": {"nodes": 2, "gpus_per_node": 2}, "resiliency": {"risk": {"threshold": threshold}}},
    }


def test_a_threshold_that_cannot_fire_is_refused_with_the_reason():
    without_error_counters = sum(weight for name, weight in WEIGHTS.items() if name != "errors")
    faults = lint(spec_with(0.95), Ground(reachable_risk=without_error_counters)).faults
    assert [fault.pointer for fault in faults] == ["/spec/resiliency/risk/threshold"]
    assert "at most 0.75" in faults[0].message


@pytest.mark.parametrize("threshold", [0.10, 0.30, 0.75])
def test_a_reachable_threshold_passes(threshold):
    assert lint(spec_with(threshold), Ground(reachable_risk=0.75)).spec is not None


# --- risk ---------------------------------------------------------------------------------------


def calm(count: int = 60, **last) -> list[RiskSample]:
    base = {
        "temperature_c": 60.0,
        "memory_utilization_ratio": 0.5,
        "errors": 0,
        "power_w": 300.0,
        "utilization_ratio": 0.9,
    }
    samples = [RiskSample(at_s=SAMPLE_S * i, **base) for i in range(count)]
    return [*samples[:-1], msgspec.structs.replace(samples[-1], **last)]


def test_the_weights_are_the_seeds():
    assert sum(WEIGHTS.values()) == pytest.approx(1.0)


def test_a_calm_device_scores_nothing():
    assert risk_score(calm()) == 0.0
    assert risk_score([]) == 0.0


@pytest.mark.parametrize(
    ("last", "part", "value"),
    [
        ({"temperature_c": 77.5}, "temperature", 0.5),
        ({"temperature_c": 120.0}, "temperature", 1.0),
        ({"memory_utilization_ratio": 0.90}, "memory", 0.5),
        ({"errors": 3}, "errors", 1.0),
        ({"past_errors": 1}, "errors", 0.5),
        ({"errors": 1, "past_errors": 4}, "errors", 1.0),
        ({"power_w": 322.5}, "power", 0.5),
        ({"power_w": 277.5}, "power", 0.5),
        ({"utilization_ratio": 0.75}, "utilization_drop", 0.5),
        ({"temperature_c": 62.0833333}, "temp_rise", 0.5),
    ],
)
def test_each_part_is_the_seeds_formula(last, part, value):
    assert risk_parts(calm(**last))[part] == pytest.approx(value, abs=1e-3)


def test_a_missing_reading_is_no_reading():
    last = {
        "temperature_c": None,
        "memory_utilization_ratio": None,
        "errors": None,
        "power_w": None,
        "utilization_ratio": None,
    }
    assert risk_score(calm(**last)) == 0.0


def test_less_use_while_saving_is_no_symptom():
    assert risk_parts(calm(utilization_ratio=0.0, training=False))["utilization_drop"] == 0.0


def test_only_the_window_counts():
    old = [RiskSample(at_s=0.0, utilization_ratio=1.0)] * 200
    assert risk_parts(old + calm(utilization_ratio=0.9))["utilization_drop"] == 0.0


# --- XIDs ------------------------------------------------------------------------------------------


def test_every_listed_xid_has_a_verdict():
    assert len(known_xids()) > 150
    assert all(look_up(xid).provenance for xid in known_xids())


@pytest.mark.parametrize(
    ("xid", "bucket"),
    [(79, "fatal"), (48, "reset"), (74, "reset"), (95, "reset"), (31, "application"), (43, "ignore"), (63, "degraded")],
)
def test_the_action_decides_the_bucket(xid, bucket):
    assert look_up(xid).bucket == bucket


@pytest.mark.parametrize("xid", [63, 68, 69, 121])
def test_where_the_two_disagree_both_are_told(xid):
    verdict = look_up(xid)
    assert "NVIDIA" in verdict.disagreement
    assert "gpud" in verdict.disagreement
    assert verdict.bucket is not XidBucket.FATAL


def test_the_sites_word_is_last():
    verdict = look_up(79, {79: "ignore"})
    assert (verdict.bucket, verdict.provenance) == (XidBucket.IGNORE, "site override")
    with pytest.raises(ValueError, match="sometimes"):
        look_up(79, {79: "sometimes"})


# --- layouts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("devices", "dp", "idle"), [(6, 3, 0), (5, 2, 1), (4, 2, 0), (3, 1, 1), (9, 3, 3)])
def test_tp_and_pp_are_kept_and_dp_shrinks(devices, dp, idle):
    layout = plan_layout(spec(), devices)
    assert (layout.parallelism.tp, layout.parallelism.pp, layout.replicas) == (1, 2, dp)
    assert layout.idle_devices == idle


@pytest.mark.parametrize("devices", range(1, 16))
def test_a_re_planned_layout_divides_the_model(devices):
    wide = spec(parallelism=Parallelism(tp=4, pp=4, dp=2), model=Model(heads=4, layers=4), nodes=16)
    found = plan_layout(wide, devices).parallelism
    assert wide.model.heads % found.tp == 0
    assert wide.model.layers % found.pp == 0
    assert found.tp * found.pp * found.dp <= devices


def test_kv_heads_bound_tp():
    narrow = spec(parallelism=Parallelism(tp=4, pp=1, dp=1), model=Model(heads=4, kv_heads=1, layers=3))
    assert plan_layout(narrow, 3).parallelism.tp == 1


def test_no_device_is_no_layout():
    with pytest.raises(NoLayout):
        plan_layout(spec(), 0)


def test_min_replicas_bound_the_layout():
    with pytest.raises(NoLayout):
        plan_layout(spec(min_replicas=3), 2)


# --- placement ------------------------------------------------------------------------------------------


def pool(*nodes):
    return build_pool(tuple(nodes), job_id="job_1")


def test_a_replica_goes_to_one_node_when_it_fits():
    assert {p.node_id for p in place_replica(pool(node(0, devices=1), node(1, devices=4)), 3)} == {"n1"}


def test_a_replica_wider_than_any_node_takes_the_fullest():
    placed = place_replica(pool(node(0, devices=1), node(1, devices=2), node(2, devices=2)), 4)
    assert {p.node_id for p in placed} == {"n1", "n2"}
    assert [p.rank for p in placed] == [0, 1, 2, 3]


def test_a_gang_is_placed_whole_or_not_at_all():
    with pytest.raises(Unsatisfiable, match="need 6 devices, 4 are free"):
        place_gang(pool(node(0), node(1)), 3, 2)


def test_unhealthy_devices_are_not_given():
    sick = node(0)
    sick = msgspec.structs.replace(
        sick, devices=tuple(msgspec.structs.replace(d, healthy=d.index == 0) for d in sick.devices)
    )
    assert pool(sick).size == 1


def test_a_reserved_node_lends_what_is_not_held():
    held = node(0, free=False, reserved_for="job_1")
    unheld = msgspec.structs.replace(held, devices=tuple(msgspec.structs.replace(d, held=False) for d in held.devices))
    assert pool(held).size == 0
    assert pool(unheld).size == 2
    assert build_pool((unheld,), job_id="job_1", use_reserved=False).size == 0


def test_spares_are_whole_nodes():
    assert choose_spares(pool(node(0), node(1)), 1) == ("n0",)
    assert choose_spares(pool(node(0), node(1)), 3) == ("n0", "n1")
    assert choose_spares(pool(), 0) == ()
    with pytest.raises(Unsatisfiable, match="3 spare devices"):
        choose_spares(pool(node(0)), 3)


def test_a_pool_shrinks_by_what_is_taken():
    assert Pool(nodes=(("n0", (0, 1)),)).without([("n0", 0)]).nodes == (("n0", (1,)),)
    assert Pool(nodes=(("n0", (0, 1)),)).without_nodes(["n0"]).size == 0


def test_quarantine_keeps_a_node_out():
    assert pool(node(0, state=NodeState.QUARANTINED)).size == 0


# --- goodput ------------------------------------------------------------------------------------------------


def test_young():
    assert young_interval_s(2.0, 3600.0) == pytest.approx(120.0)


def test_daly_at_a_large_mtbf_is_the_share_of_saves():
    assert daly_ettr(100.0, 1.0, 10.0, 1e9) == pytest.approx(100.0 / 101.0, rel=1e-4)


def test_replica_fault_tolerance_reproduces_the_published_points():
    assert replica_ettr(600.0, 0.0, 0.0, 12, 1080.0) == pytest.approx(0.444, abs=0.001)
    assert replica_ettr(180.0, 0.0, 0.0, 12, 1080.0) == pytest.approx(0.833, abs=0.001)
    assert replica_ettr(1e9, 0.0, 0.0, 12, 1.0) == 0.0


def test_break_even_precisions_are_those_of_the_goals():
    assert break_even_precision(0.5, 105.0) == pytest.approx(0.005, abs=0.001)
    assert break_even_precision(11.0, 31.0) == pytest.approx(0.26, abs=0.005)


def test_trust_comes_before_newness():
    found = (checkpoint(10), checkpoint(20, CheckpointState.CORRUPT), checkpoint(30, CheckpointState.WRITING))
    assert newest_trusted(found).step == 10
    assert [fact.step for fact in skipped_corrupt(found, newest_trusted(found))] == [20]
    assert newest_trusted(()) is None


def local(step: int, *holders: tuple[str, ...], layout: Parallelism | None = None):
    return checkpoint(
        step,
        CheckpointState.REPLICATED,
        id=f"lo_{step}",
        path=f"local:{step}",
        holders=holders,
        layout=layout or Parallelism(pp=2),
    )


def test_a_local_checkpoint_is_resumed_only_where_each_shard_has_a_holder():
    far, near = checkpoint(10), local(20, ("n0", "n1"), ("n1", "n2"))
    asked = Parallelism(pp=2, dp=3)

    def chosen(*nodes: str, layout: Parallelism = asked):
        return newest_loadable((far, near), layout, frozenset(nodes)).step

    assert newest_trusted((far, near)).step == 20
    assert [chosen("n1"), chosen("n0", "n2"), chosen("n0"), chosen("n9")] == [20, 20, 10, 10]
    assert chosen("n1", layout=Parallelism(tp=2, dp=3)) == 10
    assert newest_loadable((local(20),), asked, frozenset({"n0"})) is None


def test_of_one_step_in_both_tiers_the_nearer_is_taken():
    both = (checkpoint(20, layout=Parallelism(pp=2)), local(20, ("n0",)))
    assert newest_loadable(both, Parallelism(pp=2), frozenset({"n0"})).path == "local:20"
    assert newest_loadable(both, Parallelism(pp=2), frozenset({"n1"})).path == "/ck/20"


# --- decide -----------------------------------------------------------------------------------------------------


def dead(index: int, number: int = 1):
    return signal("rank_exit", number, replica=index, incarnation=1, rank=0, value=1.0)


def test_decide_is_a_function():
    world = running(signals=(dead(1),))
    assert decide(world, CONFIG) == decide(world, CONFIG)


def test_two_decisions_of_a_plan_never_touch_the_same_thing():
    error = signal("outer_error", 2, replica=0, incarnation=1, seen_s=NOW_S - 5.0)
    fault = signal("xid", 3, node_id="n1", device_index=0, value=79.0)
    plan = decide(running(signals=(dead(1), error, fault)), CONFIG)
    seen: set[str] = set()
    for decision in plan.decisions:
        assert not claims(decision) & seen
        seen |= claims(decision)


def test_a_change_asks_for_a_look_soon_and_calm_for_none():
    assert decide(running(signals=(dead(1),)), CONFIG).next_pass_s == NOW_S + CONFIG.follow_up_s
    assert decide(running(), CONFIG).next_pass_s is None


def test_a_waiting_job_is_looked_at_again():
    waits = pending(nodes=())
    assert decide(waits, CONFIG).next_pass_s == NOW_S + CONFIG.capacity_retry_s


def test_every_deadline_is_ahead():
    late = starting(replicas=tuple(replica(i, joined_ranks=0, state="forming", state_since_s=NOW_S) for i in range(3)))
    assert decide(late, CONFIG).next_pass_s > NOW_S
    asked = running(install=None, view_since_s=NOW_S)
    assert decide(asked, CONFIG).next_pass_s == NOW_S + asked.learned.step_max_s + CONFIG.witness_s


@pytest.mark.parametrize(("failed", "pause_s"), [(0, 0.0), (1, 2.0), (2, 4.0), (5, 32.0), (6, 60.0), (99, 60.0)])
def test_the_pause_before_a_start_doubles_and_ends(failed, pause_s):
    assert backoff_s(failed, CONFIG) == pause_s
    assert math.isfinite(pause_s)
