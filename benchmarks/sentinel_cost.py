"""What the sentinel costs, by its parts, at so many nodes with eight devices and a rank on each.

    python -m benchmarks sentinel [--nodes 100 1000 4000 12500] [--interval 1 10] [--seconds 20] [--postgres]

Rows of the fleet as in `benchmarks map`, a private Redis, and the sentinel's own turns (`Sentinel._turn`) as the
leader. Frames are seeded (`benchmarks.sensors`), encoded and sealed as a web process does and appended to the stream
by this process; its time for that is not counted. A turn each quarter of a second, as in production; where one takes
longer the next follows at once, so figures are CPU-seconds for each second of the fleet's time.

CPU is that of the sentinel's thread (`time.thread_time`), split by the functions it calls; Redis is its own process.
`--history-s` fills the history with so many seconds of samples first: what is not stored yet grows within a chunk.
"""

import argparse
import gc
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.fleet_map import DEVICES, RANKS_A_REPLICA, fill
from benchmarks.own_database import own_database
from benchmarks.processes import die_with_parent
from benchmarks.report import Report

TURNS_A_SECOND = 4
WARM_S = 3
START_S = 10.0


def main(argv: list[str]) -> int:
    """Prints a table for each size and interval; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1000, 4000, 12500])
    parser.add_argument("--interval", type=float, nargs="+", default=[1.0, 10.0], metavar="SECONDS")
    parser.add_argument("--shards", type=int, default=1, help="of several it leads one and stands by for another")
    parser.add_argument("--seconds", type=int, default=20, help="of the fleet's time, measured for each size")
    parser.add_argument("--warm", type=int, default=WARM_S, help="seconds before those that are measured")
    parser.add_argument("--history-s", type=int, default=0, help="of samples in the history before it begins")
    parser.add_argument("--default-gc", action="store_true", help="Python's own thresholds of garbage collection")
    parser.add_argument("--profile", action="store_true", help="print where the sentinel's time goes, by function")
    parser.add_argument("--postgres", action="store_true", help="on a private PostgreSQL instead of SQLite")
    options = parser.parse_args(argv)
    report = Report(goal_id="sentinel", title="CPU of the sentinel for each second of the fleet's time, by part")
    with private_redis() as url:
        os.environ["HOLDFAST_REDIS_URL"] = url
        with own_database(postgres=options.postgres):
            for nodes in options.nodes:
                fill(nodes)
                for interval_s in options.interval:
                    _measure(nodes, interval_s, options, report)
    report.finish()
    return 0


@contextmanager
def private_redis() -> Iterator[str]:
    """A Redis of its own on a unix socket; ends with the block, or with who started it."""
    import redis

    from controlplane.demo.ports import redis_binary

    with tempfile.TemporaryDirectory(prefix="holdfast-bench-redis-") as directory:
        socket = Path(directory) / "redis.sock"
        argv = [redis_binary(), "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", directory]
        server = subprocess.Popen(argv, stdout=subprocess.DEVNULL, preexec_fn=die_with_parent)
        try:
            client, until_s = redis.Redis(unix_socket_path=str(socket)), time.monotonic() + START_S
            while True:
                try:
                    client.ping()
                    break
                except redis.RedisError:
                    if time.monotonic() > until_s:
                        raise
                    time.sleep(0.05)
            yield f"unix://{socket}"
        finally:
            server.terminate()
            server.wait(START_S)


class Parts:
    """CPU-seconds of the calling thread by part, as functions are wrapped; nested ones count where they are."""

    def __init__(self) -> None:
        self.spent_s: dict[str, float] = defaultdict(float)
        self._inside: list[float] = []
        self._wrapped: list[tuple[Any, str, Any]] = []

    def unwrap(self) -> None:
        """Everything as it was."""
        while self._wrapped:
            setattr(*self._wrapped.pop())

    def wrap(self, owner: Any, name: str, part: str) -> None:
        """From now on calls of `owner.name` count for `part`, without what is counted inside of them."""
        inner: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            began_s = time.thread_time()
            self._inside.append(0.0)
            try:
                return inner(*args, **kwargs)
            finally:
                took_s = time.thread_time() - began_s
                self.spent_s[part] += took_s - self._inside.pop()
                if self._inside:
                    self._inside[-1] += took_s

        self._wrapped.append((owner, name, inner))
        setattr(owner, name, timed)


class Feeder:
    """Web's side: each node's frame once in `interval_s`, an equal part of the nodes in each quarter of a second."""

    def __init__(self, nodes: int, interval_s: float, *, seed: int = 7) -> None:
        from benchmarks.sensors import Sensors
        from controlplane.jobs.models import Rank
        from controlplane.protocol.launch import RankRef
        from controlplane.runtime.batches import BatchSealer
        from controlplane.sentinel.fleetmap import _RANK

        self.nodes, self.interval_s = nodes, interval_s
        self._turn, self._seq = 0, [0] * nodes
        self._every = max(1, round(interval_s * TURNS_A_SECOND))
        parts = min(self._every, nodes)
        self._shares = [range(part, nodes, parts) for part in range(parts)]
        self._sensors = [
            Sensors(len(s) * DEVICES, seed=seed + n, interval_s=interval_s) for n, s in enumerate(self._shares)
        ]
        self._sealer = BatchSealer("wbench")
        self._ranks: dict[str, list[Any]] = defaultdict(list)
        for *ref, node_id, device_id in Rank.objects.filter(released_at=None).values_list(*_RANK):
            self._ranks[node_id].append((RankRef(*ref), int(device_id.rpartition(".")[2])))

    def items(self, at_s: float) -> list[tuple[str, str, float, bytes]]:
        """The frames of the next quarter of a second."""
        turn = self._turn % self._every
        self._turn += 1
        if turn >= len(self._shares):
            return []
        samples = iter(list(self._sensors[turn].samples()))
        return [self._frame(number, samples, at_s) for number in self._shares[turn]]

    def _frame(self, number: int, samples: Iterator[Any], at_s: float) -> tuple[str, str, float, bytes]:
        import msgspec

        from controlplane.protocol.codec import encode_frame
        from controlplane.protocol.frames import AgentFrame, RankStatus
        from controlplane.protocol.states import Phase, RankState, Section

        self._seq[number] += 1
        node_id, seq = f"node_{self.nodes}_{number}", self._seq[number]
        devices = tuple(msgspec.structs.replace(next(samples), index=index) for index in range(DEVICES))
        ranks = tuple(
            RankStatus(
                ref=ref,
                state=RankState.TRAINING,
                pid=1000 + index,
                device_index=index,
                section=Section.STEP,
                phase=Phase.COMPUTE if (seq + ref.rank) % 4 else Phase.EXCHANGE,
                step=seq // 2,
                phase_age_s=0.1 * (seq % 5),
                silent_s=0.05,
            )
            for ref, index in self._ranks[node_id]
        )
        frame = AgentFrame(
            seq=seq, uptime_s=seq * self.interval_s, devices=devices, ranks=ranks, cpu_ratio=0.01, rss_bytes=60 << 20
        )
        return node_id, "wbench.s", at_s, encode_frame(frame)

    def append(self, client: Any, at_s: float) -> int:
        """To the stream, sealed; how many frames."""
        from controlplane.runtime import bus

        items = self.items(at_s)
        for first in range(0, max(1, len(items)), 350):
            for entry in self._sealer.seal(items[first : first + 350]):
                client.xadd(bus.STREAM, {"d": entry})
        return len(items)


def _wrapped(sentinel: Any, parts: Parts) -> None:
    from controlplane.sentinel import seeds, stream
    from controlplane.sentinel.detect import RiskLatch

    shared: list[tuple[Any, str, str]] = [
        (sentinel.reader, "read", "read and unseal"),
        (stream, "decode_from_agent", "decode frames"),
        (sentinel.follower, "turn", "map"),
        (seeds, "name", "map"),
        (seeds, "seed", "counters before"),
        (RiskLatch, "step", "risk"),
    ]
    for shard in sentinel.shards.values():
        shared += [
            (shard.live_state, "expect", "map"),
            (shard.live_state, "take", "take samples, detect"),
            (shard.history, "take", "history: collect"),
            (shard.history, "flush", "history: store"),
            (shard.history, "publish", "history: show"),
            (shard.scanner, "scan", "scan"),
            (shard.scanner, "wake_for_stuck", "scan for stuck ranks"),
            (shard.publisher, "publish", "publish pictures"),
            (shard.publisher, "tell_ranks", "ranks to browsers"),
            (shard.publisher, "tell_devices", "devices to browsers"),
        ]
    for owner, name, part in shared:
        parts.wrap(owner, name, part)


class _Pauses:
    """What Python's collector took of the sentinel's turns."""

    def __init__(self) -> None:
        self.took_s: list[float] = []
        self._began_s = 0.0

    def __call__(self, phase: str, _info: dict[str, int]) -> None:
        """As `gc.callbacks` call it."""
        if phase == "start":
            self._began_s = time.thread_time()
        else:
            self.took_s.append(time.thread_time() - self._began_s)


class _Scripted:
    """`process.Every` by the benchmark's own turns instead of a clock."""

    def __init__(self, turns: int) -> None:
        self.turns, self.passed = turns, -1

    def due(self, moment: float) -> bool:
        """Once in `turns`; asked once a turn."""
        self.passed += 1
        return self.passed % self.turns == 0


