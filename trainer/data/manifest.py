"""What makes two files an indexed dataset: `PREFIX.json`, written last.

`PREFIX.bin` and `PREFIX.idx` are Megatron-core's own indexed dataset; their format has no
checksum and does not say how large the vocabulary is. The manifest adds both, and since it
is written after the other two are on the disk, a build that was broken off leaves none.
Standard library, msgspec and numpy only, so that looking at a dataset imports no Megatron.

Header of the index (34 bytes, little-endian): `MMIDIDX` and two zero bytes, version 1 as
uint64, code of the token type as uint8, number of sequences and number of document borders
as uint64. Then int32 lengths and int64 byte offsets of the sequences, and int64 borders.
"""

import hashlib
import os
import struct
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainer.checkpoint.storage import sync
from trainer.errors import DataInvalid

FORMAT = "holdfast-data/1"
TOKENIZERS = ("bytes",)
DOCUMENTS = ("file", "line")
MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
DTYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
CHUNK_BYTES = 4 << 20
DIGEST_BYTES = 16
MAX_MANIFEST_BYTES = 16 << 20
REBUILD = "build it again with `python -m trainer.data build`, or restore the file from its source"


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file that went in."""

    name: str
    bytes: int


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything about a dataset but its tokens. `end_of_document` None: documents are not
    separated by a token. `checksum` is of all other fields, digests are blake2b, hex."""

    format: str = FORMAT
    tokenizer: str
    vocab_size: int
    end_of_document: int | None
    dtype: str
    tokens: int
    sequences: int
    documents: int
    bin_bytes: int
    bin_blake2b: str
    idx_bytes: int
    idx_blake2b: str
    sources: tuple[Source, ...] = ()
    checksum: str = ""

    def signed(self) -> "Manifest":
        """With the checksum of what it says."""
        plain = msgspec.structs.replace(self, checksum="")
        digest = hashlib.blake2b(msgspec.json.encode(plain), digest_size=DIGEST_BYTES)
        return msgspec.structs.replace(self, checksum=digest.hexdigest())


def bin_path(prefix: Path) -> Path:
    """The tokens."""
    return prefix.with_name(prefix.name + ".bin")


def idx_path(prefix: Path) -> Path:
    """The index."""
    return prefix.with_name(prefix.name + ".idx")


def manifest_path(prefix: Path) -> Path:
    """The manifest."""
    return prefix.with_name(prefix.name + ".json")


def read_manifest(prefix: Path) -> Manifest:
    """Raises DataInvalid when it is absent, damaged or of another format."""
    path = manifest_path(prefix)
    try:
        with path.open("rb") as file:
            manifest = msgspec.json.decode(file.read(MAX_MANIFEST_BYTES), type=Manifest)
    except FileNotFoundError as error:
        raise DataInvalid(
            f"{path} is absent: the dataset was not built to its end; {REBUILD}"
            f" (for files of another tool: `python -m trainer.data adopt {prefix} --vocab-size N`)"
        ) from error
    except (OSError, msgspec.DecodeError) as error:
        raise DataInvalid(f"{path} cannot be read: {error}; {REBUILD}") from error
    if manifest.format != FORMAT:
        raise DataInvalid(f"{path}: format {manifest.format!r} is not {FORMAT!r}; build it again with this release")
    if manifest.signed() != manifest:
        raise DataInvalid(f"{path}: its checksum does not fit what it says; {REBUILD}")
    return manifest


def write_manifest(prefix: Path, manifest: Manifest) -> None:
    """Commit the dataset: durable, and all or nothing. Raises OSError."""
    path = manifest_path(prefix)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest.signed()), indent=1))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync(path.parent)


def check_files(prefix: Path, manifest: Manifest) -> None:
    """Sizes of both files and every byte of the index; the tokens are not read. Raises DataInvalid."""
    _check_size(bin_path(prefix), manifest.bin_bytes)
    _check_size(idx_path(prefix), manifest.idx_bytes)
    _check_digest(idx_path(prefix), manifest.idx_blake2b)


