"""Whether ranks may be started here: what was read of the node, judged.

A start waits for the checks of its own launch; the node is checked every minute besides,
so that placement hears of a fault before a start fails of it. The verdict is told to the
server when it changes, and once after each start of the agent. What cannot be read is
skipped: absence of a reading is no proof of a fault.
"""

from dataclasses import dataclass, replace

from agents.core.effects import CheckNode
from agents.core.events import NodeRead
from agents.core.state import PendingLaunch
from agents.core.turn import Turn
from controlplane.protocol.bounds import fitted
from controlplane.protocol.frames import NodeCheck, NodeChecked


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What this node's operator asks of it."""

    driver_major: int
    free_bytes: int
    nvlinks: int | None = None
    """Active NVLinks of each device that has any link. None: all it has, once one was active."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """A place that ranks write to. `error`: why a file could not be written there, "" if it
    could; `free_bytes` None: not known, or not asked for."""

    path: str
    error: str = ""
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NvLinks:
    """The numbers of one device's NVLinks, by state. A link that the device has not, or whose
    state cannot be read, is in neither."""

    device_index: int
    active: tuple[int, ...] = ()
    inactive: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """What was found. `drivers`: version of each device's driver; `links`: (interface, its
    state) as the kernel names it, None for one that is not there; `nvlinks` of each device that
    has any, `connected` those of them that had an active one since this agent began; `external`:
    (healthy, reason) of the node's own checker, None where none answered; `nvswitch`: what its
    SXIDs mean (`core.sxid`), "" for nothing; `libraries`: (name,
    version) of what a launch would run with, "" for absent ones, in the `interpreter` of the job's
    own program or, "", in ours; `program`: what keeps the job's own program from beginning, "" for
    nothing; `cuda`: a real GPU is here."""

    drivers: tuple[str, ...] = ()
    storages: tuple[Storage, ...] = ()
    links: tuple[tuple[str, str | None], ...] = ()
    nvlinks: tuple[NvLinks, ...] = ()
    connected: frozenset[int] = frozenset()
    external: tuple[bool, str] | None = None
    nvswitch: str = ""
    libraries: tuple[tuple[str, str], ...] = ()
    interpreter: str = ""
    program: str = ""
    cuda: bool = False


# (library, first bad version, first good one after it, whether it matters without a GPU), as
# nvidia-resiliency-ext documents them: older PyTorch and these NCCL cannot abort a collective.
KNOWN_BAD: tuple[tuple[str, tuple[int, ...], tuple[int, ...], bool], ...] = (
    ("torch", (0,), (2, 5, 1), True),
    ("nccl", (0,), (2, 26, 2), False),
    ("nccl", (2, 28, 3), (2, 28, 9), False),
)
UP = frozenset({"up", "unknown"})
"""`unknown`: the driver does not tell, as for loopback and many virtual ones."""
MAX_DETAIL_CHARS = 200
"""Of one check, in its own words."""
MAX_PATH_CHARS = 80


def judge(found: Readings, needs: Needs) -> tuple[NodeCheck, ...]:
    """Every check that failed, in a fixed order."""
    failed = [
        *_drivers(found, needs),
        *_storages(found, needs),
        *_links(found),
        *_nvlinks(found, needs),
        *_libraries(found),
    ]
    if found.program:
        failed.append(NodeCheck("program", found.program))
    if found.nvswitch:
        failed.append(NodeCheck("nvswitch", found.nvswitch))
    if found.external is not None and not found.external[0]:
        reason = found.external[1] or "the node's own checker says that it is not healthy, not why; see its log"
        failed.append(NodeCheck("external", reason))
    return tuple(NodeCheck(check.name, fitted(check.detail, MAX_DETAIL_CHARS)) for check in failed)


def sentence(failed: tuple[NodeCheck, ...]) -> str:
    """All failed checks in one line."""
    return "; ".join(f"{check.name}: {check.detail}" for check in failed)


def version_of(text: str) -> tuple[int, ...]:
    """The leading numbers of a version; () where it begins with none."""
    numbers: list[int] = []
    for part in text.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)


def ask(turn: Turn, pending: PendingLaunch) -> bool:
    """True when the start may go on; else its checks are asked for, once."""
    if pending.checked is None:
        waits = replace(pending, checked=False)
        turn.set(launches=tuple(waits if other is pending else other for other in turn.state.launches))
        turn.do(CheckNode(pending.command_id, pending.launch, turn.state.link.node_id))
    return bool(pending.checked)


def on_node_read(turn: Turn, event: NodeRead) -> PendingLaunch | None:
    """Tell a changed verdict. The start that waited for it, if it must not happen."""
    if _verdict(event.failed) != _verdict(turn.state.node_failed):
        turn.set(node_failed=event.failed)
        turn.report(NodeChecked(event.failed))
    waiting = next((p for p in turn.state.launches if p.command_id == event.command_id and not p.checked), None)
    if waiting is None:
        return None
    if event.failed or event.launch_failed:
        return waiting
    passed = replace(waiting, checked=True)
    turn.set(launches=tuple(passed if other is waiting else other for other in turn.state.launches))
    return None


def _verdict(failed: tuple[NodeCheck, ...] | None) -> tuple[tuple[str, str], ...] | None:
    """What must change to be told again: not the words of the node's own checker, which may
    carry a figure that is another one each minute. None: nothing was read yet."""
    if failed is None:
        return None
    return tuple((check.name, "" if check.name == "external" else check.detail) for check in failed)


def _drivers(found: Readings, needs: Needs) -> list[NodeCheck]:
    for driver in sorted(set(found.drivers)):
        version = version_of(driver)
        if version and version[0] < needs.driver_major:
            fix = f"install {needs.driver_major} or newer"
            return [NodeCheck("driver", f"version {driver} is older than {needs.driver_major}: {fix}")]
    return []


def _storages(found: Readings, needs: Needs) -> list[NodeCheck]:
    failed = []
    for storage in found.storages:
        if storage.error:
            fix = "free space on it" if storage.free_bytes == 0 else "make it writable or correct the path"
            failed.append(NodeCheck("storage", f"{short(storage.path)} cannot be written: {storage.error}; {fix}"))
        elif storage.free_bytes is not None and storage.free_bytes < needs.free_bytes:
            # No figure of now: it would make each check a new verdict.
            room = f"less than {needs.free_bytes >> 20} MiB are free; free space or lower --min-free-mib"
            failed.append(NodeCheck("storage", f"{short(storage.path)} is nearly full: {room}"))
    return failed


def short(path: str, most_chars: int = MAX_PATH_CHARS) -> str:
    """Its end, so that the detail's own end, which says how to mend it, is not cut off."""
    return path if len(path) <= most_chars else f"...{path[3 - most_chars :]}"


