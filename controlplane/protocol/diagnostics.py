"""What can be asked of one rank (`commands.CollectStacks.look`), in one table, and what is asked when it hangs.

A question is a row here and whoever answers it: a handler of the debug server (`trainer.control.debug_common`), or a
function of `agents.ranks.diagnose`. The order's checks, the API, the command line and the agent ask the table.
"""

from dataclasses import dataclass

ANSWER_TIMEOUT_S = 2.0
ORDER_TTL_S = 30.0
MAX_PROFILE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One question. `handler`: what the agent asks at the rank's debug server, "" where it looks from outside;
    `timed`: it takes `duration_s`, at most MAX_PROFILE_S; `timeout_s` of an answer beside that, `ttl_s` of
    the order."""

    name: str
    what: str
    handler: str = ""
    timed: bool = False
    timeout_s: float = ANSWER_TIMEOUT_S
    ttl_s: float = ORDER_TTL_S


STACKS, PING, FLIGHT_RECORDER = "stacks", "ping", "flight_recorder"
WAIT_COUNTERS, PROFILE, LOG = "wait_counters", "profile", "log"
TABLE = (
    Look(name=PING, what="does the process still run threads at all", handler="ping"),
    Look(name=STACKS, what="where every thread is"),
    Look(name=FLIGHT_RECORDER, what="the last collectives of each process group", handler="fr_trace_json"),
    Look(name=WAIT_COUNTERS, what="how often and how long PyTorch waited", handler="wait_counter_values"),
    Look(name=PROFILE, what="where the Python threads are, sampled", handler="holdfast_profile", timed=True),
    Look(name=LOG, what="the end of what the rank has written"),
)
BY_NAME = {look.name: look for look in TABLE}
LOOKS = tuple(BY_NAME)
HANG = "hang"
# A rank that hangs is looked at in these ways before it is ended.
AT_A_HANG = (STACKS, FLIGHT_RECORDER)
# The method of a look that found nothing; its text says why.
NOT_GOT = "none"


def looks_of(name: str) -> tuple[str, ...]:
    """The single looks behind a name; empty when there is no such look."""
    if name == HANG:
        return AT_A_HANG
    return (name,) if name in BY_NAME else ()


def named() -> str:
    """All of them, for people."""
    return f"{', '.join(LOOKS[:-1])} or {LOOKS[-1]}"
