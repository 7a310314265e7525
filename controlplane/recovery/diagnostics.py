"""What diagnostics of ranks found, as rows: `changes.kinds.KeepDiagnostic` in the database, and how long they stay."""

from controlplane.changes.diagnostics import SCHEDULED
from controlplane.changes.rows import Diagnostic
from controlplane.jobs.models import Job
from controlplane.recovery.models import Decision, RankLook
from controlplane.runtime.clock import ago, from_s
from controlplane.runtime.ids import new_id

MAX_LOOKS_PER_JOB = 256
MAX_PLACES_PER_JOB = 20_000
FORGOTTEN_AT_ONCE = 1_000


def keep(job: Job, found: Diagnostic) -> None:
    """Of this job, which is locked. The newest MAX_LOOKS_PER_JOB with a text of incidents stay, and as many of the
    others: what is looked at on schedule never pushes out an incident's evidence."""
    RankLook.objects.create(
        id=new_id("look"),
        job=job,
        incident_id=found.incident or None,
        command_id=found.command_id,
        replica=found.replica,
        incarnation=found.incarnation,
        rank=found.rank,
        look=found.what,
        method=found.method,
        place=found.place,
        text=found.text,
        at=from_s(found.at_s),
    )
    rows = RankLook.objects.filter(job=job).order_by("-at", "-id")
    old = rows.filter(incident__isnull=not found.incident).exclude(text="").values_list("id", flat=True)
    RankLook.objects.filter(id__in=list(old[MAX_LOOKS_PER_JOB : MAX_LOOKS_PER_JOB * 2])).delete()
    # Of the others of a whole job only the place is kept.
    places = rows.filter(text="").values_list("id", flat=True)
    RankLook.objects.filter(id__in=list(places[MAX_PLACES_PER_JOB : MAX_PLACES_PER_JOB + FORGOTTEN_AT_ONCE])).delete()


def forget_scheduled(older_than_s: float) -> None:
    """Decisions that did nothing but order a look on schedule; the job counts them."""
    Decision.objects.filter(rule=SCHEDULED, at__lt=ago(older_than_s)).delete()
