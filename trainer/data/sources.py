"""Where tokens come from: a text whose bytes are tokens, or an indexed dataset.

A source is one long stream of tokens. Of an indexed dataset it is the documents in the
order of the index, each with its end-of-document token: a window that begins in one
document may end in the next, as in Megatron's own GPT dataset.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trainer.data.manifest import Manifest, bin_path, check_files, idx_path, manifest_path, read_manifest
from trainer.errors import DataInvalid

SHIPPED_TEXT = Path(__file__).with_name("founding.txt")
BYTE_VALUES = 256
ALIGNED = 8
"""Vocabularies are suggested in multiples of this, so that tensor parallelism divides them."""


class TokenSource(Protocol):
    """`name` is for people; tokens are 0..vocab_size-1."""

    @property
    def name(self) -> str:
        """Path or prefix."""

    @property
    def tokens(self) -> int:
        """Length of the stream."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest token there can be."""

    def read(self, start: int, count: int) -> NDArray[np.int64]:
        """[count] tokens from `start` on; the caller keeps within the stream."""


@dataclass(frozen=True, slots=True)
class Text:
    """`text`: [n] uint8."""

    name: str
    text: NDArray[np.uint8]
    vocab_size: int = BYTE_VALUES

    @property
    def tokens(self) -> int:
        """Bytes."""
        return len(self.text)

    def read(self, start: int, count: int) -> NDArray[np.int64]:
        """[count] bytes."""
        return self.text[start : start + count].astype(np.int64)


class Indexed:
    """Megatron-core's IndexedDataset behind a manifest, mapped into memory."""

    def __init__(self, prefix: Path) -> None:
        """Raises DataInvalid. The index is compared with its digest, the tokens by size alone."""
        self.manifest: Manifest = read_manifest(prefix)
        check_files(prefix, self.manifest)
        self.name = str(prefix)
        # Looking at a text needs no Megatron.
        from megatron.core.datasets.indexed_dataset import IndexedDataset

        self._dataset: Any = IndexedDataset(str(prefix))
        self._dtype = np.dtype(self.manifest.dtype)

    @property
    def tokens(self) -> int:
        """Of all documents, their end-of-document tokens counted."""
        return self.manifest.tokens

    @property
    def vocab_size(self) -> int:
        """As the manifest says."""
        return self.manifest.vocab_size

    def read(self, start: int, count: int) -> NDArray[np.int64]:
        """[count] tokens; sequences lie in the file one after the other."""
        found = self._dataset.bin_reader.read(dtype=self._dtype, count=count, offset=start * self._dtype.itemsize)
        return np.asarray(found).astype(np.int64)


def open_source(path: str | None) -> TokenSource:
    """`path`: a text file, the prefix of an indexed dataset, or None for the shipped text.

    Raises DataInvalid when there is neither, or what is there is damaged.
    """
    source = Path(path) if path else SHIPPED_TEXT
    if manifest_path(source).exists() or idx_path(source).exists():
        return Indexed(source)
    if source.suffix in (".bin", ".idx") and idx_path(source.with_suffix("")).exists():
        raise DataInvalid(
            f"training.data: {source} is a part of an indexed dataset; name its prefix, {source.with_suffix('')}"
        )
    try:
        text = np.frombuffer(source.read_bytes(), dtype=np.uint8)
    except OSError as error:
        raise DataInvalid(
            f"training.data: {source}: {error.strerror}, and there is no {bin_path(source).name} with its index either;"
            " give a text file or the prefix of an indexed dataset that every node can read"
        ) from error
    return Text(str(source), text)


def check_vocabulary(name: str, vocab_size: int, *, known: int) -> None:
    """Raises DataInvalid when data of `vocab_size` holds tokens that a model of `known` tokens does not know."""
    if vocab_size > known:
        aligned = -(-vocab_size // ALIGNED) * ALIGNED
        raise DataInvalid(
            f"training.data: {name} has a vocabulary of {vocab_size} tokens, model.vocab_size is"
            f" {known}; set model.vocab_size to {vocab_size} or more ({aligned} divides by {ALIGNED})"
        )
