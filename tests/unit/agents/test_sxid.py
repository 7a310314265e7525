"""SXIDs of the kernel log: read in the driver's form, mapped to what follows for the node."""

from pathlib import Path

import pytest

from agents.core.health import Needs, Readings, judge
from agents.core.sxid import CORRECTED, REPEATS, STALLING, WHOLE_FABRIC, WINDOW_S, Sxid, fault, parse
from agents.probes.kernel_log import KernelLog, XidTexts

FATAL = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
MILD = "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20009, Non-fatal, Link 04 RX Short Error Rate"
WHOLE = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 10003, Fatal, Host_thermal_event_thermal_shutdown"


def test_a_line_is_taken_apart() -> None:
    assert parse(FATAL, 5.0) == Sxid(
        at_s=5.0, switch=3, bus="0000:c1:00.0", number=20034, fatal=True, link=30, text="LTSSM Fault Up"
    )
    mild, whole = parse(MILD, 0.0), parse(WHOLE, 0.0)
    assert mild is not None
    assert (mild.switch, mild.number, mild.fatal, mild.link) == (1, 20009, False, 4)
    assert whole is not None
    assert (whole.link, whole.text) == (None, "Host_thermal_event_thermal_shutdown")


@pytest.mark.parametrize(
    "line",
    [
        "", "NVRM: Xid (PCI:0000:91:00): 79, pid='<unknown>', GPU has fallen off the bus.",
        "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Severity 1 Engine instance 30 Sub-engine instance 00",
        "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): Data {0x00140004}",
    ],
)  # fmt: skip
def test_other_lines_are_none(line: str) -> None:
    assert parse(line, 0.0) is None


def of(line: str, *at_s: float) -> list[Sxid]:
    return [found for moment in at_s if (found := parse(line, moment)) is not None]


def test_a_fatal_one_keeps_new_work_away_for_a_day() -> None:
    why = fault(of(FATAL, 100.0), 200.0)
    assert "SXid 20034 (LTSSM Fault Up) of NVSwitch 3 link 30" in why
    assert "reboot the node" in why
    assert fault(of(FATAL, 100.0), 101.0 + WINDOW_S) == ""


def test_one_that_is_not_fatal_counts_only_when_it_comes_again_and_again() -> None:
    assert fault(of(MILD, *range(REPEATS - 1)), 100.0) == ""
    assert "SXid 20009" in fault(of(MILD, *range(REPEATS)), 100.0)
    spread = [i * WINDOW_S for i in range(REPEATS)]
    assert fault(of(MILD, *spread), spread[-1] + 1.0) == ""
    assert fault(of(MILD, *range(REPEATS)), 100.0) == fault(of(MILD, *range(REPEATS + 1)), 100.0)


def reported(number: int, word: str) -> str:
    return f"nvidia-nvswitch2: SXid (PCI:0000:07:00.0): {number}, {word}, Link 12 what the driver calls it"


@pytest.mark.parametrize("number", sorted({*CORRECTED, 22013}))
def test_what_the_switch_corrects_by_itself_keeps_no_work_away_however_often_it_comes(number: int) -> None:
    assert fault(of(reported(number, "Non-fatal"), *range(5 * REPEATS)), 100.0) == ""
    assert f"fatal SXid {number}" in fault(of(reported(number, "Fatal"), 1.0), 2.0), "the driver's own word comes first"


@pytest.mark.parametrize("number", sorted(STALLING))
def test_what_stalls_traffic_counts_at_once_though_it_is_called_non_fatal(number: int) -> None:
    why = fault(of(reported(number, "Non-fatal"), 1.0), 2.0)
    assert why.startswith(f"SXid {number} ")
    assert why.endswith("reset its GPUs and switches, or reboot the node")


@pytest.mark.parametrize("number", sorted(WHOLE_FABRIC))
def test_where_the_whole_fabric_is_lost_a_reset_is_not_what_it_says(number: int) -> None:
    both = [*of(reported(number, "Fatal"), 1.0), *of(FATAL, 2.0)]
    assert fault(both, 3.0).endswith("the whole fabric is lost, reboot the node")


def test_a_link_that_is_badly_connected_is_named_with_what_to_look_at() -> None:
    assert fault(of(reported(20012, "Non-fatal"), *range(REPEATS)), 50.0).endswith("check the link's connection")
    assert fault(of(reported(10004, "Non-fatal"), *range(REPEATS)), 50.0).endswith("look at the cooling of the machine")


