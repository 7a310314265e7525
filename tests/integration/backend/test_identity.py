"""Who is admitted as a node, rule by rule, and what an administrator may do about nodes (F16)."""

import pytest
from django.core.management import CommandError, call_command

from agents.link.keys import NodeKey, rotation
from controlplane.access import join_tokens
from controlplane.access.models import AuditEntry, JoinToken
from controlplane.dispatch import services as dispatch
from controlplane.fleet import enrolment, identity
from controlplane.fleet.identity import Shown
from controlplane.fleet.models import Node
from controlplane.fleet.services import cordon, open_session, uncordon
from controlplane.fleet.sessions import close_session
from controlplane.protocol.commands import StopRanks, WarmHost
from controlplane.recovery import doubts
from controlplane.recovery.models import Signal
from controlplane.runtime.clock import ago
from controlplane.runtime.errors import Conflict, Denied, NotFound
from tests.integration.backend.builders import make_fleet, make_job

pytestmark = pytest.mark.django_db


class OneNode:
    """A node and its agent's next session."""

    def __init__(self) -> None:
        self.key = NodeKey.fresh()
        Node.objects.create(id="node_1", name="n1", public_key=self.key.public_key)
        self.counter = 0

    @property
    def row(self) -> Node:
        return Node.objects.get(pk="node_1")

    def shown(self, boot: str = "b1", journal: str = "j1", **changes: object) -> Shown:
        self.counter += 1
        values = {"boot_id": boot, "journal_id": journal, "machine_id": "m1", "counter": self.counter} | changes
        return Shown(**values)  # type: ignore[arg-type]

    def ask(self, boot: str = "b1", journal: str = "j1", **changes: object) -> identity.Admission:
        """Admitted, with a session that stays open, or not."""
        shown = self.shown(boot, journal, **changes)
        found = identity.admit("node_1", shown)
        if found.verdict == "prove_again":
            found = identity.admit("node_1", shown, again=True)
        if found.verdict == "admit":
            open_session(self.row, session_id=f"web.{shown.counter}", boot_id=boot, journal_id=journal, version="t")
        return found

    def leave(self) -> None:
        close_session("node_1", self.row.session_id)


@pytest.fixture
def one(db: None) -> OneNode:
    return OneNode()


def test_restarts_reboots_and_a_damaged_journal_are_no_copies(one: OneNode) -> None:
    for boot, journal in (("b1", "j1"), ("b1", "j1"), ("b1", "j2"), ("b1", "j1"), ("b2", "j3"), ("b3", "j4")):
        assert one.ask(boot, journal) == identity.ADMIT
        one.leave()
    assert (one.row.state, one.row.doubt) == ("ready", "")


def test_a_boot_that_had_ended_never_comes_back_as_the_same_node(one: OneNode) -> None:
    for boot, journal in (("b1", "j1"), ("b2", "j2")):
        one.ask(boot, journal)
        one.leave()
    found = one.ask("b1", "j1")
    assert found.verdict == "admit"
    assert "boot b1 speaks again" in found.found
    assert one.row.state == "quarantined"
    assert one.ask("b2", "j2").code == "cloned"


def test_a_restored_snapshot_is_found_by_its_counter_and_keeps_its_ranks_and_its_session(one: OneNode) -> None:
    for _ in range(5):
        one.ask()
        one.leave()
    one.counter = 1
    assert identity.admit("node_1", one.shown()).verdict == "prove_again"
    one.counter = 1
    found = one.ask()
    assert (found.verdict, found.found) == ("admit", "its session counter went back from 5 to 2")
    assert one.row.state == "quarantined"
    one.leave()
    assert one.ask().found == ""


def test_a_late_message_of_a_socket_that_was_left_proves_nothing(one: OneNode) -> None:
    late = one.shown()
    one.ask()
    assert identity.admit("node_1", late) == identity.AGAIN
    assert one.row.doubt == ""


def test_a_cloned_disk_on_other_hardware_is_flagged_before_it_does_anything(one: OneNode) -> None:
    one.row.devices.create(id="dev_1", index=0, uuid="GPU-1", model="T", driver="d")
    one.ask(devices=("GPU-1", "GPU-2"))
    one.leave()
    assert "not one of its devices" in one.ask("b2", "j2", devices=("GPU-8", "GPU-9")).found
    one.leave()
    assert one.row.state == "quarantined"


