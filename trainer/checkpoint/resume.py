"""Loading what the control plane has chosen: checked first, byte for byte.

A flipped bit in a shard would load without a word, so nothing is trained on before every
file was compared with the marker: the ranks of a replica share the files out. From an
object store each node fetches once, whoever of its ranks comes first, and compares what
it fetched, or what an earlier attempt has left there.

Only what differs or is missing is a fault of the checkpoint. A storage that cannot be read
says nothing about it: an outage must not burn every checkpoint that was kept.
"""

import sys
from pathlib import Path

from trainer.checkpoint import manifest, staging
from trainer.checkpoint.fetching import fetch
from trainer.checkpoint.local.tier import LocalTier
from trainer.checkpoint.state import load
from trainer.checkpoint.storage import is_remote
from trainer.config import RankSettings, staging_root
from trainer.engine import Engine
from trainer.errors import CheckpointFault, ResumeFailed, StorageAway
from trainer.parallel import Votes


def resume(engine: Engine, settings: RankSettings, votes: Votes, tier: LocalTier | None) -> int:
    """Fill `engine` as the configuration says; returns the step to go on from, 0 where there
    is nothing to resume. All ranks of the replica call it together. Raises ResumeFailed, StorageAway."""
    wanted, rank = settings.config.resume, settings.ref.rank
    if wanted is None:
        return 0
    if manifest.is_local(wanted.path):
        return _resume_local(engine, tier, wanted.path, wanted.step, votes)
    fault, away, folder = "", "", Path(wanted.path)
    try:
        if is_remote(wanted.path):
            folder = fetch(
                wanted.path, staging.incoming(staging_root(), settings.ref.job_id), life=settings.ref.attempt
            )
        else:
            _see(folder.parent)
            verdict = manifest.verify(folder, only=lambda number: number % votes.size == rank)
            fault = "; ".join(verdict.faults)
    except CheckpointFault as error:
        fault = str(error)
    except (OSError, ValueError) as error:  # ValueError: no driver, or an unknown digest.
        away = str(error)
    if fault or away:
        # Before the others know of it and leave, which may end this rank before it gets to say why.
        print(f"{wanted.path}: {fault or away}", file=sys.stderr, flush=True)
    corrupt, unseen = votes.counts([bool(fault), bool(away)])
    if corrupt:
        raise ResumeFailed(f"{wanted.path}: {fault or 'refused by another rank'}")
    if unseen:
        raise StorageAway(f"{wanted.path} cannot be read: {away or 'by another rank'}")
    try:
        return load(engine, folder)
    except CheckpointFault as error:
        raise ResumeFailed(str(error)) from error
    except OSError as error:
        raise StorageAway(f"{wanted.path} cannot be read: {error}") from error


def _resume_local(engine: Engine, tier: LocalTier | None, path: str, step: int, votes: Votes) -> int:
    fault = "" if tier is not None else "this job has no local tier"
    try:
        if tier is not None:
            tier.load(engine, path)
    except (CheckpointFault, OSError) as error:
        fault = str(error)
    if not votes.all(not fault):
        raise ResumeFailed(f"{path}: {fault or 'refused by another rank'}")
    engine.stand_at(step)
    return step


def _see(root: Path) -> None:
    """Where the job's folder is gone with all that is in it, its file system is not there.
    Raises OSError."""
    if not root.is_dir():
        raise OSError(f"{root} is not visible from this node: is its file system mounted?")
