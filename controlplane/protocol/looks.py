"""What can be looked at in a rank (`commands.CollectStacks.look`), and when it hangs."""

STACKS, PING, FLIGHT_RECORDER = "stacks", "ping", "flight_recorder"
WAIT_COUNTERS, PROFILE, LOG = "wait_counters", "profile", "log"
LOOKS = (PING, STACKS, FLIGHT_RECORDER, WAIT_COUNTERS, PROFILE, LOG)
HANG = "hang"
# A rank that hangs is looked at in these ways before it is ended.
AT_A_HANG = (STACKS, FLIGHT_RECORDER)
MAX_PROFILE_S = 10.0
# The method of a look that found nothing; its text says why.
NOT_GOT = "none"


def looks_of(name: str) -> tuple[str, ...]:
    """The single looks behind a name; empty when there is no such look."""
    if name == HANG:
        return AT_A_HANG
    return (name,) if name in LOOKS else ()
