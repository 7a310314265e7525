"""A second opinion on Flight Recorders: torch's own analyser, in the sandbox, where torch is installed.

Asked for by a periodic task once the ranks of a replica have had time to answer. Its answer stands
beside Holdfast's finding on the incident and changes nothing.
"""

import tempfile
from pathlib import Path
from typing import Any

import msgspec
from django.conf import settings

from controlplane.changes.diagnostics import dumps_of
from controlplane.recovery.models import Incident
from controlplane.recovery.rows import JobRows
from controlplane.runtime import events
from controlplane.runtime.clock import ago, iso
from controlplane.runtime.locks import lock_row
from controlplane.runtime.logs import get
from controlplane.runtime.sandbox import service

MODULE, DUMPS, ANSWER = "trainer.second_opinion", "dumps.json", "opinion.json"
MAX_ANSWER_BYTES = 64 * 1024
WALL_S = 30.0
NICE = 10
SETTLED_S = 10.0
"""A finding that has not changed for so long is whole."""
RECENT_S = 3600.0
MAX_INCIDENTS = 20
MAX_A_TURN = 1
"""Each takes seconds: torch is loaded anew."""

_log = get(__name__)


class Opinion(msgspec.Struct, frozen=True):
    """As `trainer.second_opinion` writes it."""

    kind: str
    ranks: tuple[int, ...]


def add_missing() -> int:
    """Put torch's answer beside every finding of a recent incident that has none yet and whose ranks
    have had time to answer; how many were added. Where torch is not installed, none is."""
    if not settings.REFERENCE_RUNS:
        return 0
    recent = Incident.objects.filter(opened_at__gte=ago(RECENT_S)).exclude(findings=[]).order_by("-opened_at")
    added = 0
    for incident in recent[:MAX_INCIDENTS]:
        for finding in incident.findings:
            if "second_opinion" not in finding and finding["at"] < iso(ago(SETTLED_S)) and added < MAX_A_TURN:
                _add(incident, finding["replica"], finding["incarnation"])
                added += 1
    return added


def _add(incident: Incident, replica: int, incarnation: int) -> None:
    dumps = dumps_of(JobRows(incident.job).recorders(incident.id, replica, incarnation))
    told = _ask(msgspec.json.encode(dumps).decode()) if dumps else None
    said = sentence(told) if told is not None else "torch's own analyser had nothing to read, or could not be run"
    with events.unit_of_work():
        locked = lock_row(Incident, incident.id)
        if locked is not None:
            findings = [_with(finding, said, (replica, incarnation)) for finding in locked.findings]
            Incident.objects.filter(pk=incident.id).update(findings=findings)


def sentence(told: Opinion) -> str:
    """In words."""
    if told.kind.startswith("failed"):
        return f"torch's own analyser gave no answer ({told.kind.partition(': ')[2][:100]})"
    ranks = ", ".join(map(str, told.ranks[:16]))
    return f"torch's own analyser says {told.kind}" + (f", ranks {ranks}" if ranks else ", no rank")


def _with(finding: dict[str, Any], said: str, life: tuple[int, int]) -> dict[str, Any]:
    if (finding["replica"], finding["incarnation"]) != life:
        return finding
    return {**finding, "second_opinion": said}


def _ask(dumps: str) -> Opinion | None:
    """None: it could not be run, and the log says why."""
    with tempfile.TemporaryDirectory(prefix="opinion-", dir=settings.STATE_DIR) as folder:
        place = Path(folder)
        task = service.Task(
            module=MODULE,
            arguments=["--dumps", f"{{scratch}}/{DUMPS}", "--out", f"{{out}}/{ANSWER}"],
            place=place,
            files={DUMPS: dumps},
            outputs=[ANSWER],
            limits=service.default_limits(wall_s=WALL_S),
            nice=NICE,
        )
        try:
            code = service.run(task)
            if code != 0:
                _log.warning("no second opinion", why=service.ended(code))
                return None
            with (place / ANSWER).open("rb") as file:
                return msgspec.json.decode(file.read(MAX_ANSWER_BYTES), type=Opinion)
        except (OSError, msgspec.DecodeError) as error:
            _log.warning("no second opinion", error=str(error))
            return None
