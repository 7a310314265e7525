"""Which running jobs yield their devices to the head of the queue: those that lose the fewest GPU-seconds.

Only jobs of lower priority that allow it, and only as many as make the head fit wherever it is placed. First jobs give
replicas that they can train without; only where no such set makes room do whole jobs yield too. A job that began, came
back or was asked a short time ago is left alone; so is everybody when an hour's preemptions are spent, and a project's
jobs when those are that its jobs may suffer. Up to `QueueConfig.weighed` sets are compared, which is every set in a
small fleet; beyond that the best one found counts (`policy.queue.search`). Called by `schedule` for the head alone. A
job that waits for its project's quota is the head where jobs of its project yield to it. Pure.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby

from controlplane.policy.queue.ends import ending
from controlplane.policy.queue.place import Victim
from controlplane.policy.queue.room import Room
from controlplane.policy.queue.rows import Holder, Part, Pending, QueueConfig, QueueFleet
from controlplane.policy.queue.search import Allowed, Devices, Offer, Search
from controlplane.policy.queue.shares import Shares


def victims(head: Pending, room: Room, fleet: QueueFleet, config: QueueConfig, now_s: float) -> tuple[Victim, ...]:
    """Who is asked, by id; () where nobody can or need be. `room`: what is free, less what jobs ahead start on."""
    free = room.only(head.demand)
    for holder in fleet.holders:
        free.give_back(holder.gives)
        if holder.leaves:
            free.give_back(holder.devices)
    allowed = _allowed(fleet, config)
    if allowed.of_fleet <= 0 or free.fits(head.demand):
        return ()
    shares = Shares(fleet.projects, fleet.holders)
    able = [holder for holder in fleet.holders if may_yield(holder, head, config, now_s, shares)]
    reserved = fleet.reserved
    parts = [offer for holder in able for offer in parts_of(holder, reserved)]
    whole = [whole_of(holder, reserved) for holder in able]
    for offers in (parts, parts + whole) if parts else (whole,):
        useful = [offer for offer in offers if free.gains(head.demand, offer.devices)]
        back = [holder for holder in able if not outranked(holder, head, shares)]
        owed = {each.id: (shares.over(each.project), shares.called(each.project)) for each in back}
        owes = {job_id: number for job_id, (number, _) in owed.items()}
        chosen = Search(head.demand, free, useful, weighed=config.weighed, most=allowed, owed=owes).best()
        if chosen:
            return tuple(_victim(list(its), owed) for _, its in groupby(chosen, key=lambda offer: offer.job.id))
    return ()


def for_quota(
    first: Pending, room: Room, fleet: QueueFleet, config: QueueConfig, now_s: float, *, lacks: int
) -> tuple[Victim, ...]:
    """Who of its own project is asked to yield to a job that lacks so many devices of its quota; those of lower
    priority alone, and only where it fits then. By the same price and limits as for devices."""
    mine = [holder for holder in fleet.holders if holder.project == first.project]
    lacks -= sum(end.counted for end in ending(mine, now_s) if end.holder.leaves or end.devices is end.holder.gives)
    allowed = _allowed(fleet, config)
    if allowed.of_fleet <= 0 or lacks <= 0:
        return ()
    free = room.only(first.demand)
    for holder in fleet.holders:
        free.give_back((*holder.gives, *holder.devices) if holder.leaves else holder.gives)
    shares = Shares(fleet.projects, fleet.holders)
    able = [holder for holder in mine if may_yield(holder, first, config, now_s, shares)]
    reserved = fleet.reserved
    parts = [offer for holder in able for offer in parts_of(holder, reserved)]
    for offers in (parts, parts + [whole_of(holder, reserved) for holder in able]):
        search = Search(first.demand, free, offers, weighed=config.weighed, most=allowed, lacks=lacks)
        chosen = search.best() if offers else []
        if chosen:
            return tuple(_victim(list(its), {}) for _, its in groupby(chosen, key=lambda offer: offer.job.id))
    return ()


def whole_of(holder: Holder, reserved: Mapping[str, str]) -> Offer:
    """The job ends. Devices on nodes that are another job's spares stay that one's."""
    lent = _lent(holder.id, holder.devices, reserved)
    return Offer(holder, lost_gpu_s(holder), lent, counted=_number(holder.devices) - holder.uncounted)


def parts_of(holder: Holder, reserved: Mapping[str, str]) -> list[Offer]:
    """Each replica that may leave while the others train on, by index."""
    if holder.spares <= 0:
        return []
    return [
        Offer(
            holder,
            part_gpu_s(holder, part),
            _lent(holder.id, part.devices, reserved),
            part,
            counted=_number(part.devices),
        )
        for part in holder.parts
    ]


def _lent(job_id: str, devices: Devices, reserved: Mapping[str, str]) -> Devices:
    return tuple(each for each in devices if reserved.get(each[0], job_id) == job_id)


def _allowed(fleet: QueueFleet, config: QueueConfig) -> Allowed:
    return Allowed(config.max_preemptions - fleet.preempted, config.max_preemptions_of_project)


def may_yield(holder: Holder, head: Pending, config: QueueConfig, now_s: float, shares: Shares | None = None) -> bool:
    """It is of lower priority or of a project that owes devices, allows it, and was left alone for long enough."""
    quotas = shares or Shares(())
    asked = not holder.leaves and (outranked(holder, head, quotas) or quotas.reclaims(head, holder))
    return asked and left_alone(holder, config, now_s) is None


def outranked(holder: Holder, head: Pending, shares: Shares) -> bool:
    """It is of lower priority, and does not run on what is its own project's alone."""
    return holder.priority < head.priority and not shares.guards(head, holder)


