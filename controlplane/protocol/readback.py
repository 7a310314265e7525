"""What whoever has read a checkpoint back says of it: on the server's own machine, and as the answer of a node."""

import msgspec


class Verdict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """`ok` None: nothing can be said, as the directory is not visible from here, its storage
    fails, or the digests' algorithm is not known here. `loaded`: it was loaded into a model
    as well. `absent`: the fault is that something is not there, which whoever has only a part of
    the bytes would say too. `took_s`: how long it was read, seconds, where the server's own machine did; of a
    node, the times of its answers tell."""

    ok: bool | None
    detail: str
    loaded: bool = False
    absent: bool = False
    took_s: float | None = None
