"""The journal keeps whole records, whatever happens to the file."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.core.records import EventsAcked, HostKept, Opened
from agents.link.journal import Journal, read_journal

RECORDS = (Opened("jrn_1", "boot"), HostKept("job_1", 12, 34), EventsAcked(7))


def written(path):
    journal = Journal(path)
    for record in RECORDS:
        journal.append(record)
    journal.sync()
    journal.close()
    return path


def test_what_was_appended_is_read_back(tmp_path):
    assert read_journal(written(tmp_path / "journal")) == RECORDS


def test_a_missing_journal_is_empty(tmp_path):
    assert read_journal(tmp_path / "none") == ()


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 200), flip=st.integers(0, 200))
def test_damage_costs_the_tail_and_nothing_before_it(tmp_path_factory, cut, flip):
    path = written(tmp_path_factory.mktemp("j") / "journal")
    data = bytearray(path.read_bytes())[: max(cut, 1)]
    data[flip % len(data)] ^= 0x5A
    path.write_bytes(data)
    found = read_journal(path)
    assert found == RECORDS[: len(found)]
    assert len(found) < len(RECORDS)


def test_after_a_torn_tail_new_records_follow_the_whole_ones(tmp_path):
    path = written(tmp_path / "journal")
    os.truncate(path, path.stat().st_size - 3)
    assert read_journal(path) == RECORDS[:2]
    journal = Journal(path)
    journal.append(RECORDS[2])
    journal.close()
    assert read_journal(path) == RECORDS


def test_compaction_replaces_everything_at_once(tmp_path):
    path = written(tmp_path / "journal")
    journal = Journal(path)
    journal.compact(RECORDS[:1])
    journal.append(RECORDS[2])
    journal.close()
    assert read_journal(path) == (RECORDS[0], RECORDS[2])


def test_a_full_disk_is_told_and_loses_nothing_once_there_is_room(tmp_path):
    journal = Journal(written(tmp_path / "journal"))
    real, journal._file = journal._file, os.open("/dev/full", os.O_WRONLY)
    journal.append(EventsAcked(8))
    assert "No space left" in journal.error
    with pytest.raises(Exception, match="No space left"):
        journal.sync()
    os.close(journal._file)
    journal._file = real
    journal.append(EventsAcked(9))
    journal.sync()
    assert read_journal(tmp_path / "journal")[-2:] == (EventsAcked(8), EventsAcked(9))


def test_nobody_else_reads_the_journal_or_what_was_put_aside_of_it(tmp_path):
    """A spec's variables are in it, and some of them are keys."""
    path = written(tmp_path / "journal")
    path.chmod(0o644)
    os.truncate(path, path.stat().st_size - 3)
    before = os.umask(0o022)
    try:
        read_journal(path)
        Journal(path).close()
    finally:
        os.umask(before)
    assert {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {
        "journal": 0o600,
        "journal.torn": 0o600,
    }
