"""A pilot: the batch job of one node, which lends it to a control plane that stands.

`python -m controlplane.slurm.pilot`, submitted by `holdfast slurm pilots`. Keeps the node's agent running, as `node`
does on the nodes of a guest, with three differences. The node keeps its name and its key from one allocation to the
next, in the pilots' directory, so that what Holdfast knows of it stays. A refusal does not end it, as the next element
of the array would meet the same one: it is tried again, and the output says why; a node that was never admitted is
given back after a while. And where somebody drains the node in Slurm it leaves by itself, within the grace, so that the
next element starts on another one.
"""

import argparse
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from controlplane.engines.slurm import answers, tools
from controlplane.protocol.plain import shown
from controlplane.slurm import places
from controlplane.slurm.environment import Allocation, NoAllocation, read
from controlplane.slurm.node import Keeper, agent_argv, leave, parser_of

ASK_S, AGAIN_S = 30.0, 5.0
"""So often each pilot asks Slurm for its node: a thousand of them are 33 questions a second. A drain counts when it is
there a second time."""
NOT_HERE, DONE = 2, 0
MAX_REASON_CHARS = 160
PATIENCE_S = 900.0
"""So long a node that the server has never admitted is held: somebody may put a fresh token into the file."""


class Pilot(Keeper):
    """Keeps the agent for as long as the allocation lasts; its credential is then in the folder `identity`."""

    def __init__(self, argv: Callable[[float], Sequence[str]], *, grace_s: float, identity: Path) -> None:
        super().__init__(argv, grace_s=grace_s)
        self._identity, self._began_s = identity, time.monotonic()

    def _is_final(self, code: int) -> bool:
        admitted = (self._identity / "credential").exists()
        return code == DONE or (not admitted and time.monotonic() - self._began_s > PATIENCE_S)


class Drains:
    """Watches what Slurm believes of a node; `leave` is called once where it is drained. `ask` gives the answer of
    `scontrol --oneliner show node`, None where there is none: no news."""

    def __init__(
        self, node: str, leave: Callable[[], None], *, ask: Callable[[], str | None], every_s: float = ASK_S
    ) -> None:
        self._node, self._leave, self._ask, self._every_s = node, leave, ask, every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Drains":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _watch(self) -> None:
        # Pilots that started together do not ask together.
        wait_s = random.uniform(0.0, self._every_s)
        while not self._over.wait(wait_s):
            wait_s = self._every_s
            if not self._drained():
                continue
            if self._over.wait(min(AGAIN_S, self._every_s)):
                return
            if reason := self._drained():
                print(f"the node is drained in Slurm ({reason}): it is given back", file=sys.stderr, flush=True)
                self._leave()
                return

    def _drained(self) -> str:
        """Slurm's reason; "": it is not drained, or there is no news."""
        found = answers.believed(self._ask() or "", self._node)
        return (
            shown((found.reason or "no reason given")[:MAX_REASON_CHARS]) if found is not None and found.drained else ""
        )


def identity_of(directory: Path, here: Allocation) -> Path:
    """Where the node's key and credential lie, from one allocation to the next."""
    return directory / "nodes" / here.name


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options that the batch script gives."""
    parser = parser_of("pilot", "The pilot of one node; --directory is that of the pilots.")
    parser.add_argument("--ask-s", type=float, default=ASK_S, help="how often Slurm is asked for this node")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """The exit code of the batch job: 0 when it has left, 2 outside an allocation."""
    options = parse(argv)
    try:
        here = read()
        folder = places.local(here.job, here.index)
        places.own(options.directory / "nodes")
        identity = places.own(identity_of(options.directory, here))
    except (NoAllocation, places.PlaceError) as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return NOT_HERE
    keeper = Pilot(
        lambda left_s: agent_argv(options, here, folder=folder, grace_s=left_s, more=("--identity-dir", str(identity))),
        grace_s=options.grace_s,
        identity=identity,
    )
    keeper.listen()
    print(f"this is {here.node}, for {options.server}", file=sys.stderr, flush=True)
    question = ("scontrol", "--oneliner", "show", "node", here.node)
    try:
        with Drains(here.node, keeper.leave, ask=lambda: tools.ask(*question), every_s=options.ask_s):
            return DONE if keeper.asked else keeper.keep()
    finally:
        leave(folder, options.directory / "logs" / here.node)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