def test_the_node_fails_its_check_and_says_why() -> None:
    needs = Needs(driver_major=0, free_bytes=0)
    (check,) = judge(Readings(nvswitch=fault(of(FATAL, 1.0), 2.0)), needs)
    assert check.name == "nvswitch"
    assert judge(Readings(), needs) == ()


def test_the_kernel_log_is_read_once_and_followed(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text(f"6,1,1000000,-;booted\n not a record\n3,2,2000000,-;{FATAL}\n SUBSYSTEM=pci\n")
    log = KernelLog(path)
    log.fault()
    log.fault()
    assert [found.number for found in log._seen] == [20034]
    with path.open("a") as file:
        file.write(f"3,3,3000000,-;{MILD}\n")
    log.fault()
    assert [(found.number, found.at_s) for found in log._seen] == [(20034, 2.0), (20009, 3.0)]
    log.close()


def test_a_log_that_may_not_be_read_is_no_fault(tmp_path: Path) -> None:
    assert KernelLog(tmp_path / "none").fault() == ""


def test_what_the_driver_wrote_about_an_xid_is_found_by_the_device_and_given_once(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    old = "4,1,100,-;NVRM: Xid (PCI:0000:b9:00): 74, pid=1, of before\n"
    path.write_text(old)
    texts = XidTexts(path)
    with path.open("a") as log:
        log.write("4,2,200,-;NVRM: Xid (PCI:0000:b9:00): 74, pid='<unknown>', NVLink: link 6(0x10000, 0x0)\n")
        log.write("4,3,300,-;NVRM: Xid (PCI:0000:41:00): 31, pid=7, MMU Fault\n")
        log.write("4,4,400,-;NVRM: Xid (PCI:0000:b9:00): 154, GPU recovery action changed from 0x0 (None)\n")
    assert texts.take("00000000:B9:00.0", 74) == "pid='<unknown>', NVLink: link 6(0x10000, 0x0)"
    assert texts.take("00000000:B9:00.0", 74) == ""
    assert texts.take("00000000:B9:00.0", 154).endswith("(None)")
    assert texts.take("00000000:42:00.0", 31) == ""
    assert texts.take("00000000:41:00.0", 31) == "pid=7, MMU Fault"


def test_of_a_burst_each_event_has_its_own_line_in_order(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("")
    texts = XidTexts(path)
    with path.open("a") as log:
        log.write("4,1,100,-;NVRM: Xid (PCI:0000:b9:00): 74, pid=1, hardware\n")
        log.write("4,2,200,-;NVRM: Xid (PCI:0000:b9:00 GPU-I:05): 74, pid=2, corrected\n")
    assert [texts.take("00000000:B9:00.0", 74) for _ in range(3)] == ["pid=1, hardware", "pid=2, corrected", ""]


def test_where_the_log_cannot_be_read_there_is_no_text(tmp_path: Path) -> None:
    assert XidTexts(tmp_path / "none").take("00000000:B9:00.0", 74) == ""


def line(number: int, xid: int, text: str = "pid=1, x") -> str:
    return f"4,{number},{number}00,-;NVRM: Xid (PCI:0000:b9:00): {xid}, {text}\n"


def test_what_was_written_while_nobody_listened_is_told_once_and_what_had_its_event_is_not(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text(line(1, 74))
    before = XidTexts(path)
    assert before.missed() == (), "nobody listened before it: that is of an earlier life"
    with path.open("a") as log:
        log.write(line(2, 48) + line(3, 94))
    assert before.take("00000000:B9:00.0", 48) != ""
    reported_up_to = before.reported_up_to()
    assert reported_up_to == 2, "the event of the third record has not come"
    with path.open("a") as log:
        log.write(line(4, 79, "GPU has fallen off the bus.") + "4,5,500,-;usb 1-1: new device\n")
    after = XidTexts(path, after=reported_up_to)
    assert [(xid.slot, xid.xid, xid.text) for xid in after.missed()] == [
        ("0000:b9:00", 94, "pid=1, x"), ("0000:b9:00", 79, "GPU has fallen off the bus."),
    ]  # fmt: skip
    assert after.missed() == ()
    assert after.reported_up_to() == 5


def test_a_text_that_comes_after_its_event_is_not_told_again(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("")
    texts = XidTexts(path)
    assert texts.take("00000000:B9:00.0", 79) == "", "the driver has not written it yet"
    with path.open("a") as log:
        log.write(line(7, 79))
    texts.read()
    assert texts.reported_up_to() == 7
    assert XidTexts(path, after=7).missed() == ()
