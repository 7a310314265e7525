"""`benchmarks g5` keeps each world as soon as it has run, and claims no more than what ran."""

import gzip
import json

from benchmarks import g5_heartbeats
from controlplane.simulator.heartbeats import NODES, heartbeats_of_a_world

A_WORLD = heartbeats_of_a_world(NODES)


def made_up(seed: int, **differs: object) -> dict[str, object]:
    """A world's line in which nothing was wrong."""
    counted = {"worlds": 1, "heartbeats": A_WORLD, "pauses": 12, "stops": 4, "left_out": 1, "evictions": 0}
    return {"seed": seed, **counted, "restarts": 0, "steps": 100, "told": [], **differs}


def run(tmp_path, monkeypatch, one, *options: str) -> int:
    monkeypatch.setattr("benchmarks.report.RESULTS", tmp_path)
    monkeypatch.setattr(g5_heartbeats, "a_world", one)
    fixed = ["--processes", "1", "--seed", "7", "--out", str(tmp_path / "g5.jsonl")]
    return g5_heartbeats.main([*fixed, *options])


def test_a_run_that_was_stopped_goes_on_with_the_worlds_that_are_left(tmp_path, monkeypatch, capsys):
    ran: list[int] = []
    one = lambda seed: ran.append(seed) or made_up(seed)  # noqa: E731
    assert run(tmp_path, monkeypatch, one, "--heartbeats", str(2 * A_WORLD)) == 0
    assert run(tmp_path, monkeypatch, one, "--heartbeats", str(4 * A_WORLD)) == 0
    assert ran == [7, 8, 9, 10]
    assert f"{4 * A_WORLD} heartbeats of 4 worlds" in capsys.readouterr().out


def test_fewer_heartbeats_than_asked_for_are_no_pass(tmp_path, monkeypatch):
    assert run(tmp_path, monkeypatch, made_up, "--heartbeats", str(2 * A_WORLD)) == 0
    assert run(tmp_path, monkeypatch, made_up, "--heartbeats", str(4 * A_WORLD), "--sum") == 1


def test_one_eviction_of_one_world_fails_the_whole(tmp_path, monkeypatch, capsys):
    wrong = {"evictions": 1, "told": ["seed 8: replica_failure/evict"]}
    one = lambda seed: made_up(seed, **(wrong if seed == 8 else {}))  # noqa: E731
    assert run(tmp_path, monkeypatch, one, "--heartbeats", str(3 * A_WORLD)) == 1
    assert "seed 8: replica_failure/evict" in capsys.readouterr().out


def test_one_restart_fails_the_whole_as_nothing_was_wrong(tmp_path, monkeypatch, capsys):
    one = lambda seed: made_up(seed, restarts=int(seed == 8))  # noqa: E731
    assert run(tmp_path, monkeypatch, one, "--heartbeats", str(3 * A_WORLD)) == 1
    assert "1 restarts, 0 false evictions\nFAILED" in capsys.readouterr().out


def test_holds_are_counted_and_lines_of_before_are_still_read(tmp_path, monkeypatch, capsys):
    one = lambda seed: made_up(seed, **({"holds": 3} if seed == 8 else {}))  # noqa: E731
    assert "holds" not in made_up(7)
    assert run(tmp_path, monkeypatch, one, "--heartbeats", str(3 * A_WORLD)) == 0
    assert "3 decisions to hold, 0 restarts" in capsys.readouterr().out


def test_the_line_of_a_real_world_is_read_back_as_it_was_counted(monkeypatch):
    monkeypatch.setattr(g5_heartbeats, "one", lambda seed: short(seed))
    line = g5_heartbeats.a_world(5)
    assert g5_heartbeats.summed([json.loads(json.dumps(line))]) == short(5)


def short(seed: int):
    """A minute of a small world."""
    from controlplane.simulator.heartbeats import one

    return one(seed, nodes=4, world_s=120.0)


def test_lines_that_are_kept_with_the_results_are_not_made_again(tmp_path, monkeypatch):
    ran: list[int] = []
    one = lambda seed: ran.append(seed) or made_up(seed)  # noqa: E731
    assert run(tmp_path, monkeypatch, one, "--heartbeats", str(2 * A_WORLD)) == 0
    kept = tmp_path / "lines"
    kept.mkdir()
    (kept / "g5.jsonl.gz").write_bytes(gzip.compress((tmp_path / "g5.jsonl").read_bytes()))
    (tmp_path / "g5.jsonl").unlink()
    monkeypatch.setattr("benchmarks.seed_lines.KEPT", kept)
    assert run(tmp_path, monkeypatch, one, "--heartbeats", str(3 * A_WORLD)) == 0
    assert ran == [7, 8, 9]


def test_a_line_of_other_sources_is_made_again(tmp_path, monkeypatch):
    ran: list[int] = []
    one = lambda seed: ran.append(seed) or made_up(seed)  # noqa: E731
    assert run(tmp_path, monkeypatch, one, "--heartbeats", str(A_WORLD)) == 0
    monkeypatch.setattr("benchmarks.seed_lines.state_of_sources", lambda: "other")
    assert run(tmp_path, monkeypatch, one, "--heartbeats", str(A_WORLD), "--sum") == 1
    assert run(tmp_path, monkeypatch, one, "--heartbeats", str(A_WORLD)) == 0
    assert ran == [7, 7]
