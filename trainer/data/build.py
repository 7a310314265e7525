"""Text to an indexed dataset: the writer of `PREFIX.bin`, `PREFIX.idx` and `PREFIX.json`.

Called by `python -m trainer.data`. Tokens are bytes (0..255); 256 ends each document.
Memory stays bounded: a long document is written as several sequences, which the format
allows. Nothing is visible under the final names before it is on the disk, and the manifest
comes last: a build that is broken off, even one over an older dataset, leaves no dataset.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder
from numpy.typing import NDArray

from trainer.checkpoint.storage import sync
from trainer.data.manifest import (
    DOCUMENTS,
    TOKENIZERS,
    Manifest,
    Source,
    bin_path,
    digest,
    idx_path,
    manifest_path,
    read_index,
    write_manifest,
)
from trainer.errors import DataInvalid

END_OF_DOCUMENT = 256
VOCAB_SIZE = 257
SEQUENCE_BYTES = 1 << 20


def build(
    inputs: Sequence[Path], prefix: Path, *, tokenizer: str = "bytes", documents: str = "file", force: bool = False
) -> Manifest:
    """Write the dataset. `documents`: each input file is one, or each line that is not empty.

    Raises DataInvalid for what cannot become a dataset, OSError for what the disk refuses.
    """
    assert tokenizer in TOKENIZERS, "the command line offers these only"
    assert documents in DOCUMENTS, "the command line offers these only"
    sources = tuple(_source(path) for path in inputs)
    if manifest_path(prefix).exists() and not force:
        raise DataInvalid(f"{manifest_path(prefix)} exists; choose another --output, or replace it with --force")
    prefix.parent.mkdir(parents=True, exist_ok=True)
    new_bin, new_idx = (
        path.with_name(f"{path.name}.{os.getpid()}.tmp") for path in (bin_path(prefix), idx_path(prefix))
    )
    try:
        _write(inputs, new_bin, new_idx, documents)
        _sync(new_bin, new_idx)
        manifest_path(prefix).unlink(missing_ok=True)
        sync(prefix.parent)
        os.replace(new_bin, bin_path(prefix))
        os.replace(new_idx, idx_path(prefix))
        sync(prefix.parent)
    finally:
        new_bin.unlink(missing_ok=True)
        new_idx.unlink(missing_ok=True)
    manifest = _describe(prefix, tokenizer, VOCAB_SIZE, END_OF_DOCUMENT, sources)
    write_manifest(prefix, manifest)
    return manifest


def adopt(prefix: Path, *, vocab_size: int, end_of_document: int | None) -> Manifest:
    """Write the manifest of a `.bin` and `.idx` that another tool made. Raises DataInvalid
    when they do not fit each other or hold a token outside of the vocabulary."""
    index = read_index(prefix)
    largest = _largest(bin_path(prefix), index.dtype)
    if largest >= vocab_size:
        raise DataInvalid(f"{bin_path(prefix)} holds token {largest}: --vocab-size must be at least {largest + 1}")
    manifest = _describe(prefix, "foreign", vocab_size, end_of_document, ())
    write_manifest(prefix, manifest)
    return manifest


def _source(path: Path) -> Source:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise DataInvalid(f"--input {path}: {error.strerror}; name text files that exist") from error
    if not path.is_file() or size == 0:
        raise DataInvalid(f"--input {path}: holds no text; leave it out")
    return Source(path.name, size)


def _write(inputs: Sequence[Path], new_bin: Path, new_idx: Path, documents: str) -> None:
    builder = IndexedDatasetBuilder(str(new_bin), dtype=DType.optimal_dtype(VOCAB_SIZE))
    try:
        for path in inputs:
            for part, ends in _parts(path, documents):
                builder.add_item(torch.from_numpy(part))
                if ends:
                    builder.end_document()
        builder.finalize(str(new_idx))
    finally:
        # The library closes it in `finalize` only.
        builder.data_file.close()


def _parts(path: Path, documents: str) -> Iterator[tuple[NDArray[np.int32], bool]]:
    """(tokens, whether the document ends here), at most SEQUENCE_BYTES + 1 tokens at a time."""
    with path.open("rb") as file:
        read = file.readline if documents == "line" else file.read
        piece, inside = read(SEQUENCE_BYTES), False
        while piece:
            following = read(SEQUENCE_BYTES)
            ends = not following or (documents == "line" and piece.endswith(b"\n"))
            # A blank line is no document.
            if documents == "file" or inside or piece.strip():
                yield _tokens(piece, ends=ends), ends
                inside = not ends
            piece = following


def _tokens(text: bytes, *, ends: bool) -> NDArray[np.int32]:
    tokens = np.frombuffer(text, dtype=np.uint8).astype(np.int32)
    return np.append(tokens, np.int32(END_OF_DOCUMENT)) if ends else tokens


def _describe(
    prefix: Path, tokenizer: str, vocab_size: int, end_of_document: int | None, sources: tuple[Source, ...]
) -> Manifest:
    index = read_index(prefix)
    return Manifest(
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        end_of_document=end_of_document,
        dtype=index.dtype,
        tokens=index.tokens,
        sequences=index.sequences,
        documents=index.documents,
        bin_bytes=bin_path(prefix).stat().st_size,
        bin_blake2b=digest(bin_path(prefix)),
        idx_bytes=idx_path(prefix).stat().st_size,
        idx_blake2b=digest(idx_path(prefix)),
        sources=sources,
    ).signed()


def _largest(path: Path, dtype: str) -> int:
    """The largest token; a negative one is refused."""
    tokens = np.memmap(path, mode="r", dtype=dtype)
    largest = -1
    for start in range(0, len(tokens), SEQUENCE_BYTES):
        part = tokens[start : start + SEQUENCE_BYTES]
        if int(part.min()) < 0:
            raise DataInvalid(f"{path} holds a negative token after {start} tokens: it is no file of token ids")
        largest = max(largest, int(part.max()))
    return largest


def _sync(*paths: Path) -> None:
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