def test_a_replaced_device_is_no_other_machine(one: OneNode) -> None:
    one.row.devices.create(id="dev_1", index=0, uuid="GPU-1", model="T", driver="d")
    one.ask(devices=("GPU-1", "GPU-2"))
    one.leave()
    assert one.ask("b2", "j2", devices=("GPU-1", "GPU-9")) == identity.ADMIT


def test_who_comes_beside_a_live_session_waits_until_that_was_asked(one: OneNode) -> None:
    one.ask()
    assert one.ask("b2", "j2").code == "in_doubt"
    assert identity.being_asked(["node_1"]) == {"node_1"}
    Node.objects.update(asked_at=ago(identity.ASK_S + 1))
    assert one.ask("b2", "j2") == identity.ADMIT
    assert one.row.hold_until is not None
    assert identity.being_asked(["node_1"]) == set()


def test_a_live_session_that_proves_itself_again_bars_the_newcomer(one: OneNode) -> None:
    one.ask()
    session = one.row.session_id
    one.ask("b2", "j2", address="10.0.0.9")
    why = identity.live_one_answered("node_1", session)
    assert "from 10.0.0.9" in why
    assert one.ask("b2", "j2").code == "cloned"
    assert one.ask() == identity.ADMIT
    assert identity.live_one_answered("node_1", one.row.session_id) == ""


def test_a_copys_hello_ends_none_of_the_true_nodes_ranks(one: OneNode) -> None:
    one.ask()
    assert one.ask("b2", "j2", machine_id="m2").code == "cloned"
    assert one.row.boot_id == "b1"


@pytest.mark.parametrize(("doubt", "hold_until", "kinds"), [("why", None, ["stop_ranks"]), ("", None, ["warm_host"])])
def test_nothing_begins_on_a_node_in_doubt(one: OneNode, doubt: str, hold_until: object, kinds: list[str]) -> None:
    dispatch.enqueue(WarmHost("job_x", 1), node_id="node_1")
    dispatch.enqueue(StopRanks("job_x", 1, 0, 1, 0.0, "r"), node_id="node_1")
    Node.objects.update(doubt=doubt, hold_until=hold_until)
    sent = {row.kind for row in dispatch.deliverable(["node_1"])}
    assert set(kinds) <= sent
    assert ("warm_host" in sent) == (doubt == "")


def test_a_session_that_pushed_out_a_live_one_gets_no_start_at_first(one: OneNode) -> None:
    one.ask()
    one.ask()
    dispatch.enqueue(WarmHost("job_x", 1), node_id="node_1")
    assert dispatch.deliverable(["node_1"]) == []
    Node.objects.update(hold_until=ago(1))
    assert len(dispatch.deliverable(["node_1"])) == 1


def test_only_a_confirmation_ends_a_doubt(one: OneNode) -> None:
    one.ask()
    one.leave()
    one.ask("b2", "j2", machine_id="m2")
    doubts.tell("node_1", one.row.doubt)
    with pytest.raises(Conflict, match="holdfast node confirm n1"):
        uncordon("node_1", reason="r", actor="ada")
    assert one.row.state == "quarantined"
    doubts.confirm("node_1", actor="user:ada", reason="moved to a new chassis")
    assert (one.row.state, one.row.doubt) == ("ready", "")
    assert not Signal.objects.filter(settled_at=None).exists()
    assert AuditEntry.objects.filter(action="node.confirm", actor="user:ada").exists()
    with pytest.raises(Conflict, match="nothing to confirm"):
        doubts.confirm("node_1", actor="user:ada", reason="again")


def test_a_node_quarantined_for_its_hardware_comes_back_by_uncordon(one: OneNode) -> None:
    cordon("node_1", reason="r", actor="ada")
    Node.objects.update(state="quarantined")
    uncordon("node_1", reason="new board", actor="ada")
    assert one.row.state == "ready"


def test_a_return_to_an_older_journal_goes_on_where_it_ended(one: OneNode) -> None:
    one.ask("b1", "j1")
    Node.objects.update(last_event_seq=41)
    one.leave()
    one.ask("b1", "j2")
    assert one.row.last_event_seq == 0
    Node.objects.update(last_event_seq=3)
    one.leave()
    one.ask("b1", "j1")
    assert one.row.last_event_seq == 41


def test_lives_are_bounded(one: OneNode) -> None:
    for number in range(identity.MAX_LIVES + 20):
        one.ask(f"b{number}", f"j{number}")
        one.leave()
    assert one.row.lives.count() <= identity.MAX_LIVES + 1


