"""Harsher faults, each with chances of its own: a world without them is the world it was.

Some strike at a time of their own, most at the worst: right after the control plane has decided something.
"""

import random
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from enum import StrEnum

from agents.core.effects import Effect, Persist
from agents.core.events import RankLineRefused
from controlplane.protocol.frames import NodeCheck
from controlplane.protocol.rank import StepReport
from controlplane.protocol.states import RequestKind
from controlplane.simulator.agent import Agent
from controlplane.simulator.faults import QUIET_BEFORE_S, Fault, Faults
from controlplane.simulator.kernel import Ended, Kernel
from controlplane.simulator.lens import Lens
from controlplane.simulator.network import BOTH, Network, Way
from controlplane.simulator.people import People
from controlplane.simulator.rows import Rows
from controlplane.simulator.server import Server
from controlplane.simulator.storage import Storage

ACTS = frozenset(
    {
        "admit",
        "evict",
        "evict_and_replace",
        "first_view",
        "hold_and_replace",
        "install",
        "leave_out",
        "move",
        "reissue_view",
        "retire",
        "shrink",
        "start",
        "swap",
    }
)
VOLLEY = (
    Fault.RANK_KILL,
    Fault.RANK_KILL,
    Fault.RANK_PAUSE,
    Fault.NODE_LOSS,
    Fault.WARM_REBOOT,
    Fault.NODE_CUT,
    Fault.EXCHANGE_BLIP,
    Fault.AGENT_RESTART,
    Fault.BACKEND_PAUSE,
)
AGAIN_S = 0.4
UNMOUNTED = NodeCheck("storage", "the checkpoints are not mounted")
ASKED = (*(RequestKind.EVICT, RequestKind.DRAIN, RequestKind.CHECKPOINT) * 3, None)
"""None: that the job is cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """How often: a link that is lost one way; messages that come late, and again; a restart of the server between two
    of its effects; an agent, or its machine, that ends between two records; the server's wall clock that is set; a
    disk that fills as something is decided; a person who asks for something then; two or three faults within one
    recovery; an exchange that fails again and again; a device that turns slow, or runs hot for a while; checks of a
    node that begin to fail, and pass later; a rank host that ends; messages that an agent does not take; a checkpoint
    whose bytes rot; a loss that is no number any more, in every replica; a database that is restored to what it was; a
    node with a notice of its provider, and with a maintenance window."""

    one_way: int = 0
    late: int = 0
    server_restarts: int = 0
    record_ends: int = 0
    wall_leaps: int = 0
    full_disks: int = 0
    requests: int = 0
    volleys: int = 0
    failing_exchanges: int = 0
    slow: int = 0
    overheats: int = 0
    unfit: int = 0
    host_ends: int = 0
    refused: int = 0
    rotten: int = 0
    bad_numbers: int = 0
    set_backs: int = 0
    notices: int = 0
    windows: int = 0


class Kind(StrEnum):
    """What of it has happened, by name."""

    LINK_UP = "link_up_lost"
    LINK_DOWN = "link_down_lost"
    LATE = "late_messages"
    REPEATED = "repeated_messages"
    SERVER_RESTART = "server_restart"
    AGENT_RECORD = "agent_end_at_record"
    POWER_RECORD = "power_loss_at_record"
    WALL_LEAP = "wall_clock_set"
    FULL_DISK = "disk_full_at_decision"
    ASKED = "asked"
    VOLLEY = "volley"
    EXCHANGES = "exchanges_fail"
    UNFIT = "node_unfit"
    HOST_ENDS = "host_ends"
    REFUSED = "input_refused"
    ROTTEN = "checkpoint_rots"
    BAD_NUMBERS = "loss_not_finite"
    SET_BACK = "database_set_back"


class Harsh:
    """Carries them out beside `Faults`. `server_ends_in`: effects of the server until it ends."""

    def __init__(
        self,
        kernel: Kernel,
        network: Network,
        server: Server,
        faults: Faults,
        people: People,
        lens: Lens,
        storage: Storage,
    ) -> None:
        self._kernel, self._network, self._server = kernel, network, server
        self._faults, self._people, self._lens, self._storage = faults, people, lens, storage
        self._chance = random.Random("extras")
        self._until_s = 0.0
        self._waiting: list[Callable[[], None]] = []
        self._server_ends_in: int | None = None
        self.happened: Counter[str] = Counter()

    def schedule(self, until_s: float, extras: Extras, seed: int) -> None:
        """All of them begin before `until_s`."""
        self._until_s, self._lens.watches = until_s, bool(extras.wall_leaps)
        deeds: dict[str, Callable[[], None]] = {
            "one_way": self._sooner_or_later(self.one_way),
            "late": self._sooner_or_later(self.late),
            "server_restarts": self._sooner_or_later(self.end_server),
            "record_ends": self._sooner_or_later(self.end_at_record),
            "wall_leaps": self.set_clock,
            "full_disks": self._at_decision(self.fill_disk),
            "requests": self._at_decision(self.ask),
            "volleys": self._at_decision(self.volley),
            "failing_exchanges": self.fail_exchanges,
            "unfit": self._sooner_or_later(self.fail_checks),
            "host_ends": self._sooner_or_later(self.end_host),
            "refused": self.say_nonsense,
            "rotten": self._sooner_or_later(self.rot),
            "bad_numbers": self._sooner_or_later(self.lose_numbers),
            "set_backs": self.keep_rows,
        }
        for name, deed in deeds.items():
            # Chances of each kind are its own.
            chance = self._chance = random.Random(f"{name} {seed}")
            for _ in range(getattr(extras, name)):
                self._kernel.after(chance.uniform(QUIET_BEFORE_S, until_s), self._strike, deed)
        self._chance = random.Random(f"extras {seed}")
        decided = self._server.on_decision

        def also(choice: str) -> None:
            decided(choice)
            self._decided(choice)

        self._server.on_decision = also

    def _strike(self, deed: Callable[[], None]) -> None:
        if self._kernel.now_s <= self._until_s:
            deed()

    def _at_decision(self, deed: Callable[[], None]) -> Callable[[], None]:
        """Lie in wait for the next act."""
        return lambda: self._waiting.append(deed)

    def _sooner_or_later(self, deed: Callable[[], None]) -> Callable[[], None]:
        """Half of them lie in wait."""
        wait = self._at_decision(deed)
        return lambda: deed() if self._chance.random() < 0.5 else wait()

    def _decided(self, choice: str) -> None:
        if choice in ACTS and self._waiting:
            deed = self._waiting.pop()
            delay_s = 0.0 if deed == self.end_server else self._chance.uniform(0.0, 1.0)
            self._kernel.after(delay_s, self._strike, deed)
        self.count_effect()

    def count_effect(self) -> None:
        """The server has done something: its process may end now. Raises Ended then."""
        if self._server_ends_in is None or self._server.paused:
            return
        self._server_ends_in -= 1
        if self._server_ends_in > 0:
            return
        self._server_ends_in = None
        short = self._chance.random() < 0.7
        down_s = self._chance.uniform(0.3, 6.0) if short else self._chance.uniform(15.0, 60.0)
        self._note(Kind.SERVER_RESTART, f"the server ends and is back in {down_s:.1f} s")
        self._server.restart(down_s)
        self._hang_up()
        raise Ended

    def _hang_up(self) -> None:
        for agent in self._faults.agents.values():
            agent.after(self._chance.uniform(0.0, 1.0), agent.hang_up)

    # --- deeds ---------------------------------------------------------------------------

    def one_way(self) -> None:
        """A link that carries nothing up, or nothing down."""
        agent, way = self._node(), self._chance.choice(BOTH)
        if agent is None or self._network.is_cut(agent.node):
            return
        seconds = self._chance.choice((self._chance.uniform(2.0, 9.0), self._chance.uniform(9.0, 45.0)))
        self._note(Kind(f"link_{way}_lost"), f"the link of {agent.node} carries nothing {way} for {seconds:.1f} s")
        self._network.cut_link(agent.node, way)
        self._kernel.after(seconds, self._network.mend_link, agent.node)

    def late(self) -> None:
        """A link that holds everything for a while, some way or both; or messages that come again later."""
        agent = self._node()
        if agent is None:
            return
        if self._chance.random() < 0.5:
            ways, seconds = self._chance.choice(((Way.UP,), (Way.DOWN,), BOTH)), self._chance.uniform(1.0, 9.0)
            self._note(Kind.LATE, f"the link of {agent.node} holds what goes {' and '.join(ways)} for {seconds:.1f} s")
            self._network.hold_link(agent.node, ways, seconds)
            return
        self._note(Kind.REPEATED, "messages come again")
        self._network.echo, self._network.echo_s = 0.3, self._chance.choice((0.5, 3.0))
        self._kernel.after(self._chance.uniform(5.0, 30.0), self._no_echo)

    def _no_echo(self) -> None:
        self._network.echo = 0.0

    def end_server(self) -> None:
        """Between two of its next effects."""
        self._server_ends_in = self._chance.randrange(1, 25)

    def keep_rows(self) -> None:
        """The database is restored to what it is now, a while later."""
        kept = deepcopy(self._server.rows)
        self._kernel.after(self._chance.uniform(2.0, 25.0), self.set_back, kept)

    def set_back(self, kept: Rows) -> None:
        """To these rows; they are the server's then."""
        if not self._server.paused:
            self._note(Kind.SET_BACK, f"the database is set back to step {kept.committed_step}")
            self._server.set_back(kept, self._chance.uniform(0.3, 6.0))
            self._hang_up()

    def end_at_record(self) -> None:
        """An agent ends right after one of the next records that it writes, or its machine loses power."""
        agent = self._node()
        if agent is None:
            return
        left, power = self._chance.randrange(1, 12), self._chance.random() < 0.4
        back_s = self._chance.uniform(0.3, 5.0)

        def count(effect: Effect) -> None:
            nonlocal left
            left -= isinstance(effect, Persist)
            if left > 0:
                return
            self._note(Kind.POWER_RECORD if power else Kind.AGENT_RECORD, f"{agent.node} ends after a record")
            self._network.note_out(agent.node, self._kernel.now_s, self._kernel.now_s + back_s)
            if power:
                self._faults.warm_reboot(agent)
            else:
                agent.stop(back_s)

        agent.on_effect = count

    def set_clock(self) -> None:
        """The server's wall clock, forward or back."""
        step_s = self._chance.choice((-3600.0, -30.0, -5.0, 5.0, 30.0, 3600.0))
        self._note(Kind.WALL_LEAP, f"the server's clock is set by {step_s:.0f} s")
        self._lens.set_clock(self._kernel.now_s, step_s)
        self._server.blind_until_s = max(self._server.blind_until_s, self._kernel.now_s + 5.0)
        self._server.ring()

    def fill_disk(self) -> None:
        """Of a node that has just been given something to do."""
        agent = self._node(busy=True)
        if agent is not None:
            self._note(Kind.FULL_DISK, f"the disk of {agent.node} is full")
            agent.machine.disk.full = True
            self._kernel.after(self._chance.uniform(3.0, 60.0), self._faults.make_room, agent)

    def ask(self) -> None:
        """A person, for anything."""
        if self._server.paused:
            return
        what = self._chance.choice(ASKED)
        self.happened[f"{Kind.ASKED}_{what or 'cancel'}"] += 1
        match what:
            case RequestKind.EVICT:
                self._people.order_out()
            case RequestKind.DRAIN:
                self._people.drain()
            case RequestKind.CHECKPOINT:
                self._people.save()
            case _:
                self._kernel.log("person", "cancels the job")
                self._lens.cancelled = True
                self._server.ring()

    def volley(self) -> None:
        """Two or three faults within one recovery."""
        count, within_s = self._chance.choice((2, 3)), self._chance.choice((0.6, 3.0))
        self._note(Kind.VOLLEY, f"{count} faults at once")
        for _ in range(count):
            self._kernel.after(self._chance.uniform(0.0, within_s), self._faults.strike, self._chance.choice(VOLLEY))

    def fail_exchanges(self) -> None:
        """For a while every exchange fails as soon as it is under way; nobody is to blame."""
        seconds = self._chance.uniform(2.0, 12.0)
        self._note(Kind.EXCHANGES, f"every exchange fails for {seconds:.1f} s")
        self._blow(self._kernel.now_s + seconds)

    def _blow(self, until_s: float) -> None:
        if self._kernel.now_s < until_s:
            self._faults.blip()
            self._kernel.after(AGAIN_S, self._blow, until_s)

    def fail_checks(self) -> None:
        """Of a node that may be wanted for a start; it says so at once, or when it is to start something."""
        agent = self._node()
        if agent is None:
            return
        seconds, says = self._chance.uniform(3.0, 60.0), self._chance.random() < 0.5
        self._note(Kind.UNFIT, f"the checks of {agent.node} fail for {seconds:.1f} s")
        agent.machine.failing = (UNMOUNTED,)
        if says:
            agent.children.read_node("")
        self._kernel.after(seconds, self._pass_checks, agent)

    def _pass_checks(self, agent: Agent) -> None:
        agent.machine.failing = ()
        agent.children.read_node("")

    def end_host(self) -> None:
        """It is killed; the ranks that it has forked live on."""
        agent = self._node(busy=True)
        if agent is not None and agent.machine.hosts:
            jobs = sorted(agent.machine.hosts)
            self._note(Kind.HOST_ENDS, f"the rank host on {agent.node} is killed")
            agent.children.lose_host(jobs[0] if len(jobs) == 1 else self._chance.choice(jobs))

    def say_nonsense(self) -> None:
        """A rank sends what its agent cannot read."""
        agent = self._node(busy=True)
        heard = [c for c in agent.machine.children.values() if c.conn_id and not c.rank.hung] if agent else []
        if agent is not None and heard:
            child = self._chance.choice(heard)
            self._note(Kind.REFUSED, f"rank {child.rank.ref.rank} on {agent.node} sends what is no message")
            line = RankLineRefused(now_s=agent.machine.now_s, conn_id=child.conn_id, reason="no such message")
            agent.dispatch(line)

    def rot(self) -> None:
        """Of one of the newest checkpoints some bytes."""
        paths = [fact.path for fact in self._server.rows.checkpoints][-3:]
        if paths:
            path = self._chance.choice(paths)
            self._note(Kind.ROTTEN, f"{path} rots")
            self._storage.rotten.add(path)

    def lose_numbers(self) -> None:
        """The loss of the last step was no number, as every replica says."""
        ranks = [c for a in self._faults.agents.values() for c in a.machine.children.values() if c.rank.alive]
        heard = [child for child in ranks if child.conn_id and not child.rank.hung and child.rank.core.standing.epoch]
        if heard:
            self._note(Kind.BAD_NUMBERS, "the loss is not a number")
        for child in heard:
            standing = child.rank.core.standing
            said = StepReport(
                step=max(0, standing.committed - 1),
                epoch=standing.epoch,
                step_time_s=1.0,
                tokens=1,
                micro_batches=(),
                loss_not_finite="nan",
            )
            self._faults.agents[child.rank.node].children.say(child.rank, said)

    # --- victims -------------------------------------------------------------------------------

    def _node(self, *, busy: bool = False) -> Agent | None:
        agents = [agent for agent in self._faults.agents.values() if not agent.dead]
        at_work = [agent for agent in agents if any(child.rank.alive for child in agent.machine.children.values())]
        if busy or self._chance.random() < 0.8:
            agents = at_work or agents
        return self._chance.choice(agents) if agents else None

    def _note(self, kind: Kind, text: str) -> None:
        self.happened[kind] += 1
        self._kernel.log("fault", text)
