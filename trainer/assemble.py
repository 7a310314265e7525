"""Puts the parts of one rank together; every dependency is an argument, in one place."""

import os
from collections.abc import Callable
from dataclasses import dataclass

from torch.distributed import Store

from controlplane.protocol.rank import Evicted, FromRank
from trainer import device
from trainer.boundary import Boundary, PendingRequests
from trainer.checkpoint.fence import Fence
from trainer.checkpoint.keeper import Keeper
from trainer.checkpoint.local.tier import LocalTier
from trainer.checkpoint.resume import resume
from trainer.checkpoint.saver import Saver
from trainer.checkpoint.staging import claim, sweep
from trainer.checkpoint.storage import is_remote
from trainer.config import RankSettings, node_name, outer_backend, staging_root, store_address
from trainer.control.faults import Faults
from trainer.control.link import ControlLink
from trainer.control.mailbox import Mailbox
from trainer.control.preemption import Preemption
from trainer.control.progress import Progress
from trainer.core.rank import RankCore
from trainer.core.standing import Standing
from trainer.engine import Engine
from trainer.loop import Loop
from trainer.parallel import Votes, connect_store, enter_inner_world
from trainer.recompute import Recomputer
from trainer.replica.catch_up import CatchUp
from trainer.replica.donor import Donor, local_host_towards
from trainer.replica.exchange import Exchange
from trainer.replica.membership import Membership
from trainer.replica.outer import OuterComm
from trainer.replica.pilot import Pilot


@dataclass(frozen=True, slots=True, kw_only=True)
class Controls:
    """This rank's side of the agent's socket."""

    link: ControlLink
    mailbox: Mailbox
    progress: Progress
    preemption: Preemption
    faults: Faults
    keeper: Keeper


def control(settings: RankSettings, preemption: Preemption, *, on_evicted: Callable[[Evicted], None]) -> Controls:
    """The control parts; the link is not started yet."""
    ref = settings.ref
    mailbox = Mailbox(ref.job_id, ref.attempt)
    progress = Progress(step=settings.config.resume.step if settings.config.resume else 0)
    faults = Faults(allowed=settings.config.allow_faults)
    link = ControlLink(
        ref,
        os.getpid(),
        path=settings.agent_socket,
        mailbox=mailbox,
        progress=progress,
        faults=faults,
        on_evicted=on_evicted,
    )
    keeper = Keeper(ref, settings.config, link.send)
    mailbox.on_keep = keeper.heard
    return Controls(link=link, mailbox=mailbox, progress=progress, preemption=preemption, faults=faults, keeper=keeper)


def _prepare_staging(settings: RankSettings) -> None:
    """Our own folder, where something will be staged, without what older lives left there."""
    config = settings.config
    if is_remote(config.checkpoint_dir) or (config.resume is not None and is_remote(config.resume.path)):
        claim(staging_root())
    sweep(staging_root(), settings.ref)


def _outer(store: Store, timeout_s: float, pilot: Pilot) -> OuterComm:
    """By what is configured, else by what fits the device."""
    return OuterComm(store, timeout_s=timeout_s, interrupted=pilot.is_over, backend=outer_backend() or device.backend())


def assemble(settings: RankSettings, controls: Controls) -> Loop:
    """Enter the inner world, build the model, load the checkpoint if there is one to resume
    from, and wire the loop. Raises SetupFailed, ConfigInvalid, ResumeFailed, StorageAway."""
    ref, config = settings.ref, settings.config
    mailbox, preemption, send = controls.mailbox, controls.preemption, controls.link.send
    my_device, store = device.activate(settings.device_index), connect_store(settings)
    _prepare_staging(settings)
    enter_inner_world(settings, store)
    votes, host = Votes(), local_host_towards(*store_address(config))
    engine, local = Engine(config, my_device, controls.faults), _local_tier(settings, store, host, send)
    standing = Standing(ref, resume(engine, settings, votes, local))
    engine.rerun.connect(send, epoch=lambda: standing.epoch)
    donor, catch_up = Donor(ref, store, local_host=host), CatchUp(ref, store, engine)
    core = RankCore(standing, micro_batch_count=engine.micro_batch_count, max_contributors=config.max_contributors)
    pilot, fence = Pilot(core, mailbox, send=send), Fence(config.checkpoint_dir)
    outer = _outer(store, config.outer_timeout_s, pilot)
    exchange = Exchange(
        pilot, engine, outer=outer, votes=votes, donor=donor, catch_up=catch_up, fence=fence, send=send,
        pending=PendingRequests(standing, mailbox, preemption),
    )  # fmt: skip
    membership = Membership(
        pilot,
        engine,
        mailbox=mailbox,
        preemption=preemption,
        exchange=exchange,
        outer=outer,
        votes=votes,
        donor=donor,
        catch_up=catch_up,
        fence=fence,
        send=send,
    )
    pilot.connect, pilot.serve = outer.prepare, membership.serve
    mailbox.on_view, mailbox.on_install, controls.faults.cut = pilot.see_view, pilot.see_install, outer.cut
    boundary = Boundary(
        config=config,
        engine=engine,
        standing=standing,
        saver=Saver(ref, config, engine, votes=votes, fence=fence, store=store, send=send),
        local=local,
        mailbox=mailbox,
        preemption=preemption,
        progress=controls.progress,
    )
    return Loop(
        steps=config.training.steps,
        engine=engine,
        pilot=pilot,
        exchange=exchange,
        membership=membership,
        boundary=boundary,
        recomputer=Recomputer(settings, engine, votes=votes, controls=controls),
        progress=controls.progress,
        keeper=controls.keeper,
        send=send,
    )


def _local_tier(settings: RankSettings, store: Store, host: str, send: Callable[[FromRank], None]) -> LocalTier | None:
    if not settings.config.checkpoint.local.wanted:
        return None
    return LocalTier(
        settings.ref,
        settings.config,
        world=settings.world_size,
        node=node_name(),
        host=host,
        store=store,
        send=send,
    )
