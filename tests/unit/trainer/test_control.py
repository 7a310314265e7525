"""The mailbox keeps the newest and consumes once; the outbox sheds the least important."""

import threading

import pytest

from controlplane.protocol.codec import decode_line
from controlplane.protocol.errors import ProtocolError
from controlplane.protocol.membership import Install, Member, MemberRole, View
from controlplane.protocol.rank import (
    FromRank,
    InjectFault,
    InstallView,
    OuterError,
    SaveNow,
    SetView,
    StepReport,
    StopTraining,
    TrainingDone,
)
from controlplane.protocol.states import Phase, Section
from trainer.control.faults import Faults, InjectedException
from trainer.control.mailbox import MAX_REMEMBERED_COMMANDS, Mailbox
from trainer.control.outbox import Outbox
from trainer.control.progress import Progress


def view(epoch: int, job_id: str = "job", attempt: int = 1) -> SetView:
    return SetView(View(job_id, attempt, epoch, (Member(0, 1, MemberRole.CONTRIBUTOR),)))


def install(epoch: int) -> InstallView:
    return InstallView(Install("job", 1, epoch, 0, (0,)))


def step(number: int) -> StepReport:
    return StepReport(number, 1, 0.1, 12, ())


def said(outbox: Outbox) -> list[object]:
    found = []
    while (line := outbox.head()) is not None:
        found.append(decode_line("from_rank", line))
        outbox.pop()
    return found


def test_the_newest_view_wins_in_any_order() -> None:
    box = Mailbox("job", 1)
    for epoch in (2, 5, 3):
        box.put(view(epoch))
    assert box.epoch() == 5


def test_each_view_newer_than_those_before_is_told_of_once() -> None:
    box, told = Mailbox("job", 1), []
    box.on_view = lambda seen: told.append(seen.epoch)
    for order in (view(2), view(2), view(5), view(3), view(9, attempt=2)):
        box.put(order)
    assert told == [2, 5]


@pytest.mark.parametrize("order", [view(2), install(2)])
def test_who_is_told_of_an_order_may_wait_for_another_thread_that_reads_the_box(order: SetView | InstallView) -> None:
    box, read = Mailbox("job", 1), []

    def told(_newest: object) -> None:
        reader = threading.Thread(target=lambda: read.append(box.view_and_age_s()), daemon=True)
        reader.start()
        reader.join(5.0)
        read.append(reader.is_alive())

    box.on_view = box.on_install = told
    box.put(order)
    assert read[-1] is False


def test_orders_of_another_job_or_attempt_are_dropped() -> None:
    box = Mailbox("job", 1)
    box.put(view(9, job_id="other"))
    box.put(view(9, attempt=2))
    assert box.view() is None


def test_an_install_answers_its_own_epoch_only() -> None:
    box = Mailbox("job", 1)
    box.put(install(4))
    box.put(install(3))
    assert box.install_for(4) is not None
    assert box.install_for(3) is None
    assert box.install_for(5) is None


def test_a_save_is_consumed_once_and_its_repeats_are_dropped() -> None:
    box = Mailbox("job", 1)
    order = SaveNow("cmd", "emergency", "ECC")
    box.put(order)
    assert box.take_save() == order
    box.put(order)
    assert box.take_save() is None


def test_remembered_commands_are_bounded() -> None:
    box = Mailbox("job", 1)
    for number in range(MAX_REMEMBERED_COMMANDS + 1):
        box.put(SaveNow(f"cmd{number}", "manual", ""))
    box.take_save()
    box.put(SaveNow("cmd0", "manual", ""))
    assert box.take_save() is not None


def test_a_stop_stays() -> None:
    box = Mailbox("job", 1)
    box.put(StopTraining(save=True, reason="preempted"))
    assert box.stop() == box.stop() == StopTraining(save=True, reason="preempted")


def test_the_outbox_keeps_order() -> None:
    box = Outbox()
    for number in range(3):
        box.put(step(number))
    assert said(box) == [step(0), step(1), step(2)]
    assert box.wait_empty(0)


def test_a_full_outbox_sheds_step_reports_before_facts() -> None:
    box = Outbox(limit=3)
    for message in (TrainingDone(1), step(0), step(1), TrainingDone(2), TrainingDone(3)):
        box.put(message)
    assert said(box) == [TrainingDone(1), TrainingDone(2), TrainingDone(3)]
    assert box.shed == 2


@pytest.mark.parametrize("message", [TrainingDone(2**70), OuterError(1, 1, "a\0b"), OuterError(1, 1, "\ud800")])
def test_what_the_agent_would_refuse_is_never_queued_before_what_it_takes(message: FromRank) -> None:
    box = Outbox()
    with pytest.raises(ProtocolError):
        box.put(message)
    box.put(TrainingDone(1))
    assert said(box) == [TrainingDone(1)]


def test_a_head_that_was_not_sent_stays() -> None:
    box = Outbox()
    box.put(step(0))
    assert box.head() == box.head()
    assert not box.wait_empty(0)


def test_a_step_inside_the_same_phase_restarts_its_age() -> None:
    progress, borders = Progress(step=0), []
    progress.on_border = lambda: borders.append(progress.report().phase)
    progress.enter(Section.STEP, Phase.COMPUTE, step=1, epoch=1)
    progress.enter(Section.STEP, Phase.COMPUTE, step=1, epoch=1)
    progress.enter(Section.STEP, Phase.EXCHANGE, step=1, epoch=1)
    assert borders == [Phase.COMPUTE, Phase.EXCHANGE]
    report = progress.report()
    assert (report.section, report.step, report.epoch) == (Section.STEP, 1, 1)
    assert report.section_age_s >= report.phase_age_s


def test_faults_need_permission() -> None:
    faults = Faults(allowed=False)
    assert not faults.inject(InjectFault("exception"))
    faults.at_compute()


def test_an_injected_exception_is_raised_once() -> None:
    faults = Faults(allowed=True)
    assert faults.inject(InjectFault("exception"))
    with pytest.raises(InjectedException):
        faults.at_compute()
    faults.at_compute()


def test_nan_is_taken_once_and_slow_stays_until_healed() -> None:
    faults = Faults(allowed=True)
    faults.inject(InjectFault("nan"))
    faults.inject(InjectFault("slow", 0.5))
    assert [faults.take_nan(), faults.take_nan(), faults.slow_s] == [True, False, 0.5]
    faults.inject(InjectFault("slow", 0.0))
    assert faults.slow_s == 0.0


def test_an_unknown_fault_is_refused() -> None:
    assert not Faults(allowed=True).inject(InjectFault("melt"))
