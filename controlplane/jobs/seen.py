"""What of a shared answer whoever asks may see: a node's picture, a request or an event can name jobs of any project.

Answers about one job need none of this: `api.reach` has judged them. Here a line of a list that is about a job of a
project that is not seen is left out, and what holds a device for one is told without saying who it is.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from django.db.models import QuerySet

from controlplane.access.rights import Rights
from controlplane.jobs.models import Job, Rank
from controlplane.runtime.models import Event
from controlplane.runtime.pieces import batched

UNSEEN = "a job of a project that you do not see"
UNSEEN_ID = "unseen"
"""In the place of an id whose mere presence says that a device is not free."""
WITHHELD = "withheld"
"""Kind of an event that says nothing but its number, so that a reader who counts misses none."""
NAMES = ("job_id", "spare_for", "urgent_id")
IDS_A_QUERY = 500
Json = dict[str, Any]


def seen(rights: Rights, value: Any) -> Any:
    """The same JSON, without what names jobs of projects that are not seen. One query for each 500 jobs in it."""
    if rights.everything or rights.whole:
        return value
    hidden = hidden_jobs(rights, set(_job_ids(value)))
    return _without(value, hidden) if hidden else value


def hidden_jobs(rights: Rights, job_ids: Collection[str]) -> frozenset[str]:
    """Which of these are in projects that are not seen."""
    return frozenset(job_id for job_id, project in projects_of(job_ids).items() if not rights.sees(project))


def projects_of(job_ids: Collection[str]) -> Mapping[str, str]:
    """The project of each of these jobs that exists."""
    found: dict[str, str] = {}
    for some in batched(sorted(job_ids), IDS_A_QUERY):
        found |= dict(Job.objects.filter(pk__in=some).values_list("id", "project"))
    return found


def device_in_use_unseen(rights: Rights, device_id: str) -> bool:
    """A rank of a job that is not seen is on it."""
    if rights.everything or rights.whole:
        return False
    held = Rank.objects.filter(device_id=device_id, released_at=None)
    return held.exclude(rights.only("replica__attempt__job__project")).exists()


def events_seen(rights: Rights, rows: QuerySet[Event]) -> QuerySet[Event]:
    """Without those of jobs that are not seen."""
    if rights.everything or rights.whole:
        return rows
    return rows.exclude(job_id__in=Job.objects.exclude(rights.only("project")).values("pk"))


def event_seen(message: Json, hidden: Collection[str]) -> Json:
    """A live event as somebody gets it who does not see these jobs. What happens to a node or a device is told, without
    whose it is; of anything else about such a job the number alone."""
    event = message["event"]
    if event["job_id"] in hidden:
        of_fleet = event["entity"] in ("node", "device")
        kept = {
            "kind": event["kind"] if of_fleet else WITHHELD,
            "sentence": "",
            "job_id": None,
            "job_seq": None,
            "entity": event["entity"] if of_fleet else "",
            "entity_id": event["entity_id"] if of_fleet else "",
            "node_id": event["node_id"] if of_fleet else None,
            "patch": event["patch"] if of_fleet else None,
            "data": {},
        }
        event = event | kept
    return message | {"event": _without(event, hidden)}


def job_ids_of(message: Json) -> set[str]:
    """Of every job that an event names."""
    return set(_job_ids(message["event"]))


def _job_ids(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if isinstance(inner, str) and name in NAMES:
                yield inner
            else:
                yield from _job_ids(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _job_ids(inner)


def _without(value: Any, hidden: Collection[str]) -> Any:
    if isinstance(value, list | tuple):
        return [_without(inner, hidden) for inner in value if not _is_about(inner, hidden)]
    if not isinstance(value, dict):
        return value
    kept = {name: _without(inner, hidden) for name, inner in value.items()}
    if value.get("job_id") in hidden:
        kept |= {name: None for name in ("job_id", "job_name") if name in value}
    if value.get("spare_for") in hidden:
        kept["spare_for"] = UNSEEN_ID
    if value.get("urgent_id") in hidden:
        kept |= {"urgent_id": None, "urgent_name": UNSEEN}
    if _is_about(value.get("held_by"), hidden):
        kept["held_by"] = {"job_id": UNSEEN_ID, "job_name": UNSEEN, "replica": 0, "rank": 0}
        # Why it cannot be reset names the job.
        kept["capabilities"] = {act: why and IN_USE for act, why in value.get("capabilities", {}).items()}
    return kept


def _is_about(value: Any, hidden: Collection[str]) -> bool:
    return isinstance(value, dict) and value.get("job_id") in hidden


IN_USE = f"it is in use by {UNSEEN}"
