"""What holds automation, as answers."""

from controlplane.protocol.rest import words
from controlplane.protocol.rest.base import Answer


class Breaker(Answer, frozen=True, kw_only=True):
    """One that is open (`closed_at` None), or was: of the fleet, or of the failure domain `segment`. `code`: what
    tripped it: correlated, burst, evict, restart, cordon or save; `reason`: why, in words. `held_jobs`: of how many
    jobs automation has held something since it opened, `held_gpus`: the devices of those that are not over.
    `closed_by`: who closed it ("policy": what opened it was over)."""

    id: str
    code: str
    segment: str
    reason: str
    opened_at: str
    decision_id: str
    closed_at: str | None
    closed_by: str
    close_reason: str
    held_jobs: int
    held_gpus: int
    capabilities: words.Capabilities = {}
