"""One process of the load generator: `python -m controlplane.bench.generator`, started by `run`.

Its task comes as the first line of stdin, then one word a line: `connect`, `begin MONOTONIC_S`, `hold`, `resume`,
`watch MONOTONIC_S`, `end`. It answers on stdout with a line of JSON a second (`Counted`, brief), and with all of it
for `hold` and `end`. The end of stdin ends it, so nothing is left of it when who started it is gone.
"""

import asyncio
import gc
import heapq
import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from agents.errors import EnrolmentError
from agents.link.enrol import Facts
from agents.link.server import Server
from controlplane.bench import script
from controlplane.bench.agent import Agent, Node
from controlplane.bench.hostile import Hostile
from controlplane.bench.identity import HeldIdentity, Registrar
from controlplane.bench.readings import Readings
from controlplane.bench.script import Act, Fleet, Kind
from controlplane.bench.tally import Counted, Tally

ENROL_THREADS = 4
ENROL_TRIES, ENROL_PAUSE_S = 4, 1.0
STATUS_S = 0.5
DRAIN_S = 30.0
KNOCKING, STUCK_S = 32, 20.0
"""Agents of a process that are on their way to a first session: how a fleet arrives is no outage, and is not to be
one. Where none gets one for so long, the next ones knock all the same."""
GC_THRESHOLDS = (50_000, 50, 1000)
BEGIN, HOLD, RESUME, WATCH, CONNECT, END = "begin", "hold", "resume", "watch", "connect", "end"


class Task(msgspec.Struct, kw_only=True):
    """The agents of `fleet` whose number is `part` modulo `parts`. `servers`: http:// or https:// of each web process,
    which agents take by turns. `tokens`: join tokens, each good for `uses` agents, by number. `run_id`: part of boot
    and journal, new for each run."""

    fleet: Fleet
    part: int
    parts: int
    servers: list[str]
    tokens: list[str]
    uses: int
    run_id: str
    behind_tls: bool


class Line(msgspec.Struct, kw_only=True):
    """What a generator says. `whole`: all figures, for `hold` and `end`."""

    enrolled: int = 0
    up: int = 0
    back: int = 0
    failed: str = ""
    done: str = ""
    whole: Counted | None = None


