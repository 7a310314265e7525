"""A pilot: the batch job of one node, which lends it to a control plane that stands.

`python -m controlplane.slurm.pilot`, submitted by `holdfast slurm pilots`. Keeps the node's agent running, as `node`
does on the nodes of a guest, with three differences. The node keeps its name and its key from one allocation to the
next, in the pilots' directory, so that what Holdfast knows of it stays. A refusal does not end it, as the next element
of the array would meet the same one: it is tried again, and the output says why; a node that was never admitted is
given back after a while, and so is one on which no folder can be made. And where somebody drains the node in Slurm it
leaves by itself, within the grace, so that the next element starts on another one.
"""

import argparse
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from controlplane.engines.slurm import answers, tools
from controlplane.protocol.plain import shown
from controlplane.slurm import node, places
from controlplane.slurm.environment import Allocation, NoAllocation, read
from controlplane.slurm.node import Keeper, agent_argv, leave, parser_of

ASK_S, AGAIN_S = 30.0, 5.0
"""So often each pilot asks Slurm for its node: a thousand of them are 33 questions a second. A drain counts when it is
there a second time."""
NOT_HERE, DONE = 2, 0
MAX_REASON_CHARS = 160
PATIENCE_S = 900.0
"""So long a node is held that the server has never admitted, as somebody may put a fresh token into the file, or on
which there is no room for a folder."""


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


def placed(options: argparse.Namespace, here: Allocation) -> tuple[Path, int, Path]:
    """(the allocation's folder here, the descriptor that holds it, `identity_of`). What cannot be made now is tried
    again for `PATIENCE_S`: the next element of the array would land on this node at once. Raises PlaceError."""
    began_s, delay_s = time.monotonic(), node.FIRST_DELAY_S
    while True:
        try:
            places.trusted(options.directory)
            places.own(options.directory / "nodes")
            identity = places.own(identity_of(options.directory, here))
            return *node.enter(here, here.index), identity
        except places.PlaceError as error:
            if time.monotonic() - began_s > PATIENCE_S:
                raise
            print(f"holdfast: {error}. It is tried again in {delay_s:.0f} s", file=sys.stderr, flush=True)
        time.sleep(delay_s)
        delay_s = min(delay_s * 2, node.MAX_DELAY_S)


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
        folder, held, identity = placed(options, here)
    except (NoAllocation, places.PlaceError) as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return NOT_HERE
    keeper = Pilot(
        lambda left_s: agent_argv(options, here, folder=folder, grace_s=left_s, more=("--identity-dir", str(identity))),
        grace_s=options.grace_s,
        identity=identity,
    )
    keeper.listen()
    whose = "every account" if options.owners == "*" else options.owners
    print(f"this is {here.node}, for jobs of {whose} of {options.server}", file=sys.stderr, flush=True)
    question = ("scontrol", "--oneliner", "show", "node", here.node)
    try:
        with Drains(here.node, keeper.leave, ask=lambda: tools.ask(*question), every_s=options.ask_s):
            return DONE if keeper.asked else keeper.keep()
    finally:
        leave(folder, options.directory / "logs" / here.node)
        os.close(held)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