def _leading(shards: int) -> Any:
    """A sentinel that has the first lease, never renews it, and stands by for the second shard, if there is one."""
    from django.conf import settings

    from controlplane.sentinel import leadership, process

    settings.SENTINEL_SHARDS = shards
    sentinel = process.Sentinel()
    sentinel.leadership.turn()
    held = leadership.Held(term=sentinel.leadership.term() or 0, kept_s=math.inf)
    sentinel.leadership.held, sentinel.leadership.follow = {0: held}, frozenset(range(min(2, shards)))
    sentinel._follow(0.0)
    sentinel._begin_to_lead(sentinel.shards[0], held)
    return sentinel


def _measure(nodes: int, interval_s: float, options: argparse.Namespace, report: Report) -> None:
    import redis
    from django.conf import settings

    from controlplane.runtime import bus
    from controlplane.sentinel import process

    settings.SAMPLE_INTERVAL_S, settings.GRACE_S = interval_s, 0.0
    client = redis.Redis.from_url(os.environ["HOLDFAST_REDIS_URL"])
    client.flushall()
    if not options.default_gc and hasattr(process, "collect_seldom"):
        process.collect_seldom()
    sentinel = _leading(options.shards)
    feeder = Feeder(nodes, interval_s)
    every = {
        name: _Scripted(max(1, round(getattr(process, constant) * TURNS_A_SECOND)))
        for name, constant in (
            ("map", "MAP_S"), ("scan", "SCAN_S"), ("ranks", "RANKS_S"), ("devices", "DEVICES_S"),
            ("history", "HISTORY_S"), ("dropped", "DROPPED_S"),
        )
    }  # fmt: skip
    sentinel.reader._last_id = "0"
    parts = Parts()
    _wrapped(sentinel, parts)
    one_second = _second_of(sentinel, feeder, client, every, options.profile)
    _fill_history(sentinel, feeder, options.history_s)
    for _ in range(options.warm + round(interval_s)):
        one_second()
    parts.spent_s.clear()
    pauses = _Pauses()
    gc.callbacks.append(pauses)
    redis_s, rows, frames = _redis_cpu_s(client), defaultdict(list), 0
    for _ in range(options.seconds):
        parts.spent_s.clear()
        frames += one_second()
        for part, spent_s in parts.spent_s.items():
            rows[part].append(spent_s)
    gc.callbacks.remove(pauses)
    size = f"{nodes} nodes, {interval_s:g} s" + (f", {options.shards} shards" if options.shards > 1 else "")
    for part, values in rows.items():
        report.add(f"{size}: {part}", "CPU-s/s", values + [0.0] * (options.seconds - len(values)))
    report.add(
        f"{size}: the sentinel", "CPU-s/s", [sum(each) for each in zip(*_even(rows, options.seconds), strict=True)]
    )
    redis_used_s = (_redis_cpu_s(client) - redis_s) / options.seconds
    used = client.info()["used_memory"] / 1e6
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    report.facts[size] = (
        f"{frames} frames; Redis {redis_used_s:.3f} CPU-s/s, {used:.0f} MB, of it the stream"
        f" {(client.memory_usage(bus.STREAM) or 0) / 1e6:.0f}; resident {resident} MiB at most; whole reads of the map"
        f" {sentinel.follower.whole_reads}; left out {dict(sentinel.shards[0].live_state.dropped)};"
        f" Python's collector {sum(pauses.took_s) / options.seconds:.3f} CPU-s/s, the longest pass"
        f" {max(pauses.took_s, default=0.0) * 1000:.0f} ms (the feeder's allocations count too)"
    )
    parts.unwrap()
    total = sorted(map(sum, zip(*_even(rows, options.seconds), strict=True)))
    print(f"{size}: {total[len(total) // 2]:.3f} CPU-s/s; {report.facts[size]}", file=sys.stderr, flush=True)
    _stop_profile(options.profile)
    gc.collect()


