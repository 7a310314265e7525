"""What the simulated server keeps of the job's course, and of what certificates are about."""

from dataclasses import dataclass, field

from controlplane.changes.due.checks import Check
from controlplane.changes.due.course import Incarnation, Mark


@dataclass(slots=True)
class IncidentRow:
    """`began`, `ended`: where the job was then; training was back at `over_s`. `due_s`: when it is judged, or judged
    again; `state` of its certificate, "" without one, and `checks` of it."""

    began: Mark
    ended: Mark | None = None
    over_s: float | None = None
    due_s: float | None = None
    state: str = ""
    checks: tuple[Check, ...] = ()


@dataclass(slots=True)
class Course:
    """When each view was announced, by epoch; of each incarnation its attempt, and in which epoch its eviction was
    decided; `incidents` by id."""

    announced_s: dict[int, float] = field(default_factory=dict)
    attempts: dict[Incarnation, int] = field(default_factory=dict)
    decided_in: dict[Incarnation, int] = field(default_factory=dict)
    incidents: dict[str, IncidentRow] = field(default_factory=dict)


def incident_id(number: int) -> str:
    """As the rows name the incidents of their one job."""
    return f"inc_{number:03d}"
