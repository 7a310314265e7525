"""A load test from beginning to end: the stack, the generators, the measured window, and what came of it.

1. A stack is started, or one that stands is taken. 2. Every agent enrols. 3. They connect. 4. The fleet settles.
5. The window: heartbeats and the script. 6. Heartbeats are held, every event is acknowledged, and what was sent is
compared with what came in. 7. If asked, every web process is killed and the fleet's return is timed.
"""

import os
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from controlplane.bench import figures, script
from controlplane.bench.generator import BEGIN, CONNECT, END, HOLD, RESUME, WATCH, Task
from controlplane.bench.identity import BEHIND_TLS
from controlplane.bench.incidents import Opened, opened
from controlplane.bench.players import Players
from controlplane.bench.report import Outcome, Return
from controlplane.bench.script import Fleet
from controlplane.bench.stack import ONE_OF_EACH, Shape, Stack, allow_sockets, standing
from controlplane.bench.tally import Counted, plus
from controlplane.bench.watched import Use, cores, ended, grew, scrape, spent_ms, uses
from controlplane.demo.driver import Driver

AGENTS_A_GENERATOR = 6_500
USES_A_TOKEN = 5_000
ENROL_PER_S, CONNECT_S, RETURN_S = 2.0, 180.0, 180.0
SETTLE_S, SILENT_AFTER_HOLD_S = 5.0, 2.0
LEAD_S, POLL_S = 0.5, 0.25
ANSWER_S = 120.0

Say = Callable[[str], None]


class RunError(RuntimeError):
    """The load test could not be carried out; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """`fleet`, against a stack of our own of this `shape`, or against `server` with `join_token` (and `api_token`,
    "" for none). `kill_web`: time the return of all at the end. `generators` 0: as few as will do. `watch` is called
    with our own stack each `watch_each_s` of the measured window, and at its end; `judge` with it and what all agents
    counted, once all that they had to say is stored."""

    fleet: Fleet
    shape: Shape = ONE_OF_EACH
    server: str = ""
    join_token: str = ""
    api_token: str = ""
    kill_web: bool = False
    generators: int = 0
    watch: Callable[[Stack], None] | None = None
    watch_each_s: float = 60.0
    judge: Callable[[Stack, Counted], None] | None = None


@dataclass(frozen=True, slots=True)
class _Target:
    """Where agents and questions go. `stack` None: it is somebody else's."""

    servers: list[str]
    tokens: list[str]
    metrics: Mapping[str, str]
    api: Driver | None
    stack: Stack | None


def run(wanted: Wanted, say: Say) -> Outcome:
    """Raises ScriptInvalid, RunError, GeneratorError, StackError, MissingPostgres or MissingProgram. `say` takes what
    is done now, for people."""
    script.check(wanted.fleet)
    if wanted.server and wanted.fleet.agents > script.AGENTS_A_TOKEN:
        raise RunError(f"a join token is for {script.AGENTS_A_TOKEN} agents at most: so many against a --server")
    allow_sockets()
    with ExitStack() as stack:
        return _run(wanted, _target(wanted, stack, say), say)