def test_a_gap_that_no_repeat_closes_asks_for_a_new_journal_then_shows_the_node_deaf_until_it_hears() -> None:
    fleet = make_fleet(1)

    def stuck() -> bool:
        return doubts.is_stuck(Node.objects.get(name="n1"), advanced=False, gap=True)

    assert not stuck()
    Node.objects.update(gap_since=ago(doubts.RESYNC_S + 1))
    assert stuck()
    Node.objects.update(gap_since=ago(doubts.DEAF_S + 1))
    assert stuck()
    row = Node.objects.get(name="n1")
    assert (row.state, row.deaf) == ("quarantined", True)
    assert Signal.objects.filter(kind="node_deaf", settled_at=None).count() == 1
    assert not doubts.is_stuck(row, advanced=True, gap=False)
    row = Node.objects.get(name="n1")
    assert (row.state, row.deaf, row.gap_since) == ("ready", False, None)
    assert not Signal.objects.filter(kind="node_deaf", settled_at=None).exists()
    assert fleet.nodes["n1"].id == row.id


def test_a_new_key_counts_when_the_old_one_and_it_have_signed(one: OneNode) -> None:
    new, nonce = NodeKey.fresh(), bytes(32)
    stranger = rotation(NodeKey.fresh(), new, nonce=nonce, node_id="node_1")
    assert not enrolment.take_new_key("node_1", nonce, stranger)
    assert not enrolment.take_new_key("node_1", bytes([1]) * 32, rotation(one.key, new, nonce=nonce, node_id="node_1"))
    assert enrolment.take_new_key("node_1", nonce, rotation(one.key, new, nonce=nonce, node_id="node_1"))
    row = one.row
    assert (row.public_key, row.old_public_key, row.key_wanted_at) == (new.public_key, one.key.public_key, None)
    assert row.old_key_until is not None


def test_a_removed_node_frees_its_name_and_stays_in_the_history(one: OneNode) -> None:
    enrolment.remove("node_1", actor="user:ada", reason="scrapped")
    assert not Node.objects.filter(name="n1").exists()
    assert one.row.public_key is None
    with pytest.raises(NotFound):
        enrolment.revoke("node_1", actor="user:ada")
    assert identity.admit("node_1", one.shown()).code == "unknown_node"


def test_a_node_with_ranks_is_not_removed() -> None:
    from controlplane.recovery.reconcile import reconcile_job

    fleet = make_fleet(4)
    reconcile_job(make_job().id)
    placed = Node.objects.filter(ranks__released_at=None).first()
    assert placed is not None
    with pytest.raises(Conflict, match="ranks are placed"):
        enrolment.remove(placed.id, actor="user:ada", reason="r")
    assert fleet.nodes


def test_a_revoked_node_is_told_what_to_do_and_a_restored_one_is_admitted(one: OneNode) -> None:
    enrolment.revoke("node_1", actor="user:ada", reason="lost")
    refused = one.ask()
    assert refused.code == "revoked"
    assert "holdfast node restore n1" in refused.detail
    enrolment.restore("node_1", actor="user:ada", reason="found")
    assert one.ask() == identity.ADMIT


@pytest.mark.parametrize(
    ("binding", "name", "segment", "address", "fits"),
    [
        ({"name": "n1"}, "n1", "", "10.0.0.1", True),
        ({"name": "n1"}, "n2", "", "10.0.0.1", False),
        ({"name_pattern": "gpu-a1-*"}, "gpu-a1-7", "", "10.0.0.1", True),
        ({"name_pattern": "gpu-a1-*"}, "gpu-a2-7", "", "10.0.0.1", False),
        ({"name_pattern": "gpu-*", "cidr": "10.0.0.0/8"}, "gpu-7", "", "192.0.2.1", False),
        ({"pool": "rack-7"}, "n2", "rack-7", "10.0.0.1", True),
        ({"pool": "rack-7"}, "n2", "rack-8", "10.0.0.1", False),
        ({"cidr": "10.0.0.0/8, fd00::/8"}, "n2", "", "10.9.9.9", True),
        ({"cidr": "10.0.0.0/8, fd00::/8"}, "n2", "", "::ffff:10.9.9.9", True),
        ({"cidr": "10.0.0.0/8, fd00::/8"}, "n2", "", "192.0.2.1", False),
        ({"cidr": "10.0.0.0/8"}, "n2", "", "", False),
    ],
)
def test_a_join_token_is_for_whom_it_is_bound_to(
    binding: dict[str, str], name: str, segment: str, address: str, fits: bool
) -> None:
    made = join_tokens.create(join_tokens.Binding(**binding))  # type: ignore[arg-type]
    if not fits:
        with pytest.raises(Denied, match="bound to others"):
            join_tokens.spend(made.secret, name=name, segment=segment, address=address)
        return
    assert join_tokens.spend(made.secret, name=name, segment=segment, address=address).uses_left == 0
    with pytest.raises(Denied):
        join_tokens.spend(made.secret, name=name, segment=segment, address=address)


