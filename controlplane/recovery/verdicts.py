"""People's words about decisions that were only recommended: approve, reject, hold.

Each is a word on the decision's row, an entry of the audit log and a wake-up. What was approved the next pass carries
out, if it still proposes it (`policy.consent`).
"""

from controlplane.access import services as access
from controlplane.access.actors import in_words
from controlplane.jobs.models import Job
from controlplane.jobs.services import wake_job
from controlplane.policies import selectors as policies
from controlplane.policy.fleet import decide_fleet
from controlplane.policy.plan import is_key
from controlplane.policy.recommendation import ACTS
from controlplane.protocol.plain import without_secrets
from controlplane.protocol.states import Verdict
from controlplane.recovery import recommended
from controlplane.recovery.decided import publish_verdict
from controlplane.recovery.fleet_pass import load_fleet
from controlplane.recovery.load import load_snapshot
from controlplane.recovery.load_candidates import decided
from controlplane.recovery.models import Decision
from controlplane.recovery.request_rows import add_word
from controlplane.runtime import events
from controlplane.runtime.clock import iso, now
from controlplane.runtime.errors import NotFound, refuse
from controlplane.runtime.locks import lock_fleet, lock_row

GONE = "the policy does not recommend it any more: what it rested on has changed"


def say(decision_id: str, act: str, *, reason: str, person: str, actor: str = "", request_id: str = "") -> Decision:
    """`act`: approve, reject or hold. `person`: whose account it is, `user:NAME`, as one account with two tokens is one
    person; `actor`: by which of them it was said, for the audit log ("": the account). Raises NotFound; Conflict where
    it is no recommendation, was carried out, is not recommended any more, or the same word was said before (of
    approvals: by the same person)."""
    with events.unit_of_work():
        row = _locked(decision_id)
        shown = recommended.shown(row)
        refuse(shown["capabilities"][act])
        verdict = ACTS[act]
        if verdict is Verdict.APPROVED:
            refuse(_why_no_approval(row, person, needed=shown["approvals_needed"]))
        who = in_words(actor or person)
        word = {"who": who, "verdict": verdict, "reason": without_secrets(reason), "at": iso(now())}
        access.audit(
            actor or person,
            f"decision.{act}",
            row.id,
            reason=reason,
            request_id=request_id,
            before={"verdict": row.verdict},
            after={"verdict": verdict},
        )
        add_word(row, word | {"person": person[:200]})
        publish_verdict(row, f"{who} {verdict}: {row.sentence} ({word['reason']})")
        if row.job_id is not None:
            # The fleet's own pass comes with each sweep.
            wake_job(row.job_id, sure=verdict is Verdict.APPROVED)
    return row


def _locked(decision_id: str) -> Decision:
    """The job's row first, as everywhere; about the fleet its lock, which the fleet's own pass holds as well."""
    found = Decision.objects.filter(pk=decision_id).values_list("job_id", flat=True)[:1]
    for job_id in found:
        if job_id is None:
            lock_fleet()
        else:
            lock_row(Job, job_id)
    row = Decision.objects.select_related("job").defer("snapshot").filter(pk=decision_id).first()
    if row is None:
        raise NotFound(f"no decision {decision_id!r}")
    return row


def _why_no_approval(row: Decision, person: str, *, needed: int) -> str:
    """What speaks against it that a look at the world as a whole has to find."""
    if person[:200] in recommended.approvals_of(row) and needed > 0:
        return "you have approved it: it takes a second person, as it is expected to cost more than one may decide"
    job = row.job
    if job is None:
        made = decide_fleet(load_fleet(), policies.of_fleet())
    else:
        made = decided(load_snapshot(job), job, policies.of_job(job.pk))[1].decisions
    stands = any(is_key(row.key, each.key) for each in made)
    return "" if stands else GONE