def _links(found: Readings) -> list[NodeCheck]:
    fix = "bring it up, or take it out of --check-links"
    return [
        NodeCheck("network", f"{name} is {state or 'not there'}; {fix}")
        for name, state in found.links
        if state not in UP
    ]


def _nvlinks(found: Readings, needs: Needs) -> list[NodeCheck]:
    """A device whose NVLinks are down in part, or that had an active one, has a fault. One whose
    links were all down from the beginning is a card without a bridge, as far as can be told,
    unless the operator said how many must be active."""
    failed = []
    for device in sorted(found.nvlinks, key=lambda device: device.device_index):
        links = len(device.active) + len(device.inactive)
        joined = bool(device.active) or device.device_index in found.connected
        wanted = needs.nvlinks if needs.nvlinks is not None else links if joined else 0
        if links == 0 or len(device.active) >= wanted:
            continue
        down = ", ".join(map(str, device.inactive)) or "none"
        fix = "reset the device, or repair its bridge or switch; --min-nvlinks says how many must be up"
        detail = f"device {device.device_index}: {len(device.active)} of {links} are up, down: {down}; {fix}"
        failed.append(NodeCheck("nvlink", detail))
    return failed


def _libraries(found: Readings) -> list[NodeCheck]:
    failed = []
    where = f" in {short(found.interpreter)}" if found.interpreter else ""
    for library, first_bad, first_good, always in KNOWN_BAD:
        for name, text in found.libraries:
            version = version_of(text)
            if name == library and version and first_bad <= version < first_good and (always or found.cuda):
                good = ".".join(map(str, first_good))
                detail = f"{name} {text}{where} is known not to recover: install {good} or newer"
                failed.append(NodeCheck("library", detail))
    return failed