def verify(prefix: Path) -> Manifest:
    """Read every byte and compare it with the manifest, and the index with itself.

    Raises DataInvalid with the first fault; returns the manifest of a sound dataset.
    """
    manifest = read_manifest(prefix)
    check_files(prefix, manifest)
    _check_digest(bin_path(prefix), manifest.bin_blake2b)
    found = read_index(prefix)
    told = (manifest.dtype, manifest.tokens, manifest.sequences, manifest.documents)
    if (found.dtype, found.tokens, found.sequences, found.documents) != told:
        raise DataInvalid(f"{idx_path(prefix)} does not hold what {manifest_path(prefix)} says; {REBUILD}")
    return manifest


class Index(msgspec.Struct, frozen=True):
    """What an index says of itself. `tokens` in all sequences together."""

    dtype: str
    sequences: int
    documents: int
    tokens: int


def read_index(prefix: Path) -> Index:
    """Parse the index and check it against itself and the size of the tokens. Raises DataInvalid."""
    path = idx_path(prefix)
    try:
        data = np.memmap(path, mode="r", dtype=np.uint8)
    except (OSError, ValueError) as error:
        raise DataInvalid(f"{path}: {error}; {REBUILD}") from error
    if len(data) < HEADER.size:
        raise DataInvalid(f"{path} has {len(data)} bytes, its header alone has {HEADER.size}; {REBUILD}")
    magic, version, code, sequences, borders = HEADER.unpack(data[: HEADER.size].tobytes())
    if magic != MAGIC or version != VERSION or code not in DTYPES:
        raise DataInvalid(f"{path} is no index of version {VERSION} of token ids; name the prefix of a dataset")
    wanted = HEADER.size + sequences * 12 + borders * 8
    if len(data) != wanted:
        raise DataInvalid(f"{path} has {len(data)} bytes, {sequences} sequences need {wanted}; {REBUILD}")
    lengths, offsets, ends = _columns(data, sequences, borders)
    item_bytes = np.dtype(DTYPES[code]).itemsize
    tokens = int(lengths.sum(dtype=np.int64))
    contiguous = bool((offsets[1:] == offsets[:-1] + lengths[:-1].astype(np.int64) * item_bytes).all())
    bounded = borders >= 1 and int(ends[0]) == 0 and int(ends[-1]) == sequences and bool((np.diff(ends) >= 0).all())
    if not contiguous or not bounded or (sequences and (int(offsets[0]) != 0 or int(lengths.min()) < 0)):
        raise DataInvalid(f"{path} contradicts itself: sequences are not one after the other; {REBUILD}")
    _check_size(bin_path(prefix), tokens * item_bytes)
    return Index(dtype=DTYPES[code], sequences=sequences, documents=borders - 1, tokens=tokens)


def digest(path: Path) -> str:
    """blake2b of a file, hex. Raises OSError."""
    found = hashlib.blake2b(digest_size=DIGEST_BYTES)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            found.update(chunk)
    return found.hexdigest()


def _columns(
    data: NDArray[np.uint8], sequences: int, borders: int
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """(lengths in tokens, offsets in bytes, borders in sequences)."""
    at = HEADER.size
    lengths = np.frombuffer(data, dtype=np.int32, count=sequences, offset=at)
    offsets = np.frombuffer(data, dtype=np.int64, count=sequences, offset=at + lengths.nbytes)
    ends = np.frombuffer(data, dtype=np.int64, count=borders, offset=at + lengths.nbytes + offsets.nbytes)
    return lengths, offsets, ends


def _check_size(path: Path, wanted: int) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise DataInvalid(f"{path}: {error.strerror}; {REBUILD}") from error
    if size != wanted:
        raise DataInvalid(f"{path} has {size} bytes instead of {wanted}: it is truncated or not its own; {REBUILD}")


def _check_digest(path: Path, wanted: str) -> None:
    try:
        found = digest(path)
    except OSError as error:
        raise DataInvalid(f"{path}: {error.strerror}; {REBUILD}") from error
    if found != wanted:
        raise DataInvalid(f"{path} is damaged: its digest is {found}, {wanted} was written; {REBUILD}")
