"""What each source says of an XID, side by side, is what the policy acts by; and a site's override leaves its trace."""

from typing import Any

import pytest

from controlplane.access.models import AuditEntry
from controlplane.policies import xids
from controlplane.policy.xid import XidBucket, known_xids, look_up

pytestmark = pytest.mark.django_db
OVERRIDES = {63: "fatal", 79: "reset"}


def rows(caller: Any) -> dict[int, dict[str, Any]]:
    return {row["xid"]: row for row in caller("read").get("/policy/xids").json()["items"]}


def put(caller: Any, overrides: dict[int, str], parent: int) -> Any:
    words = "".join(f"\n  {xid}: {word}" for xid, word in overrides.items())
    body = {"text": f"xid_overrides:{words}\n", "parent": parent, "reason": "ours come back after a reset"}
    return caller("admin").post("/policy:put", body)


def test_where_the_sources_disagree_both_words_are_told(caller: Any) -> None:
    found = rows(caller)
    for xid in (63, 68, 69, 121):
        (told,) = found[xid]["disagreements"]
        assert told == f"NVIDIA: {found[xid]['nvidia']}, gpud: {found[xid]['gpud']}"
    assert found[64]["disagreements"] == ["NVIDIA: RESET_GPU, AWS: ISOLATE"]
    assert (found[63]["aws"], found[63]["aws_note"], found[79]["disagreements"]) == ("MONITOR", "", [])
    apart = [xid for xid, row in found.items() if any("AWS" in told for told in row["disagreements"])]
    assert apart == [64], "of the others AWS says what NVIDIA says"


def test_each_row_is_the_one_that_the_policy_acts_by(caller: Any) -> None:
    assert put(caller, OVERRIDES, 0).status_code == 201
    found = rows(caller)
    assert set(found) == set(known_xids())
    for xid, row in found.items():
        plain, now = look_up(xid), look_up(xid, OVERRIDES)
        assert (row["nvidia"], row["gpud"], row["standard"]) == (plain.nvidia, plain.gpud, plain.bucket)
        assert (row["site"], row["action"]) == (OVERRIDES.get(xid, ""), now.bucket)


def test_an_override_is_in_the_audit_log_with_what_was_before(caller: Any) -> None:
    put(caller, {79: "reset"}, 0)
    put(caller, OVERRIDES, 1)
    entry = AuditEntry.objects.filter(action="policy.put").latest("pk")
    assert (entry.actor, entry.reason) == ("user:ada (token admin)", "ours come back after a reset")
    assert "xid_overrides.63" in str(entry.before) and "fatal" in str(entry.after)


def test_what_is_kept_of_aws_are_its_own_words_for_xids_of_the_catalogue() -> None:
    kept = xids._aws()
    assert set(kept) <= set(known_xids())
    assert {severity for severity, _ in kept.values()} == {"MONITOR", "RESET", "REBOOT", "ISOLATE"}
    assert not {severity for severity, _ in kept.values()} & set(XidBucket), "they are not taken for actions of ours"