def left_alone(holder: Holder, config: QueueConfig, now_s: float) -> tuple[str, float | None] | None:
    """Why it is not asked to yield, whoever waits, and until when (server seconds, where it is known); None: it may."""
    stake = holder.stake
    if stake is None:
        return "does not allow it, or does not train now", None
    least_s = config.preempt_again_s if stake.came_back else config.preempt_min_runtime_s
    if now_s - stake.begun_s < least_s:
        began = "trains again since a preemption" if stake.came_back else "began"
        return f"{began} less than {least_s:.0f} s ago", stake.begun_s + least_s
    if stake.times >= config.max_preemptions_of_job:
        return f"yielded as often within an hour as it may be asked ({config.max_preemptions_of_job})", None
    if holder.suffered >= config.max_preemptions_of_project:
        most = config.max_preemptions_of_project
        return f"jobs of its project yielded as often within an hour as they may be asked together ({most})", None
    if stake.kept_s is not None and now_s - stake.kept_s < config.preempt_retry_s:
        return "was asked a moment ago, for nothing", stake.kept_s + config.preempt_retry_s
    return None


def starts_soon(expected_s: float | None, config: QueueConfig, now_s: float) -> bool:
    """Nobody yields for what others' ends bring about."""
    return expected_s is not None and expected_s - now_s <= config.preempt_patience_s


def lost_gpu_s(holder: Holder) -> float:
    """GPU-seconds that it costs to preempt the job now: a save and the step in hand, or the work since its newest
    checkpoint where that is less or no save was ever measured; then a start."""
    stake = holder.stake
    assert stake is not None, "asked of jobs that may yield"
    yielding_s = stake.at_risk_s if stake.save_s is None else min(stake.at_risk_s, stake.save_s + stake.step_s)
    return _number(holder.devices) * (yielding_s + stake.again_s)


def part_gpu_s(holder: Holder, part: Part) -> float:
    """GPU-seconds that it costs when one replica leaves by a view: its start and catch-up when it is taken back. The
    others complete the step and lose nothing; that they are fewer meanwhile gives its devices to who is urgent."""
    stake = holder.stake
    assert stake is not None, "asked of jobs that may yield"
    return _number(part.devices) * stake.again_s


def _number(devices: Devices) -> int:
    return sum(number for _, number in devices)


def _victim(offers: Sequence[Offer], owed: Mapping[str, tuple[int, str]]) -> Victim:
    """All that one job is asked for. `owed`: by job what its project has borrowed, and its name, where that is why."""
    holder, parts = offers[0].job, [offer.part for offer in offers if offer.part is not None]
    stake = holder.stake
    assert stake is not None, "asked of jobs that may yield"
    return Victim(
        id=holder.id,
        name=holder.name,
        priority=holder.priority,
        attempt=stake.attempt,
        asked=stake.asked,
        devices=sum(_number(part.devices) for part in parts) if parts else _number(holder.devices),
        at_risk_s=stake.at_risk_s,
        save_s=stake.save_s,
        lost_gpu_s=sum(offer.price for offer in offers),
        gives=tuple((part.index, part.incarnation) for part in parts),
        trains=len(holder.parts),
        borrows=owed[holder.id][1] if holder.id in owed else "",
    )
