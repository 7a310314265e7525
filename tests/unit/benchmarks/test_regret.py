"""`benchmarks g14` keeps each moment as soon as it is judged, and goes on where it was."""

import json

from benchmarks import g14_regret


def made_up(seed: int) -> dict[str, object]:
    """A line of a moment, of which every tenth is dearer than need be."""
    cost_s = 15.0 if seed % 10 == 0 else 10.0
    return {
        "seed": seed,
        "chosen": "evict",
        "costs_s": {"evict": cost_s, "restart": 12.0},
        "violations": [],
        "decide_ms": 1.0,
    }


def test_a_run_that_was_stopped_judges_no_moment_twice(tmp_path, monkeypatch):
    out, judged = tmp_path / "g14.jsonl", []
    monkeypatch.setattr("benchmarks.report.RESULTS", tmp_path)
    monkeypatch.setattr(g14_regret, "one", lambda seed: judged.append(seed) or made_up(seed))
    assert g14_regret.main(["--states", "5", "--seed", "0", "--out", str(out)]) == 1
    with out.open("a") as file:
        file.write('{"seed": 5, "cho')
    g14_regret.main(["--states", "7", "--seed", "0", "--out", str(out)])
    assert judged == [0, 1, 2, 3, 4, 5, 6]
    assert [json.loads(line)["seed"] for line in out.read_text().splitlines()] == [0, 1, 2, 3, 4, 5, 6]


def test_the_goal_is_missed_by_the_mean_or_by_the_hundredth_part():
    facts = g14_regret.summed([made_up(seed) for seed in range(100)], seed=0).facts
    assert facts["mean regret (%)"] == 2.5
    assert facts["p99 regret (%)"] == 25.0
    assert facts["another was better"] == {"evict, restart was better": 10}


def test_a_moment_without_an_end_is_told_fails_the_run_and_is_tried_again(tmp_path, monkeypatch):
    out = tmp_path / "g.jsonl"
    monkeypatch.setattr("benchmarks.report.RESULTS", tmp_path)
    monkeypatch.setattr(
        g14_regret, "one", lambda seed: {"seed": seed, "unfit": "it never ends"} if seed else made_up(1)
    )
    assert g14_regret.main(["--states", "2", "--seed", "0", "--out", str(out)]) == 1
    monkeypatch.setattr(g14_regret, "one", lambda seed: made_up(2))
    assert g14_regret.main(["--states", "2", "--seed", "0", "--out", str(out)]) == 0


def test_a_job_that_was_over_before_a_decision_has_none_to_regret():
    over = {"seed": 3, "chosen": "", "costs_s": {}, "violations": [], "decide_ms": 0.0}
    facts = g14_regret.summed([made_up(1), over], seed=0).facts
    assert (facts["states"], facts["of them over before anything was decided"], facts["chosen"]) == (2, 1, {"evict": 1})
