"""What a PPO run is: validated once, sent to every rank."""

from pathlib import Path

import msgspec

from controlplane.protocol.launch import RankRef, TrainerConfig
from controlplane.protocol.spec import Checkpoint, Model, Parallelism, Training
from trainer import config as trainer_config
from trainer.config import RankSettings
from trainer.errors import ConfigInvalid
from trainer.workloads.errors import InvalidArguments
from trainer.workloads.mesh import Mesh
from trainer.workloads.replacement import share

JOB_ID = "ppo"
VOCABULARY = 256
PRINTABLE = (32, 126)


class PpoSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`dp`, `tp`, `pp`: the mesh at the start; `spares` processes stand by. Batches in
    samples: a step rolls out `global_batch`, which is trained in mini-batches, each one
    optimizer step, `epochs` times over. Lengths in tokens (bytes). The reward is the share
    of `target_bytes` (first, last) among a response's bytes. Ranks that wait for a hung one
    give up after `inner_timeout_s`; from the first such word, or a death, the others have
    `patience_s`; who is silent then, or at the end of `call_timeout_s`, is ended."""

    dp: int = 2
    tp: int = 1
    pp: int = 2
    spares: int = 4
    global_batch: int = 16
    mini_batch: int = 8
    micro_batch: int = 2
    epochs: int = 1
    prompt_length: int = 8
    response_length: int = 8
    layers: int = 2
    hidden: int = 32
    heads: int = 2
    steps: int = 100
    learning_rate: float = 3e-3
    clip_ratio: float = 0.2
    value_clip: float = 0.2
    discount: float = 1.0
    gae_lambda: float = 0.95
    target_bytes: tuple[int, int] = PRINTABLE
    seed: int = 1234
    keep: int = 2
    call_timeout_s: float = 120.0
    inner_timeout_s: float = 20.0
    patience_s: float = 10.0

    @property
    def mesh(self) -> Mesh:
        """The mesh at the start."""
        return Mesh(self.dp, self.tp, self.pp)

    @property
    def sequence_length(self) -> int:
        """Tokens the models see: prompt and response without its last byte."""
        return self.prompt_length + self.response_length - 1

    @property
    def updates_per_step(self) -> int:
        """Optimizer steps of each model in one step."""
        return self.epochs * (self.global_batch // self.mini_batch)

    def fits(self, dp: int) -> bool:
        """Whether `dp` replicas can share a mini-batch and a global batch."""
        return not (self.mini_batch % (dp * self.micro_batch) or self.global_batch % (dp * self.micro_batch))


def check(settings: PpoSettings) -> None:
    """Raises ConfigInvalid with all faults at once."""
    first, last = settings.target_bytes
    faults = [
        (min(settings.dp, settings.tp, settings.pp) < 1, "dp, tp and pp must be at least 1"),
        (settings.spares < 0, "spares must not be negative"),
        (min(settings.micro_batch, settings.epochs) < 1, "micro_batch and epochs must be at least 1"),
        (
            settings.mini_batch < 1 or settings.global_batch % settings.mini_batch != 0,
            f"global_batch {settings.global_batch} must divide by mini_batch {settings.mini_batch}",
        ),
        (min(settings.prompt_length, settings.response_length) < 1, "prompt_length and response_length: at least 1"),
        (not 0 <= first <= last < VOCABULARY, f"target_bytes {first}..{last} is no range of bytes"),
        (
            not 0 < settings.inner_timeout_s < settings.call_timeout_s,
            "inner_timeout_s must be less than call_timeout_s, else ranks that wait for a hung one are taken for hung",
        ),
        (settings.patience_s <= 0, "patience_s must be above 0"),
        (not 0.0 < settings.clip_ratio < 1.0, "clip_ratio must lie between 0 and 1"),
        (settings.value_clip <= 0.0, "value_clip must be above 0"),
        (not 0.0 <= settings.discount <= 1.0, "discount must lie within 0..1"),
        (not 0.0 <= settings.gae_lambda <= 1.0, "gae_lambda must lie within 0..1"),
    ]
    found = [text for wrong, text in faults if wrong]
    if not found:
        try:
            share(settings.mini_batch, settings.mesh, micro_batch=settings.micro_batch)
        except InvalidArguments as error:
            found.append(str(error))
        try:
            trainer_config.check(_config(settings, Path("."), "none:0", replica_dp=1), settings.mesh.replica_size)
        except ConfigInvalid as error:
            found.append(str(error))
    if found:
        raise ConfigInvalid("; ".join(found))


def rank_settings(settings: PpoSettings, *, mesh: Mesh, rank: int, generation: int, store: str) -> RankSettings:
    """The trainer's own settings of one rank, which sees one device: the whole mesh is one
    world of Megatron's, named by its generation, so that nothing of an older one is met in it."""
    return RankSettings(
        ref=RankRef(JOB_ID, 1, 0, generation, rank),
        world_size=mesh.size,
        device_index=0,
        agent_socket="",
        config=_config(settings, Path("."), store, replica_dp=mesh.dp),
    )


def _config(settings: PpoSettings, checkpoint_dir: Path, store: str, *, replica_dp: int) -> TrainerConfig:
    return TrainerConfig(
        model=Model(
            layers=settings.layers,
            hidden=settings.hidden,
            heads=settings.heads,
            sequence_length=settings.sequence_length,
            vocab_size=VOCABULARY,
        ),
        parallelism=Parallelism(tp=settings.tp, pp=settings.pp, replica_dp=replica_dp),
        training=Training(
            steps=settings.steps * settings.updates_per_step,
            global_batch=settings.mini_batch,
            micro_batch=settings.micro_batch,
            learning_rate=settings.learning_rate,
            min_learning_rate=settings.learning_rate / 10,
            warmup_steps=0,
            seed=settings.seed,
        ),
        checkpoint=Checkpoint(keep=settings.keep),
        checkpoint_dir=str(checkpoint_dir),
        replicas=1,
        store=store,
        inner_timeout_s=settings.inner_timeout_s,
    )
