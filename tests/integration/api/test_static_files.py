"""The page's files are sent compressed, and those that are named by what is in them are asked for once."""

import gzip
import json
from pathlib import Path

import pytest
from django.contrib.staticfiles import finders
from django.test import Client

from controlplane.config.static import packed_of


def bundle() -> list[str]:
    """Addresses of what the manifest names of the first page, and how they end."""
    manifest = finders.find("ui/manifest.json")
    assert isinstance(manifest, str)
    parts = json.loads(Path(manifest).read_text(encoding="utf-8"))
    return [f"/static/ui/{part['file']}" for part in parts.values()]


def test_every_part_of_the_bundle_is_compressed_for_who_can_read_it_and_kept_for_ever(client: Client) -> None:
    sent = plain = 0
    for address in bundle():
        packed = client.get(address, headers={"accept-encoding": "gzip, deflate, br"})
        whole = client.get(address)
        assert packed.status_code == whole.status_code == 200
        assert "immutable" in packed["Cache-Control"]
        first, second = packed.content, whole.content
        if len(second) >= 1_400:
            assert packed["Content-Encoding"] == "gzip" and "Accept-Encoding" in packed["Vary"]
            assert int(packed["Content-Length"]) == len(first)
            assert gzip.decompress(first) == second
        assert "Content-Encoding" not in whole
        sent, plain = sent + len(first), plain + len(second)
    assert 0 < sent < plain / 2


def test_the_first_page_itself_is_asked_for_each_time(client: Client) -> None:
    found = client.get("/static/ui/theme.js")
    assert "immutable" not in found["Cache-Control"]


def test_a_file_is_sent_whole_and_not_streamed_in_parts_ranges_and_unchanged_ones_as_asked(client: Client) -> None:
    whole = client.get("/static/ui/theme.js")
    assert not whole.streaming and int(whole["Content-Length"]) == len(whole.content) > 20
    head = client.head("/static/ui/theme.js")
    assert (head.content, head["Content-Length"]) == (b"", whole["Content-Length"])
    some = client.get("/static/ui/theme.js", headers={"range": "bytes=5-14"})
    assert (some.status_code, some.content) == (206, whole.content[5:15])
    again = client.get("/static/ui/theme.js", headers={"if-none-match": whole["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.post("/static/ui/theme.js").status_code == 405


def test_a_compressed_file_that_a_power_cut_left_empty_is_made_anew(tmp_path: Path) -> None:
    source = tmp_path / "b.js"
    source.write_text("y" * 5_000)
    packed = packed_of(source, tmp_path / "gz")
    assert packed is not None
    packed.write_bytes(b"")
    source.touch()
    again = packed_of(source, tmp_path / "gz")
    assert again == packed and gzip.decompress(packed.read_bytes()) == source.read_bytes()
    assert [each.name for each in packed.parent.iterdir()] == [packed.name], "no draft is left"


def test_what_cannot_be_written_is_sent_as_it_is(tmp_path: Path) -> None:
    source = tmp_path / "a.js"
    source.write_text("x" * 5_000)
    (tmp_path / "taken").write_text("a file where the folder would be")
    assert packed_of(source, tmp_path / "taken") is None


def test_what_is_short_or_no_text_is_left_alone(tmp_path: Path) -> None:
    for name, size in (("short.js", 100), ("font.woff2", 5_000)):
        (tmp_path / name).write_text("x" * size)
        assert packed_of(tmp_path / name, tmp_path / "packed") is None
    assert not (tmp_path / "packed").exists()


def test_a_changed_file_is_packed_again_beside_what_another_release_has(tmp_path: Path) -> None:
    source, folder = tmp_path / "a.js", tmp_path / "packed"
    found = []
    for text in ("x" * 5_000, "y" * 6_000):
        source.write_text(text)
        packed = packed_of(source, folder)
        assert packed is not None and gzip.decompress(packed.read_bytes()).decode() == text
        found.append(packed)
    assert sorted(folder.iterdir()) == sorted(found) and found[0] != found[1]


@pytest.mark.parametrize("address", ["/static/ui/assets/../../../settings.py", "/static/ui/assets/none-12345678.js"])
def test_what_is_not_of_the_page_is_not_found(client: Client, address: str) -> None:
    assert client.get(address).status_code == 404
