"""The batch script of a plan, and the command that starts the agents. Pure.

Called by `holdfast slurm submit`, and by `guest` for the agents.

Values of a plan are checked (`plan`) and quoted all the same. The spec is a here-document that nothing is expanded in;
the line that ends it is made from a digest of the spec, which no line of that spec can be.
"""

import hashlib
import shlex
from collections.abc import Iterator

from controlplane.slurm.plan import Asked, Plan

NAMED = "holdfast"
"""Begins the names of our jobs in Slurm's lists."""
COULD_NOT = 7
"""Exit code of a run that could not begin (`Exit.UNAVAILABLE`)."""
LAST_S = 15
"""Of the time until Slurm kills, what is kept for the end of the control plane and for what it leaves behind."""


def script(plan: Plan) -> str:
    """The whole text for `sbatch`."""
    end = f"END_OF_SPEC_{hashlib.sha256(plan.spec_text.encode()).hexdigest()}"
    assert end not in plan.spec_text, "a text that holds its own digest"
    spec = plan.spec_text.rstrip("\n")
    guest = " \\\n  ".join(map(shlex.quote, _guest(plan)))
    return f"""#!/bin/bash
{chr(10).join(f"#SBATCH {option}" for option in options(plan))}
# Made by `holdfast slurm submit`; docs/slurm.md says what runs where, what it writes, and how to end it.
set -eu
umask 077
directory={shlex.quote(plan.directory)}/"$SLURM_JOB_ID"
if ! mkdir -m 700 -- "$directory"; then
  echo "It could not run: the folder of this run is there already or cannot be made; name another --directory." >&2
  exit {COULD_NOT}
fi
{surroundings(plan)}cat > "$directory/job.yaml" <<'{end}'
{spec}
{end}
exec {guest} \\
  --directory "$directory"
"""


def options(plan: Plan) -> tuple[str, ...]:
    """What the script asks of Slurm, one option each. A dead node is no end (`--no-kill`), and no reason to begin the
    whole allocation again. Before the time limit the agents get SIGTERM."""
    return (
        f"--job-name={NAMED}-{plan.job_name}",
        f"--nodes={plan.nodes + plan.spares}",
        "--ntasks-per-node=1",
        "--exclusive",
        "--mem=0",
        "--no-kill",
        "--no-requeue",
        f"--signal=TERM@{plan.grace_s}",
        f"--output={plan.directory}/slurm-%j.out",
        *((f"--dependency=afterany:{plan.continues}",) if plan.chained else ()),
        *named(plan),
    )


def named(asked: Asked) -> Iterator[str]:
    """Options that stand in the script only where they were given."""
    if asked.gpus_per_node:
        yield f"--gres=gpu:{asked.gpus_per_node}"
    for name in ("time", "partition", "account", "qos", "constraint", "reservation"):
        if value := getattr(asked, name):
            yield f"--{name}={value}"


def surroundings(asked: Asked) -> str:
    """Where Holdfast is a checkout and no package, Python has to be shown where."""
    if not asked.checkout:
        return ""
    quoted = shlex.quote(asked.checkout)
    return f'cd -- {quoted}\nexport PYTHONPATH={quoted}"${{PYTHONPATH:+:$PYTHONPATH}}"\n'


def _guest(plan: Plan) -> tuple[str, ...]:
    server = (
        ("--server", plan.server, "--join-token-file", plan.join_token_file, "--owners", plan.owners)
        if plan.server
        else ()
    )
    before = ("--continues", plan.continues) if plan.continues else ()
    chained = ("--chained",) if plan.chained else ()
    return (
        plan.python, "-m", "controlplane.slurm.guest",
        "--nodes", str(plan.nodes), "--spares", str(plan.spares), "--devices", str(plan.gpus_per_node),
        "--grace-s", str(agents_grace_s(plan)), "--probe", plan.probe, *server, *before, *chained,
    )  # fmt: skip


def agents_grace_s(asked: Asked) -> int:
    """From the signal until agents have to be gone, whichever end it announces; it leaves time for the rest."""
    until_kill_s = min(asked.grace_s, asked.kill_wait_s)
    return max(1, until_kill_s - min(LAST_S, until_kill_s // 3))


def srun(*, nodes: int, python: str, directory: str, arguments: tuple[str, ...]) -> tuple[str, ...]:
    """The step of the agents: one task on each of `nodes`. That a task or a node fails ends no other (`--no-kill`,
    `--kill-on-bad-exit=0`, `--wait=0`)."""
    return (
        "srun", "--job-name=holdfast-agents", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1",
        "--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--mpi=none", "--cpu-bind=none", "--input=none",
        f"--output={directory}/logs/agent-%N.log", "--open-mode=append", "--unbuffered",
        python, "-m", "controlplane.slurm.node", *arguments,
    )  # fmt: skip
