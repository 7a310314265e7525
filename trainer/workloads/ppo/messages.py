"""What the controller asks of the ranks, and what they answer. Typed; no code travels.

How a call is dispatched belongs to its class: a step after a recovery cannot be sent in
another way than the steps before it.
"""

from typing import ClassVar, Literal

from trainer.workloads.dispatch import MESH, Call, Columns, Reply
from trainer.workloads.mesh import Mesh, MeshRank
from trainer.workloads.pool import Failed
from trainer.workloads.ppo.settings import PpoSettings

Source = Literal["initial", "memory", "storage"]


class Prompts(Columns, frozen=True):
    """`sample`: number in the global order; `tokens`: [prompt_length] bytes each."""

    sample: list[int]
    tokens: list[list[int]]


class Responses(Columns, frozen=True):
    """`dp`: the replica that wrote it; per response byte: the byte, its log-probability by
    the actor that wrote it and the critic's value before it."""

    sample: list[int]
    dp: list[int]
    tokens: list[list[int]]
    log_probs: list[list[float]]
    values: list[list[float]]


class Experience(Columns, frozen=True):
    """One mini-batch. `tokens`: prompt and response; the rest per response byte."""

    sample: list[int]
    tokens: list[list[int]]
    log_probs: list[list[float]]
    values: list[list[float]]
    advantages: list[list[float]]
    returns: list[list[float]]


class UpdateRows(Columns, frozen=True):
    """One row a replica: the samples it trained; sums over their response bytes."""

    dp: list[int]
    samples: list[list[int]]
    actor_loss: list[float]
    value_loss: list[float]
    clipped: list[int]
    actor_norm: list[float]
    critic_norm: list[float]


class EnterWorld(Call, frozen=True, tag="enter_world"):
    """Take `rank` of a new world of this mesh, which meets at `store` (host:port)."""

    settings: PpoSettings
    mesh: Mesh
    rank: int
    generation: int
    store: str


class LeaveWorld(Call, frozen=True, tag="leave_world"):
    """Drop process groups and models; the copy in memory stays. Never fails."""


class BuildModels(Call, frozen=True, tag="build_models"):
    """Actor, critic, optimizers and schedules as the seed makes them."""


class Restore(Call, frozen=True, tag="restore"):
    """Stand where `step` steps leave it. `path` counts for the source "storage" alone."""

    source: Source
    step: int
    path: str = ""


class KeepCopy(Call, frozen=True, tag="keep_copy"):
    """Copy the whole state after `step` steps into host memory, in place of the copy before."""

    step: int
    generation: int


class Save(Call, frozen=True, tag="save"):
    """Write my part of the checkpoint after `step` steps to the directory `path`."""

    path: str
    step: int


class Fingerprint(Call, frozen=True, tag="fingerprint"):
    """Digest of parameters, optimizer and random state."""


class Ping(Call, frozen=True, tag="ping"):
    """Who are you?"""


class RollOut(Call, frozen=True, tag="roll_out"):
    """Continue each prompt; value each byte."""

    dispatch: ClassVar[str] = MESH
    step: int
    batch: Prompts


class Update(Call, frozen=True, tag="update"):
    """One clipped optimizer step of both models on one mini-batch."""

    dispatch: ClassVar[str] = MESH
    step: int
    batch: Experience


class Done(Reply, frozen=True, tag="done"):
    """Carried out; nothing to tell."""


class Here(Reply, frozen=True, tag="here"):
    """`place` None: in no world. `copy_step`: of the copy in host memory; None: there is none.
    `rendezvous`: the variables that tell of a world, as code in this process sees them."""

    place: MeshRank | None
    copy_step: int | None
    rendezvous: dict[str, str]


class Restored(Reply, frozen=True, tag="restored"):
    """Where the state came from."""

    source: Source
    step: int


class Fingerprinted(Reply, frozen=True, tag="fingerprinted"):
    """`digest` in hex."""

    place: MeshRank
    digest: str


class RolledOut(Reply, frozen=True, tag="rolled_out"):
    """Of this rank's replica; the batch is empty except on the last pipeline stage."""

    batch: Responses


class Updated(Reply, frozen=True, tag="updated"):
    """Of this rank's replica."""

    batch: UpdateRows


Calls = EnterWorld | LeaveWorld | BuildModels | Restore | KeepCopy | Save | Fingerprint | Ping | RollOut | Update
Replies = Done | Here | Restored | Fingerprinted | RolledOut | Updated | Failed