@pytest.mark.parametrize(
    ("binding", "changes", "field"),
    [
        ({"cidr": "10.0.0.1/8"}, {}, "/cidr"),
        ({"cidr": "everywhere"}, {}, "/cidr"),
        ({"name": "Not A Host"}, {}, "/name"),
        ({"name": "n1"}, {"uses": 2}, "/uses"),
        ({"pool": "a b"}, {}, "/pool"),
        ({"name": "n1"}, {"ttl_s": 8 * 86400.0}, "/ttl_s"),
        ({"name": "n1"}, {"ttl_s": float("nan")}, "/ttl_s"),
        ({"takeover": True}, {}, "/name"),
        ({"takeover": True, "name_pattern": "n*"}, {}, "/name"),
        ({"name_pattern": "n1"}, {}, "/name_pattern"),
        ({"name_pattern": "*"}, {}, "/name_pattern"),
        ({"name": "n1", "name_pattern": "n*"}, {}, "/name_pattern"),
    ],
)
def test_a_faulty_join_token_is_refused_with_the_fault(
    binding: dict[str, object], changes: dict[str, float], field: str
) -> None:
    values = {"uses": 1, "ttl_s": 3600.0} | changes
    faults = join_tokens.faults_of(join_tokens.Binding(**binding), **values)  # type: ignore[arg-type]
    assert [fault["pointer"] for fault in faults] == [field]


def test_a_pattern_is_for_as_many_nodes_as_it_has_uses() -> None:
    made = join_tokens.create(join_tokens.Binding(name_pattern="gpu-?"), uses=2)
    for name in ("gpu-1", "gpu-2"):
        join_tokens.spend(made.secret, name=name, segment="", address="")
    with pytest.raises(Denied):
        join_tokens.spend(made.secret, name="gpu-3", segment="", address="")


def test_the_text_of_a_token_names_the_row_that_ends_it() -> None:
    made = join_tokens.create(join_tokens.Binding(name="n1"))
    assert made.secret.startswith(f"holdfast_join_{made.id}_")
    assert len(made.secret.removeprefix(f"holdfast_join_{made.id}_")) == 43
    assert join_tokens.revoke(made.id, actor="user:ada")
    with pytest.raises(Denied):
        join_tokens.spend(made.secret, name="n1", segment="", address="")


def test_the_id_in_a_tokens_text_opens_nothing_and_a_token_without_one_is_good_until_it_ends() -> None:
    made = join_tokens.create(join_tokens.Binding(name="n1"))
    with pytest.raises(Denied):
        join_tokens.spend(f"holdfast_join_{made.id}_{'x' * 43}", name="n1", segment="", address="")
    before = "holdfast_join_" + "y" * 43
    JoinToken.objects.filter(pk=made.id).update(sha256=join_tokens.digest(before))
    assert join_tokens.spend(before, name="n1", segment="", address="").id == made.id


def test_the_console_makes_no_token_that_is_bound_to_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    both = ["--name", "n1", "--name-pattern", "n*"]
    for faulty in ([], ["--cidr", "everywhere"], ["--name", "n1", "--uses", "2"], both):
        with pytest.raises(CommandError):
            call_command("create_join_token", *faulty)
    call_command("create_join_token", "--cidr", "127.0.0.0/8,::1/128", "--uses", "3")
    secret = capsys.readouterr().out.strip()
    assert join_tokens.spend(secret, name="n1", segment="", address="127.0.0.1").uses_left == 2
    call_command("create_join_token", "--name-pattern", "gpu-*", "--hold")
    spent = join_tokens.spend(capsys.readouterr().out.strip(), name="gpu-1", segment="", address="")
    assert (spent.name_pattern, spent.hold) == ("gpu-*", True)
