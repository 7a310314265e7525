"""Every bound and duration of the agent's decisions, with the reason for its value."""

from controlplane.protocol.bounds import MAX_LOOK_CHARS

MAX_UNACKED_STEP_REPORTS = 20_000  # 40 min of 8 ranks at 1 Hz while cut off, about 10 MB
MAX_UNACKED_SAID = 40_000  # flushes and the like; exits and answers are never refused
MAX_UNACKED_BYTES = 32 * 1024 * 1024  # of all ranks' events, beside facts that are told once
MIN_SHARES = 4  # a node's few ranks leave room for others'
REFUSED_EVERY_S = 60.0  # what is refused of a rank is told at once, then rarely
MAX_UNACKED_REFUSALS = 256  # answers that wait; a refused command above it stays unanswered
MAX_CLOSED_COMMANDS = 2_048  # a repeat older than that is past its ttl
MAX_JOBS = 128  # fences of jobs without a process here, oldest forgotten first
MAX_IN_FLIGHT_EVENTS = 2_000  # sent and not acknowledged in one session
FRAME_EVENT_BYTES = 160 * 1024  # leaves room for samples under MAX_FRAME_BYTES
MAX_HINT_CHARS = 500
MAX_LOG_TAIL_CHARS = 4_000
MAX_STACK_CHARS = MAX_LOOK_CHARS

RESEND_AFTER_S = 15.0  # an acknowledgement takes one commit; the link itself is ordered
EVICT_KILL_AFTER_S = 0.5  # an evicted rank may exit by itself first
PEERS_MAY_END_S = 0.5  # a killed process with much memory is gone a tenth of a second after its sockets
KILL_RETRY_S = 5.0  # a process in uninterruptible sleep may need asking again
EXIT_CODE_WAIT_S = 1.0  # pidfd fires before the host has reaped; on a crowded node by tenths of a second
ADOPT_EXIT_CODE_WAIT_S = 3.0  # after an agent restart the host must be reached first
LOOK_BEFORE_KILL_S = 3.0  # a hung rank's stacks and Flight Recorder are worth this much
FORK_TIMEOUT_S = 60.0  # a ready host answers in milliseconds
HOST_TIMEOUT_S = 180.0  # importing torch and Megatron on a loaded machine takes 30 s
MEMORY_WAIT_S = 50.0  # as NVRx's launcher waits for a device before it starts ranks again
EMPTY_DEVICE_BYTES = 512 << 20  # a context or two of other programs; no model
MEMORY_POLL_S = 0.25
MEMORY_ANSWER_S = 1.0  # a driver that says nothing for so long gives no reading
LEASE_S = 60.0  # cut off for longer: no start that is still pending is carried out
MAX_LINK_FAULT_S = 600.0  # a drill, no outage
URGENT_S = 0.0
COALESCE_S = 0.1
LONGEST_HOLD_S = 10.0  # of reports of steps, whatever a launch allows: pages and decisions rest on them

# Of the grace within which an outer scheduler takes the node back.
OUTER_STAYS_S = 2.0  # after its beginning: a start is decided and delivered in less
OUTER_OWN_S = 3.0  # before its end: what the server wanted ended was ordered by now (`policy.leaving.SLACK_S`)
OUTER_KILL_S = 1.0  # before its end: to be gone takes a moment, also for a rank with much memory
OUTER_LAST_S = 0.3  # before its end: this process goes first, by itself

HOST_IDLE_S = 900.0  # a restart of the job finds its host warm
HOST_DONE_IDLE_S = 10.0  # the job trained its last step
HOST_WARM_IDLE_S = 14_400.0  # a warm spare may wait for hours

CUT_OFF_RULE_S = 10.0  # the local emergency rule speaks only when the server cannot
EMERGENCY_TEMPERATURE_C = 95.0
EMERGENCY_COOLDOWN_S = 60.0
# A rank reports once a second; this many seconds without a word are no jitter.
SILENT_S = 3.0
NEXT_WORD_S = 1.25  # after its last, a rank that speaks has spoken again
WATCH_S = 1.0  # while ranks live this process looks around so often
LATE_S = 1.0  # and if it does so much later, it did not run
LATE_TIMES = 3  # in a row: after that it is a node on which nothing gets on, and ranks are judged all the same
LATE_AGAIN_S = 30.0  # within which the next time is one in a row
WORD_S = 2.0  # within which each rank that lives has said where it is, once this process runs again
