"""An indexed dataset is whole or it is refused, with the file and the mending."""

import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

from trainer import device

device.prepare_import()

from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder  # noqa: E402

from trainer.data import __main__ as command  # noqa: E402
from trainer.data import build as building  # noqa: E402
from trainer.data import load_corpus  # noqa: E402
from trainer.data.build import END_OF_DOCUMENT, adopt, build  # noqa: E402
from trainer.data.manifest import bin_path, idx_path, manifest_path, read_manifest, verify, write_manifest  # noqa: E402
from trainer.errors import ConfigInvalid, DataInvalid  # noqa: E402

TEXTS = {"a.txt": b"The first document.\n\nIt has two paragraphs.\n", "b.txt": bytes(range(256)) * 3}


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    for name, text in TEXTS.items():
        (tmp_path / name).write_bytes(text)
    return [tmp_path / name for name in TEXTS]


@pytest.fixture
def prefix(inputs: list[Path], tmp_path: Path) -> Path:
    build(inputs, tmp_path / "set")
    return tmp_path / "set"


def stream() -> list[int]:
    return [token for text in TEXTS.values() for token in [*text, END_OF_DOCUMENT]]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_documents_are_bytes_with_a_token_at_the_end_of_each(prefix: Path) -> None:
    whole = IndexedDataset(str(prefix))
    assert [document.tolist() for document in whole[0:2]] == [[*text, END_OF_DOCUMENT] for text in TEXTS.values()]
    assert read_manifest(prefix).documents == 2