def _even(rows: dict[str, list[float]], seconds: int) -> list[list[float]]:
    return [values + [0.0] * (seconds - len(values)) for values in rows.values()]


_profiler: Any = None


def _second_of(sentinel: Any, feeder: Feeder, client: Any, every: dict[str, Any], profile: bool) -> Callable[[], int]:
    """One second of the fleet's time, in step with the clock where the turns are short enough."""

    def turns_of(began_s: float) -> int:
        frames = 0
        for quarter in range(TURNS_A_SECOND):
            frames += feeder.append(client, time.time())
            _timed_turn(sentinel, every, profile)
            wait_s = began_s + (quarter + 1) / TURNS_A_SECOND - time.monotonic()
            if wait_s > 0:
                time.sleep(wait_s)
        # A real reader would have waited for frames: entries above what one read takes.
        return frames

    return lambda: turns_of(time.monotonic())


def _timed_turn(sentinel: Any, every: dict[str, Any], profile: bool) -> None:
    global _profiler
    if profile and _profiler is None:
        import cProfile

        _profiler = cProfile.Profile()
    if profile:
        _profiler.enable()
    sentinel._turn(every)
    if profile:
        _profiler.disable()


def _stop_profile(profile: bool) -> None:
    global _profiler
    if profile and _profiler is not None:
        import pstats

        pstats.Stats(_profiler).sort_stats("tottime").print_stats(35)
        _profiler = None


def _fill_history(sentinel: Any, feeder: Feeder, seconds: int) -> None:
    """Samples of so many seconds before now, as if they had come then."""
    from controlplane.protocol.codec import decode_from_agent
    from controlplane.sentinel.heard import Heard

    if not seconds:
        return
    sentinel.follower.turn()
    for shard in sentinel.shards.values():
        shard.expect(None)
    began_s = time.time() - seconds
    for quarter in range(seconds * TURNS_A_SECOND):
        at_s = began_s + quarter / TURNS_A_SECOND
        heard = [
            Heard(node_id=node_id, session_id=session_id, at_s=at_s, frame=decode_from_agent(data))
            for node_id, session_id, _, data in feeder.items(at_s)
        ]
        sentinel._take(heard, time.time())


def _redis_cpu_s(client: Any) -> float:
    used = client.info("cpu")
    return float(used["used_cpu_sys"] + used["used_cpu_user"])


assert RANKS_A_REPLICA % DEVICES == 0
