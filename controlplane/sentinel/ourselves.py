"""What we know of our own side: web processes that do not speak.

Pure: times come with the calls. The sentinel asks it each turn. Silence of a node is charged to
the node only while the web process that holds its connection could be heard.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

DEAF_S = 1.5
"""A web process sends a batch each second, an empty one where it has nothing to say."""
HEAR_AGAIN_S = 3.0
"""After it was unheard its nodes have this long to be heard through it: what they said meanwhile
waits in their sockets."""


@dataclass(slots=True)
class Deafness:
    """Web processes that were not heard, and until when (monotonic) their nodes are excused."""

    _until_s: dict[str, float] = field(default_factory=dict)

    def excused(
        self, sessions: Mapping[str, str], unheard_s: Callable[[str], float | None], moment: float
    ) -> frozenset[str]:
        """Of the connected nodes (id to session id) those whose silence may be ours. `unheard_s` of
        a web process, by name; None: it was never heard."""
        webs = {node_id: session_id.partition(".")[0] for node_id, session_id in sessions.items()}
        for web in set(webs.values()):
            silent_s = unheard_s(web)
            if silent_s is None or silent_s > DEAF_S:
                self._until_s[web] = moment + HEAR_AGAIN_S
        self._until_s = {web: until_s for web, until_s in self._until_s.items() if until_s > moment}
        return frozenset(node_id for node_id, web in webs.items() if web in self._until_s)
