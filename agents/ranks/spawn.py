"""Entrypoint ranks, started directly: the process, or why there is none, as an event.

Called by the runtime; the built-in trainer's ranks are forked by their host instead.
"""

import time

from agents.core.effects import Spawn
from agents.core.events import RankForkedHere, RankSpawnFailed
from agents.errors import LaunchError
from agents.ranks.identity import find_by_environment
from agents.ranks.launch import Standing, rank_environment, rank_ref_text, spawn_detached
from controlplane.protocol.launch import RankRef


def spawn_rank(request: Spawn, *, log: int, agent_socket: str, standing: Standing) -> RankForkedHere | RankSpawnFailed:
    """Start one rank of a program of the job's own, which writes to the descriptor `log`."""
    began_s = time.monotonic()
    assert request.launch.entrypoint is not None, "the core spawns entrypoints only"
    extra = rank_environment(request.ref, request.launch, request.device_index, agent_socket)
    try:
        identity = spawn_detached(request.launch.entrypoint, extra=extra, log=log, standing=standing)
    except LaunchError as error:
        return RankSpawnFailed(now_s=time.monotonic(), ref=request.ref, error=str(error))
    now_s = time.monotonic()
    return RankForkedHere(now_s=now_s, ref=request.ref, identity=identity, took_s=now_s - began_s)


def find_unborn(ref: RankRef, uid: int) -> RankForkedHere | RankSpawnFailed:
    """The agent was killed between starting a process and writing that down; `uid`: of the job's
    processes here."""
    identity = find_by_environment("HOLDFAST_REF", rank_ref_text(ref), uid=uid)
    now_s = time.monotonic()
    if identity is None:
        return RankSpawnFailed(now_s=now_s, ref=ref, error="interrupted by a restart of the agent")
    return RankForkedHere(now_s=now_s, ref=ref, identity=identity, took_s=0.0)
