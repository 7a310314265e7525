"""Whatever order events come in, a rank's core keeps its promises."""

import copy

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.protocol.launch import RankRef
from controlplane.protocol.membership import Donor, Install, Member, MemberRole, ReplicaDone, View
from trainer.core import effects as do
from trainer.core import events as on
from trainer.core.rank import RankCore
from trainer.core.standing import Standing

MICRO_BATCHES = 4
EPOCHS = st.integers(1, 6)
INCARNATIONS = {0: 1, 1: 1, 2: 4}


@st.composite
def views(draw: st.DrawFn) -> View:
    """Replica 0 may be left out, and come back."""
    named = sorted(draw(st.sets(st.sampled_from(sorted(INCARNATIONS)), min_size=1)))
    roles = {replica: draw(st.sampled_from(MemberRole)) for replica in named}
    members = tuple(Member(replica, INCARNATIONS[replica], role) for replica, role in roles.items())
    donors = tuple(Donor(joiner=joiner, donor=donor) for joiner in named for donor in named if joiner != donor)
    returning = draw(st.sampled_from([(), (0,)])) if 0 in named else ()
    at_step = draw(st.none() | st.integers(0, 4))
    return View("job", 1, draw(EPOCHS), members, donors, at_step=at_step, returning=returning)


@st.composite
def installs(draw: st.DrawFn) -> Install:
    """Of any step, and with any part of it as held by replica 0."""
    contributors = tuple(sorted(draw(st.sets(st.sampled_from(sorted(INCARNATIONS)), min_size=1))))
    held = tuple(sorted(draw(st.sets(st.integers(0, MICRO_BATCHES - 1)))))
    done = (ReplicaDone(0, held),) if held else ()
    return Install("job", 1, draw(EPOCHS), draw(st.integers(0, 4)), contributors, done)


flags = st.booleans()
EVENTS = st.one_of(
    views().map(on.ViewSeen),
    installs().map(on.InstallSeen),
    EPOCHS.map(on.ViewAwaited),
    st.sampled_from([on.Unheard(), on.Fetched(), on.Begun(), on.Computed()]),
    flags.map(on.Agreed),
    st.builds(on.Confirmed, flags, flags),
    flags.map(on.Built),
    flags.map(on.Met),
    flags.map(on.Summed),
    st.sampled_from([on.Passed(None), on.Passed(()), on.Passed((0,))]),
)
LIKELY: dict[type[do.Ask], on.Event] = {
    do.Agree: on.Agreed(same=True),
    do.Confirm: on.Confirmed(stands=True, keeps=False),
    do.Build: on.Built(inside=True),
    do.Compute: on.Computed(),
    do.Meet: on.Met(over=False),
    do.Sum: on.Summed(held=True),
    do.Barrier: on.Passed(level=()),
}


def fresh() -> RankCore:
    """Replica 0, not yet in a view."""
    return RankCore(Standing(RankRef("job", 1, 0, 1, 0), 0), micro_batch_count=MICRO_BATCHES, max_contributors=2)


@settings(max_examples=400, deadline=None)
@given(st.lists(EVENTS | st.none(), max_size=60))
def test_a_core_keeps_its_promises(story: list[on.Event | None]) -> None:
    """None: what was asked last is answered as it mostly is, or a step begins."""
    core, answered, asked, prepared_of = fresh(), 0, None, None
    for event in story:
        likely = LIKELY.get(type(asked), on.Begun()) if asked is not None else on.Begun()
        given_event = event or likely
        before, twin = copy.deepcopy(core.standing), copy.deepcopy(core)
        effects = core.handle(given_event)
        assert twin.handle(given_event) == effects, "the same event, the same effects"
        assert not any(isinstance(effect, do.ASKS) for effect in effects[:-1]), "what is asked comes last"
        if effects and isinstance(effects[-1], do.ASKS):
            asked = effects[-1]
        standing = core.standing
        for effect in effects:
            if isinstance(effect, do.Say):
                assert effect.flush.epoch >= answered, "an older view is answered no more"
                assert set(effect.flush.done_micro_batches) <= set(range(MICRO_BATCHES))
                answered = effect.flush.epoch
            if isinstance(effect, do.CommitStep):
                assert effect.step == before.committed, "step by step"
                assert before.prepared or prepared_of == effect.step, "only what was prepared"
        if isinstance(given_event, on.Summed) and standing.prepared:
            prepared_of = standing.committed
        assert standing.epoch >= before.epoch
        if standing.epoch > before.epoch and core.stage.value != "left":
            assert standing.epoch >= answered, "what was answered is stood by"
        if standing.committed != before.committed and not any(isinstance(e, do.CommitStep) for e in effects):
            assert any(isinstance(effect, do.Fetch) for effect in effects) or core.stage.value == "left"


@given(st.lists(EVENTS, max_size=40))
def test_who_has_left_does_nothing_more(story: list[on.Event]) -> None:
    core = fresh()
    core.handle(on.ViewSeen(View("job", 1, 7, (Member(1, 1, MemberRole.CONTRIBUTOR),))))
    assert core.stage.value == "left"
    assert [core.handle(event) for event in story] == [[] for _ in story]