def parts_of(wanted: Wanted) -> int:
    """How many processes play its agents: none of them has no agent."""
    agents = wanted.fleet.agents
    return min(wanted.generators or -(-agents // AGENTS_A_GENERATOR), agents)


def _target(wanted: Wanted, context: ExitStack, say: Say) -> _Target:
    fleet = wanted.fleet
    if wanted.server:
        api = Driver(wanted.server, wanted.api_token) if wanted.api_token else None
        metrics = {"web": f"{wanted.server}/metrics"}
        return _Target([wanted.server], [wanted.join_token], metrics, api, None)
    say("Starting PostgreSQL, Redis, the web processes, sentinel, worker and beat.")
    stack = context.enter_context(standing(wanted.shape, interval_s=fleet.interval_s))
    tokens = stack.join_tokens(fleet.agents, USES_A_TOKEN)
    api = Driver(stack.servers[0], stack.api_token(), headers=BEHIND_TLS)
    return _Target(stack.servers, tokens, stack.metrics, api, stack)


def _run(wanted: Wanted, target: _Target, say: Say) -> Outcome:
    fleet = wanted.fleet
    parts = parts_of(wanted)
    uses_a_token = USES_A_TOKEN if target.stack is not None else script.AGENTS_A_TOKEN
    run_id = secrets.token_hex(4)
    tasks = [
        Task(
            fleet=fleet, part=part, parts=parts, servers=target.servers, tokens=target.tokens, uses=uses_a_token,
            run_id=run_id, behind_tls=urlsplit(target.servers[0]).scheme == "http",
        )
        for part in range(parts)
    ]  # fmt: skip
    with Players(tasks) as players:
        course = _Course(wanted, target, players, say)
        course.arrive()
        course.measure()
        course.compare()
        if wanted.kill_web:
            course.come_back()
        return course.outcome()


class _Course:
    """The steps of one run, each with what the next ones need."""

    def __init__(self, wanted: Wanted, target: _Target, players: Players, say: Say) -> None:
        self._wanted, self._fleet, self._target = wanted, wanted.fleet, target
        self._players, self._say = players, say
        self._well = self._fleet.agents - self._fleet.faults.hostile
        self._enrolled_s = self._connected_s = self._elapsed_s = 0.0
        self._connected = 0
        self._before = scrape(target.metrics)
        self._begun = self._ended = self._before
        self._used: dict[str, Use] = {}
        self._use: dict[str, Use] = {}
        self._load: list[float] = []
        self._window: list[Counted] = []
        self._opened: list[Opened] = []
        self._session_ms: dict[str, float] = {}
        self._return: Return | None = None

    def arrive(self) -> None:
        """Enrol, connect, settle. Raises RunError where less than half of those that behave get a session."""
        fleet, players = self._fleet, self._players
        self._say(f"Enrolling {fleet.agents} agents.")
        began_s = time.monotonic()
        players.all_done("enrol", ANSWER_S + fleet.agents / ENROL_PER_S)
        self._enrolled_s = time.monotonic() - began_s
        self._say(f"Enrolled in {self._enrolled_s:.1f} s. Connecting.")
        began_s, used = time.monotonic(), uses(self._services())
        players.say(CONNECT)
        self._wait(lambda: players.sum(lambda line: line.up) >= self._well, CONNECT_S + fleet.agents / ENROL_PER_S)
        self._connected_s = time.monotonic() - began_s
        self._connected = players.sum(lambda line: line.up)
        self._session_ms = spent_ms(used, uses(self._services()), self._connected)
        if self._connected * 2 < self._well:
            raise RunError(f"{self._connected} of {self._well} agents had a session after {self._connected_s:.0f} s")
        self._say(f"{self._connected} of {self._well} connected in {self._connected_s:.1f} s.")
        time.sleep(SETTLE_S)

    def measure(self) -> None:
        """The window."""
        services = self._services()
        self._begun, self._used = scrape(self._target.metrics), uses(services)
        begin_s = time.monotonic() + LEAD_S
        self._players.say(BEGIN, begin_s)
        self._say(f"Measuring for {self._fleet.duration_s:.0f} s.")
        until_s, watch_s = begin_s + self._fleet.duration_s, begin_s
        while (now_s := time.monotonic()) < until_s:
            self._players.sum(lambda line: line.up)
            self._load.append(os.getloadavg()[0])
            if now_s >= watch_s:
                self._watch()
                watch_s += self._wanted.watch_each_s
            time.sleep(min(max(until_s - time.monotonic(), 0.0), 1.0))
        self._watch()
        self._use = uses(services)
        self._elapsed_s = time.monotonic() - begin_s + LEAD_S

    def _watch(self) -> None:
        if self._wanted.watch is not None and self._target.stack is not None:
            self._wanted.watch(self._target.stack)

    def compare(self) -> None:
        """What was sent, and what came in, once what follows from the script is over."""
        self._players.say(HOLD)
        self._window = self._players.all_done(HOLD, ANSWER_S)
        if self._target.api is not None and plus(self._window).xids:
            self._opened = opened(self._target.api, plus(self._window).xids)
            time.sleep(SETTLE_S)
            self._players.say(HOLD)
            self._window = self._players.all_done(HOLD, ANSWER_S)
        time.sleep(SILENT_AFTER_HOLD_S)
        self._ended = scrape(self._target.metrics)
        if self._wanted.judge is not None and self._target.stack is not None:
            self._wanted.judge(self._target.stack, plus(self._window))

    def come_back(self) -> None:
        """Every web process dies; until everybody has a session again, or RETURN_S."""
        stack, players = self._target.stack, self._players
        if stack is None:
            raise RunError("the web processes of a server that stands are not killed")
        players.say(RESUME)
        time.sleep(SETTLE_S)
        self._say("Killing every web process.")
        used = uses(self._services())
        killed_s = stack.kill_webs()
        players.say(WATCH, killed_s)
        self._wait(lambda: players.sum(lambda line: line.back) >= self._well, RETURN_S)
        cost_ms = spent_ms(used, uses(self._services()), players.sum(lambda line: line.back))
        players.say(END)
        last = plus(players.all_done(END, ANSWER_S))
        self._return = Return(
            agents=self._well, back_s=sorted(last.back_s), up=last.up, unacknowledged=last.unacknowledged,
            cost_ms=cost_ms,
        )  # fmt: skip

    def outcome(self) -> Outcome:
        """All figures."""
        window_grew = grew(self._begun, self._ended)
        whole_grew = grew(self._before, self._ended)
        return Outcome(
            wanted=self._wanted,
            parts=self._window,
            enrolled_s=self._enrolled_s,
            connected_s=self._connected_s,
            connected=self._connected,
            session_ms=self._session_ms,
            load=self._load,
            cores=cores(self._used, self._use, self._elapsed_s),
            memory_bytes={name: use.memory_bytes for name, use in self._use.items()},
            ended=ended(self._used, self._use),
            received=figures.by_label(whole_grew, "holdfast_telemetry_frames_total"),
            server={
                title: figures.of_histogram(window_grew, name)
                for title, name in (
                    ("frames at the socket to the sentinel", "holdfast_telemetry_lag_seconds"),
                    ("fault to its finding", "holdfast_detection_seconds"),
                    ("finding to decision", "holdfast_decision_latency_seconds"),
                    ("command to the agent's journal", "holdfast_command_ack_seconds"),
                )
            },
            loop_lag_s=_loop_lag(self._ended),
            opened=self._opened,
            returned=self._return,
        )

    def _services(self) -> dict[str, int]:
        stack = self._target.stack
        return {**(stack.pids() if stack is not None else {}), **self._players.pids()}

    def _wait(self, reached: Callable[[], bool], timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not reached() and time.monotonic() < deadline_s:
            time.sleep(POLL_S)


def _loop_lag(scraped: Mapping[str, Mapping[figures.Series, float]]) -> dict[str, Any]:
    """The worst of the last half minute, of each loop that says so."""
    return {
        f"{process} {dict(labels).get('loop', '')}": value
        for process, found in scraped.items()
        for (name, labels), value in found.items()
        if name == "holdfast_loop_lag_seconds"
    }
