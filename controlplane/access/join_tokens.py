"""Join tokens: made by administrators, bound to a name, a pattern of names, a pool or addresses,
used up by agents.

Called by an administrator's doors and by `fleet.enrolment`. Only the SHA-256 of a token is kept.
Its text, `holdfast_join_<id>_<secret>`, names its row, so that whoever finds one knows what to
revoke; the server never reads that id. Accepted at the enrolment door and nowhere else.
"""

import ipaddress
import re
from dataclasses import asdict, dataclass

from django.db.models import F

from controlplane.access import name_pattern, tokens
from controlplane.access.actors import in_words
from controlplane.access.models import JoinToken
from controlplane.access.services import Shown, audit
from controlplane.runtime.clock import after, now
from controlplane.runtime.errors import Denied, Invalid
from controlplane.runtime.ids import new_id

TTL_S = 3600.0
TTL_MAX_S = 7 * 86400.0
TTL_MIN_S = 10.0
MAX_USES = 10_000
MAX_NETWORKS = 16
_NAME = re.compile(r"^[a-z0-9]([a-z0-9.-]{0,98}[a-z0-9])?\Z")
_POOL = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,62}\Z")
_REFUSED = (
    "this join token is unknown, expired, used up, revoked or bound to others; ask an administrator for a new one"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """Who may use a token; what is empty binds nobody. `name_pattern` as in `access.name_pattern`;
    `pool` is the agent's --segment; `cidr` networks by commas; `takeover`: the known node of that
    `name` may be given another key."""

    name: str = ""
    name_pattern: str = ""
    pool: str = ""
    cidr: str = ""
    takeover: bool = False

    @property
    def binds(self) -> bool:
        """Bound to anything at all."""
        return bool(self.name or self.name_pattern or self.pool or self.cidr)


def create(
    binding: Binding,
    *,
    uses: int = 1,
    ttl_s: float = TTL_S,
    hold: bool = False,
    actor: str = "console",
    request_id: str = "",
) -> Shown:
    """Lets `uses` agents enrol within `ttl_s`, if they are those of the binding. `hold`: their nodes
    get no work until an administrator confirms them. Raises Invalid, with every fault."""
    faults = faults_of(binding, uses=uses, ttl_s=ttl_s)
    if faults:
        raise Invalid("the join token cannot be made so", errors=faults)
    token_id = new_id("jt")
    secret = tokens.new_secret(f"holdfast_join_{token_id}_")
    row = JoinToken.objects.create(
        id=token_id,
        sha256=tokens.digest(secret),
        expires_at=after(ttl_s),
        uses_left=uses,
        hold=hold,
        created_by=in_words(actor)[:120],
        **asdict(binding),
    )
    data = {"uses": uses, "ttl_s": ttl_s, "hold": hold, **asdict(binding)}
    audit(actor, "join_token.create", row.id, request_id=request_id, data=data)
    return Shown(id=row.id, secret=secret)


def faults_of(binding: Binding, *, uses: int, ttl_s: float) -> list[dict[str, str]]:
    """Every fault, as {"pointer", "message", "fix"}."""
    faults = []
    if binding.name and not _NAME.match(binding.name):
        faults.append(_fault("name", "no name of a node", "a-z, 0-9, '-' and '.', at most 100"))
    faults += _pattern_faults(binding)
    if binding.pool and not _POOL.match(binding.pool):
        faults.append(_fault("pool", "no name of a pool", "up to 63 letters, digits and _.:-"))
    if binding.takeover and not binding.name:
        faults.append(_fault("name", "missing", "a takeover names its node"))
    try:
        networks = [ipaddress.ip_network(part.strip()) for part in binding.cidr.split(",") if part.strip()]
        if binding.cidr and not networks:
            raise ValueError("it names no network, so that the token would fit nobody")
        if len(networks) > MAX_NETWORKS or len(binding.cidr) > 500:
            raise ValueError(f"more than {MAX_NETWORKS} networks")
    except ValueError as error:
        faults.append(_fault("cidr", str(error)[:200], "networks such as 10.1.0.0/16, separated by commas"))
    if not 1 <= uses <= MAX_USES:
        faults.append(_fault("uses", f"{uses} is out of range", f"1 to {MAX_USES}"))
    if binding.name and uses != 1:
        faults.append(_fault("uses", "a token for one node is used once", "1"))
    if not TTL_MIN_S <= ttl_s <= TTL_MAX_S:
        faults.append(_fault("ttl_s", f"{ttl_s:g} s is out of range", f"{TTL_MIN_S:g} s to {TTL_MAX_S:g} s (7 days)"))
    return faults


def _pattern_faults(binding: Binding) -> list[dict[str, str]]:
    if not binding.name_pattern:
        return []
    if binding.name:
        return [_fault("name_pattern", "the token is bound to a name already", "name or name_pattern, not both")]
    fault = name_pattern.fault_of(binding.name_pattern)
    return [_fault("name_pattern", fault, name_pattern.FIX)] if fault else []


def spend(secret: str, *, name: str, segment: str, address: str) -> JoinToken:
    """Use it once, as this node from this address. Raises Denied; one answer for unknown, expired,
    spent, revoked and bound to others."""
    live = JoinToken.objects.filter(uses_left__gt=0, expires_at__gt=now(), revoked_at=None)
    row = live.filter(sha256=digest(secret)).first()
    if row is None or not _fits(row, name=name, segment=segment, address=address):
        raise Denied(_REFUSED)
    if not live.filter(pk=row.pk).update(uses_left=F("uses_left") - 1):
        raise Denied(_REFUSED)
    row.refresh_from_db()
    return row


def revoke(token_id: str, *, actor: str, request_id: str = "") -> bool:
    """True if it was live."""
    changed = JoinToken.objects.filter(id=token_id, revoked_at=None).update(revoked_at=now())
    audit(actor, "join_token.revoke", token_id, request_id=request_id)
    return bool(changed)


def digest(secret: str) -> str:
    """What is stored of it."""
    return tokens.digest(secret)


def _fits(row: JoinToken, *, name: str, segment: str, address: str) -> bool:
    if row.name and row.name != name:
        return False
    if row.name_pattern and not name_pattern.matches(row.name_pattern, name):
        return False
    if row.pool and row.pool != segment:
        return False
    return not row.cidr or _is_inside(address, row.cidr)


def _is_inside(address: str, networks: str) -> bool:
    try:
        peer = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(peer, "ipv4_mapped", None)
    peer = mapped if mapped is not None else peer
    return any(peer in ipaddress.ip_network(part.strip()) for part in networks.split(",") if part.strip())


def _fault(field: str, message: str, fix: str) -> dict[str, str]:
    return {"pointer": f"/{field}", "message": message, "fix": fix}