class Generator:
    """The agents of one task, and the one clock that lets them speak."""

    def __init__(self, task: Task) -> None:
        self._task, self._fleet = task, task.fleet
        self._tally = Tally(random.Random(f"{task.fleet.seed}:{task.part}"))
        self._hostile_tally = Tally(random.Random(f"{task.fleet.seed}:{task.part}:hostile"))
        self._readings = Readings(task.fleet.devices, task.fleet.interval_s, task.fleet.seed)
        self._acts = tuple(act for act in script.acts(task.fleet) if act.agent % task.parts == task.part)
        self._hostile = {act.agent for act in self._acts if act.kind is Kind.HOSTILE}
        self._agents: dict[int, Agent] = {}
        self._beating = True
        self._pacer: asyncio.Task[None] | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._begun: tuple[int, float] | None = None
        self._window = (0, 0.0)
        self.enrolled = 0
        self.given_up = False

    def enrol(self) -> dict[int, HeldIdentity]:
        """All of them, or those that there were when it was `given_up`. Blocking. Raises EnrolmentError."""
        self._readings.prepare()
        numbers = range(self._task.part, self._fleet.agents, self._task.parts)
        shares = [numbers[thread::ENROL_THREADS] for thread in range(ENROL_THREADS)]
        found: dict[int, HeldIdentity] = {}
        with ThreadPoolExecutor(ENROL_THREADS) as threads:
            for some in threads.map(self._enrol_some, range(ENROL_THREADS), shares):
                found |= some
        return found

    def _enrol_some(self, thread: int, numbers: range) -> dict[int, HeldIdentity]:
        task = self._task
        registrar = Registrar(task.servers[thread % len(task.servers)], behind_tls=task.behind_tls)
        found = {}
        for number in numbers:
            if self.given_up:
                break
            name = script.name_of(self._fleet, number)
            said = Facts(
                node_name=name,
                boot_id=f"boot-{task.run_id}",
                machine_id=f"machine-{name}",
                segment=f"rack-{number // 32}",
                devices=self._readings.infos(name),
            )
            found[number] = _patiently(registrar, said, task.tokens[number // task.uses])
            self.enrolled += 1
        registrar.close()
        return found

    async def connect(self, identities: dict[int, HeldIdentity]) -> None:
        """Everybody, `KNOCKING` at a time, and the clock."""
        servers = [Server(url=url.replace("http", "ws", 1)) for url in self._task.servers]
        for number, identity in sorted(identities.items()):
            name = script.name_of(self._fleet, number)
            node = Node(number, name, f"boot-{self._task.run_id}", f"jrn-{self._task.run_id}-{number}")
            hostile = number in self._hostile
            kind, tally = (Hostile, self._hostile_tally) if hostile else (Agent, self._tally)
            agent = kind(node, identity, servers[number % len(servers)], self._readings, tally)
            await self._one_may_knock()
            self._agents[number] = agent
            agent.start()
        gc.collect()
        gc.freeze()
        self._pacer = asyncio.create_task(self._pace())

    async def _one_may_knock(self) -> None:
        up, since_s = -1, time.monotonic()
        while len(self._agents) - (now_up := sum(agent.up for agent in self._agents.values())) >= KNOCKING:
            if now_up != up:
                up, since_s = now_up, time.monotonic()
            elif time.monotonic() - since_s > STUCK_S:
                return
            await asyncio.sleep(0.05)

    def begin(self, at_s: float) -> None:
        """The measured window, and with it the script, at this moment of the monotonic clock."""
        loop = asyncio.get_running_loop()
        self._tally.begin()
        self._begun = self._tally.frames, time.process_time()
        for act in self._acts:
            delay_s = max(at_s + act.at_s - time.monotonic(), 0.0)
            self._timers.append(loop.call_later(delay_s, self._act, act))

    def hold(self) -> None:
        """No heartbeats: what was sent can be compared with what came in."""
        self._beating = False
        if self._begun is not None:
            (frames, cpu_s), self._begun = self._begun, None
            self._window = self._tally.frames - frames, time.process_time() - cpu_s
        for timer in self._timers:
            timer.cancel()

    def resume(self) -> None:
        """Heartbeats again."""
        self._beating = True

    def watch(self, at_s: float) -> None:
        """Sessions that open from now on are noted, as so long after `at_s`."""
        self._tally.watched_s = at_s
        self._tally.back_s.clear()

    async def drain(self) -> None:
        """Until every event is acknowledged, or for `DRAIN_S`."""
        until_s = time.monotonic() + DRAIN_S
        while self._left() and time.monotonic() < until_s:
            await asyncio.sleep(0.1)

    def check(self) -> None:
        """Raises what the clock of the agents failed with: without it nobody speaks any more."""
        if self._pacer is not None and self._pacer.done():
            self._pacer.result()

    async def stop(self) -> None:
        """All agents, for good."""
        if self._pacer is not None:
            self._pacer.cancel()
        await asyncio.gather(*(agent.stop() for agent in self._agents.values()))

    def brief(self) -> Line:
        """Where it stands."""
        up = sum(agent.up for agent in self._well())
        return Line(enrolled=self.enrolled, up=up, back=len(self._tally.back_s))

    def whole(self) -> Counted:
        """Everything."""
        counted = self._tally.counted(
            agents=len(self._agents) - len(self._hostile),
            up=sum(agent.up for agent in self._well()),
            unacknowledged=self._left(),
            window_frames=self._window[0],
            window_cpu_s=self._window[1],
            rss_bytes=_rss_bytes(),
        )
        counted.hostile = dict(self._hostile_tally.hostile)
        if self._hostile:
            counted.hostile |= {f"refused: {code}": n for code, n in self._hostile_tally.refused.items()}
            counted.hostile["frames"] = self._hostile_tally.frames
        return counted

    def _well(self) -> list[Agent]:
        return [agent for number, agent in self._agents.items() if number not in self._hostile]

    def _left(self) -> int:
        return sum(len(agent.state.events) for agent in self._well())

    def _act(self, act: Act) -> None:
        self._agents[act.agent].act(act)

    async def _pace(self) -> None:
        """As a node's agent beats, missed beats are not made up for."""
        loop, began_s = asyncio.get_running_loop(), time.monotonic()
        due = [(began_s + script.phase_s(self._fleet, number), number, 0) for number in self._agents]
        heapq.heapify(due)
        while True:
            now_s = time.monotonic()
            while due[0][0] <= now_s:
                due_s, number, turn = due[0]
                agent = self._agents[number]
                # Who is late keeps its place within the interval: else all would speak at one moment from then on.
                missed = int((now_s - due_s) / agent.interval_s)
                self._tally.skipped += missed
                next_s = due_s + (missed + 1) * agent.interval_s
                heapq.heapreplace(due, (next_s, number, turn + 1))
                if not self._beating:
                    continue
                late_s = script.late_s(self._fleet, number, turn)
                if late_s > 0.0:
                    loop.call_later(late_s, agent.beat, due_s + late_s)
                else:
                    agent.beat(due_s)
            await asyncio.sleep(max(due[0][0] - time.monotonic(), 0.0))


def _patiently(registrar: Registrar, said: Facts, token: str) -> HeldIdentity:
    for attempt in range(ENROL_TRIES):
        try:
            return registrar.enrol(said, token)
        except EnrolmentError as error:
            if not error.retry or attempt == ENROL_TRIES - 1:
                raise
            time.sleep(ENROL_PAUSE_S * (attempt + 1))
    raise AssertionError("the last try returns or raises")


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def say(line: Line) -> None:
    """To who started this process."""
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


async def serve(generator: Generator, words: asyncio.StreamReader) -> None:
    """1. Enrol. 2. What the words say, one after another, and where it stands between them."""
    reading = asyncio.create_task(words.readline())
    enrolling = asyncio.create_task(asyncio.to_thread(generator.enrol))
    while not enrolling.done():
        await asyncio.wait({enrolling}, timeout=STATUS_S)
        if reading.done() and not reading.result():
            generator.given_up = True
        else:
            say(generator.brief())
    identities = enrolling.result()
    if generator.given_up:
        reading.cancel()
        return
    say(Line(enrolled=generator.enrolled, done="enrol"))
    connecting: asyncio.Task[None] | None = None
    while True:
        await asyncio.wait({reading}, timeout=STATUS_S)
        generator.check()
        if connecting is not None and connecting.done():
            connecting.result()
        if not reading.done():
            say(generator.brief())
            continue
        word, _, at = reading.result().decode().strip().partition(" ")
        reading = asyncio.create_task(words.readline())
        if word in ("", END):
            break
        if word == CONNECT:
            connecting = asyncio.create_task(generator.connect(identities))
        elif word == HOLD:
            generator.hold()
            await generator.drain()
            say(Line(done=HOLD, whole=generator.whole()))
        elif word == BEGIN:
            generator.begin(float(at))
        elif word == WATCH:
            generator.watch(float(at))
        elif word == RESUME:
            generator.resume()
    reading.cancel()
    if word == END:
        await generator.drain()
        say(Line(done=END, whole=generator.whole()))
    if connecting is not None:
        connecting.cancel()
    await generator.stop()


async def main_async() -> int:
    """0; 1 where the server would not have the nodes, or the generator itself failed."""
    words = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(words), sys.stdin)
    task = msgspec.json.decode(await words.readline(), type=Task)
    try:
        await serve(Generator(task), words)
    except EnrolmentError as error:
        say(Line(failed=str(error)))
        return 1
    except Exception as error:
        say(Line(failed=f"a generator failed: {type(error).__name__}: {error}"))
        raise
    return 0


def main() -> int:
    """The exit code."""
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main_async())
    return uvloop.run(main_async())


if __name__ == "__main__":
    sys.exit(main())
