"""The field's words: a retired word does not come back, and those that are left only become fewer."""

import ast
import tomllib

import pytest

from tests.house import words
from tests.house.tree import ROOT, relative
from tests.house.words import Retired, retired

WORDS = retired()


def named(entry: Retired) -> str:
    return entry.word


def example(pattern: str) -> Retired:
    (found,) = [entry for entry in WORDS if entry.word == pattern]
    return found


@pytest.mark.parametrize("entry", WORDS, ids=named)
def test_no_page_says_a_retired_word(entry: Retired) -> None:
    assert words.in_pages(entry) == [], f"say: {entry.say}"


@pytest.mark.parametrize("entry", WORDS, ids=named)
def test_no_more_messages_say_it_than_did(entry: Retired) -> None:
    found = words.in_messages(entry)
    assert len(found) <= entry.most_messages, "\n".join([f"say: {entry.say}", *found])


@pytest.mark.parametrize("entry", WORDS, ids=named)
def test_no_more_identifiers_have_it_than_did(entry: Retired) -> None:
    found = words.in_identifiers(entry)
    assert found <= entry.most_identifiers, f"{found} names have {sorted(entry.parts)}; say: {entry.say}"


def test_every_page_where_a_word_is_allowed_is_there_and_has_a_reason() -> None:
    for entry in WORDS:
        assert entry.say.strip()
        for page, reason in entry.allowed.items():
            assert page in {relative(path) for path in words.pages()} and reason.strip()


def test_no_word_is_listed_twice_and_no_key_is_misspelt() -> None:
    rows = tomllib.loads(words.LIST.read_text(encoding="ascii"))["retired"]
    assert len({row["word"] for row in rows}) == len(rows)
    known = {"word", "pattern", "say", "parts", "most_identifiers", "most_messages", "allowed"}
    assert {key for row in rows for key in row} <= known


def test_the_fronts_the_guides_and_the_programs_are_read() -> None:
    pages = {relative(path) for path in words.pages()}
    assert {"README.md", "ARCHITECTURE.md", "docs/operations.md", "docs/WALKTHROUGH.md"} <= pages
    assert not pages & {"docs/requirements.md", "docs/protocol.md", "docs/adr/README.md"}
    sources = {name for name, _ in words.messages()}
    for name in (
        "controlplane/policy/titles.py",
        "controlplane/api/problems.py",
        "controlplane/cli/follow.py",
        "agents/core/commands.py",
        "trainer/hooks/run.py",
        "frontend/src/pages/JobPage.tsx",
    ):
        assert name in sources, name
        assert (ROOT / name).is_file()


def test_a_page_is_read_without_its_code() -> None:
    text = "It was `told` so.\n```sh\ntold\n```\n[page](told.md) <!-- told --> goes\non\n"
    assert example("told").hits(words.prose(text)) == []
    assert example("go on").hits(words.prose(text)) != [], "a line's end parts no words"
    assert example("told").hits(words.prose("The rank told its agent.")) != []


def test_a_message_is_a_text_with_a_blank_and_no_docstring() -> None:
    module = ast.parse('"""It was told."""\nkey = "told"\nsay(f"the rank {name} told it", "nobody told")\n')
    assert set(words.sentences(module)) == {"the rank ", " told it", "nobody told"}


def test_texts_of_the_page_are_seen_and_its_code_is_not() -> None:
    source = '// goes on\nconst a: Life = b ? told : c;\n<p className="life ok">It goes on.</p>;\nsay("It goes on");\n'
    texts = list(words.page_texts(source))
    assert texts == ["It goes on.", "It goes on"]


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("order", "an order was sent"),
        ("order", "the save was ordered"),
        ("life", "of an earlier life"),
        ("look", "one look at a rank"),
        ("bell", "it rings the job's bell"),
        ("storm", "in a storm"),
        ("want of", "killed for want of memory"),
    ],
)
def test_a_retired_word_is_found(word: str, text: str) -> None:
    assert example(word).hits(text)


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("order", "in order of their number, in order to see"),
        ("order", "ordered by name"),
        ("look", "look at the storage"),
        ("bell", "a ring of sockets"),
        ("go on", "an agent goes on loopback"),
        ("told", "the log tells you why"),
    ],
)
def test_the_same_letters_in_plain_english_are_left_alone(word: str, text: str) -> None:
    assert example(word).hits(text) == []
