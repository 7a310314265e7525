"""The metadata of a torch_dist checkpoint, read without running anything that it holds.

torch writes it as a pickle, and a pickle may name any callable. Here a name from a closed
list becomes a record of this reading alone, which keeps what the pickle gives it and does
nothing with it; any other name ends the reading. Torch's own types are built afterwards, from
values whose kinds were compared. Called by `trainer.checkpoint.reading`; opens no file.
"""

import io
import pickle
from typing import Any, NoReturn

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from trainer.errors import CheckpointFault

MAX_BYTES = 1 << 30
"""Of the file. A rank writes some 100 bytes for each shard of a tensor, and all plans beside them."""
_METADATA = "torch.distributed.checkpoint.metadata"
_PLANNER = "torch.distributed.checkpoint.planner"
RECORDS = frozenset(
    {(_METADATA, name) for name in ("Metadata", "ChunkStorageMetadata", "TensorStorageMetadata", "StorageMeta")}
    | {(_METADATA, name) for name in ("BytesStorageMetadata", "TensorProperties", "MetadataIndex")}
    | {("torch.distributed.checkpoint.filesystem", name) for name in ("_StorageInfo", "_StoragePrefix")}
    | {(_METADATA, "_MEM_FORMAT_ENCODING")}
    | {(_PLANNER, name) for name in ("SavePlan", "WriteItem", "WriteItemType", "TensorWriteData", "BytesIOWriteData")}
    | {("torch", "Size"), ("torch.serialization", "_get_layout")}
    # How Python before 3.11.4 writes a member of an enumeration. A record too: no attribute of anything is read.
    | {("builtins", "getattr")}
)
"""What a pickle of metadata may name, beside the dtypes of torch. The plans are not used."""
DTYPES = {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}


class _Record:
    """What a pickle says of one object: `args` it is made of, and its `state`."""

    args: tuple[Any, ...]
    state: Any

    def __new__(cls, *args: Any) -> "_Record":
        made = object.__new__(cls)
        made.args, made.state = args, None
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    """Makes records. A class of its own for each reading, so that none outlives it."""

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content))
        self._made: dict[tuple[str, str], type[_Record]] = {}

    def find_class(self, module: str, name: str, /) -> Any:
        if module == "torch" and name in DTYPES:
            return DTYPES[name]
        if (module, name) not in RECORDS:
            raise CheckpointFault(f"its metadata names {module}.{name}, which no checkpoint needs; nothing was run")
        return self._made.setdefault((module, name), type(name, (_Record,), {}))

    def persistent_load(self, identity: Any, /) -> NoReturn:
        raise CheckpointFault("its metadata refers to objects outside of it")


def parse(content: bytes) -> Metadata:
    """Torch's metadata. Raises CheckpointFault for whatever is no metadata of tensors and objects."""
    try:
        state = _fields(_Unpickler(content).load(), "Metadata")
        return Metadata(
            state_dict_metadata={_text(key): _entry(value) for key, value in state["state_dict_metadata"].items()},
            planner_data=None,
            storage_data={_index(key): _place(value) for key, value in state["storage_data"].items()},
        )
    except CheckpointFault:
        raise
    except Exception as error:  # A pickle that is none fails in a dozen ways.
        raise CheckpointFault(f"its metadata cannot be read: {type(error).__name__}: {error}") from error


def _entry(record: Any) -> TensorStorageMetadata | BytesStorageMetadata:
    if _name(record) == "BytesStorageMetadata":
        return BytesStorageMetadata()
    state = _fields(record, "TensorStorageMetadata")
    chunks = [_fields(chunk, "ChunkStorageMetadata") for chunk in state["chunks"]]
    return TensorStorageMetadata(
        properties=_properties(state["properties"]),
        size=_size(state["size"]),
        chunks=[ChunkStorageMetadata(_size(chunk["offsets"]), _size(chunk["sizes"])) for chunk in chunks],
    )


def _properties(record: Any) -> TensorProperties:
    """The type of its numbers; how it lay in memory has no bearing on a load."""
    if _name(record) != "TensorProperties" or not isinstance(record.state[0], torch.dtype):
        raise CheckpointFault("its metadata describes a tensor without a type")
    return TensorProperties(dtype=record.state[0])


def _index(record: Any) -> MetadataIndex:
    state = _fields(record, "MetadataIndex")
    offset, index = state.get("offset"), state.get("index")
    return MetadataIndex(
        _text(state["fqn"]), None if offset is None else _size(offset), None if index is None else _count(index)
    )


def _place(record: Any) -> _StorageInfo:
    """Where an item lies. A file of the checkpoint's own directory, and nothing that transforms it."""
    state = _fields(record, "_StorageInfo")
    name = _text(state["relative_path"])
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        raise CheckpointFault(f"its metadata names the file {name!r}, which is none of the checkpoint's own")
    if state.get("transform_descriptors"):
        raise CheckpointFault("its metadata asks for a transformation of its files")
    return _StorageInfo(name, _count(state["offset"]), _count(state["length"]))


def _fields(record: Any, wanted: str) -> dict[str, Any]:
    if _name(record) != wanted or not isinstance(record.state, dict):
        raise CheckpointFault(f"its metadata has a {_name(record)} where a {wanted} belongs")
    return record.state


def _name(record: Any) -> str:
    return type(record).__name__


def _size(record: Any) -> torch.Size:
    if _name(record) != "Size" or not isinstance(record, _Record):
        raise CheckpointFault("its metadata has a shape that is none")
    return torch.Size([_count(number) for number in record.args[0]])


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise CheckpointFault(f"its metadata has {value!r} where a count belongs")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise CheckpointFault("its metadata has a name that is no text")
    return value