def test_windows_are_cut_from_the_stream_of_documents(prefix: Path) -> None:
    corpus = load_corpus(str(prefix), sequence_length=16, seed=3, vocab_size=264)
    cut = {window: corpus.sample(number).tolist() for number in range(corpus.windows)
           for _, window in [corpus.window_of(number)]}  # fmt: skip
    assert sorted(cut) == list(range((len(stream()) - 1) // 16))
    assert all(tokens == stream()[16 * window : 16 * window + 17] for window, tokens in cut.items())


def test_lines_may_be_documents_and_blank_ones_are_none(inputs: list[Path], tmp_path: Path) -> None:
    manifest = build(inputs[:1], tmp_path / "lines", documents="line")
    assert manifest.documents == 2
    assert manifest.tokens == len(TEXTS["a.txt"]) - 1 + 2


@pytest.mark.parametrize("documents", ["file", "line"])
def test_a_document_longer_than_memory_allows_is_written_in_parts(
    inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, documents: str
) -> None:
    whole = build(inputs, tmp_path / "whole", documents=documents)
    monkeypatch.setattr(building, "SEQUENCE_BYTES", 7)
    parts = build(inputs, tmp_path / "parts", documents=documents)
    assert parts.sequences > whole.sequences
    assert (parts.documents, parts.bin_blake2b) == (whole.documents, whole.bin_blake2b)


def test_the_vocabulary_must_fit_the_model(prefix: Path) -> None:
    with pytest.raises(
        ConfigInvalid, match=r"vocabulary of 257 tokens, model\.vocab_size is 256; .* 257 or more \(264"
    ):
        load_corpus(str(prefix), sequence_length=16, seed=3, vocab_size=256)


def test_a_dataset_shorter_than_one_sample_is_refused(prefix: Path) -> None:
    with pytest.raises(DataInvalid, match="one sample needs 4097; give more text"):
        load_corpus(str(prefix), sequence_length=4096, seed=3)


@pytest.mark.parametrize(
    ("suffix", "what"),
    [(".bin", "instead of .* truncated"), (".idx", "instead of .* truncated"), (".json", "cannot be")],
)
def test_a_truncated_file_is_refused(prefix: Path, suffix: str, what: str) -> None:
    path = prefix.with_name(prefix.name + suffix)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DataInvalid, match=rf"{path.name}.*{what}.*build it again"):
        load_corpus(str(prefix), sequence_length=16, seed=3)


def test_a_flipped_bit_of_the_index_is_found_at_start_and_one_of_the_tokens_by_verify(prefix: Path) -> None:
    flip(bin_path(prefix), 100)
    load_corpus(str(prefix), sequence_length=16, seed=3)
    with pytest.raises(DataInvalid, match=r"set\.bin is damaged"):
        verify(prefix)
    flip(bin_path(prefix), 100)
    verify(prefix)
    flip(idx_path(prefix), 40)
    with pytest.raises(DataInvalid, match=r"set\.idx is damaged"):
        load_corpus(str(prefix), sequence_length=16, seed=3)


def test_a_manifest_that_was_edited_is_refused(prefix: Path) -> None:
    text = manifest_path(prefix).read_text()
    manifest_path(prefix).write_text(text.replace('"vocab_size": 257', '"vocab_size": 256'))
    with pytest.raises(DataInvalid, match="checksum does not fit"):
        read_manifest(prefix)


def test_an_index_that_does_not_fit_its_tokens_is_refused(prefix: Path) -> None:
    manifest = read_manifest(prefix)
    write_manifest(prefix, msgspec.structs.replace(manifest, tokens=manifest.tokens - 1))
    with pytest.raises(DataInvalid, match=r"set\.idx does not hold what .*set\.json says"):
        verify(prefix)


def test_a_part_of_a_dataset_is_no_data(prefix: Path) -> None:
    with pytest.raises(DataInvalid, match="name its prefix"):
        load_corpus(str(bin_path(prefix)), sequence_length=16, seed=3)


def test_a_build_that_was_broken_off_leaves_no_dataset(
    prefix: Path, inputs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(building, "write_manifest", stop)
    with pytest.raises(KeyboardInterrupt):
        build(inputs[:1], prefix, force=True)
    with pytest.raises(DataInvalid, match="not built to its end"):
        load_corpus(str(prefix), sequence_length=16, seed=3)
    assert sorted(path.name for path in prefix.parent.iterdir() if "set" in path.name) == ["set.bin", "set.idx"]


def test_an_older_dataset_is_replaced_only_on_demand(prefix: Path, inputs: list[Path]) -> None:
    with pytest.raises(DataInvalid, match="--force"):
        build(inputs[:1], prefix)
    assert build(inputs[:1], prefix, force=True).documents == 1
    verify(prefix)


def test_files_of_another_tool_are_adopted_with_their_vocabulary(tmp_path: Path) -> None:
    prefix = tmp_path / "foreign"
    builder = IndexedDatasetBuilder(str(bin_path(prefix)), dtype=np.int32)
    torch = pytest.importorskip("torch")
    builder.add_item(torch.arange(500, 600))
    builder.end_document()
    builder.finalize(str(idx_path(prefix)))
    with pytest.raises(DataInvalid, match="adopt"):
        load_corpus(str(prefix), sequence_length=10, seed=3)
    with pytest.raises(DataInvalid, match="at least 600"):
        adopt(prefix, vocab_size=599, end_of_document=None)
    adopt(prefix, vocab_size=50_304, end_of_document=None)
    assert load_corpus(str(prefix), sequence_length=10, seed=3).sample(0).min() >= 500


def test_the_command_says_what_it_made_and_what_is_wrong(
    inputs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "by-command"
    assert command.main(["build", "--input", *map(str, inputs), "--output", str(target)]) == 0
    assert "2 documents, 814 tokens, vocabulary 257" in capsys.readouterr().out
    assert command.main(["info", str(target), "--sequence-length", "16"]) == 0
    assert "50 samples of 16 tokens" in capsys.readouterr().out
    assert command.main(["info", str(target), "--vocab-size", "256"]) == 1
    shutil.copyfile(inputs[0], bin_path(target))
    assert command.main(["verify", str(target)]) == 1
    assert f"by-command.bin has {len(TEXTS['a.txt'])} bytes" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["absent.txt", "empty.txt"])
def test_inputs_without_text_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty.txt").touch()
    with pytest.raises(DataInvalid, match=name):
        build([tmp_path / name], tmp_path / "set")
