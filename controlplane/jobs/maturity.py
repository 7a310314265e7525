"""How mature each resilience feature is: one table, for the page, the command line and docs/maturity.md. Pure.

    python -m controlplane.jobs.maturity --check | --write

A feature is in production where what it does was shown with real ranks or on real rows, and nothing of it works on a
device. What works on a device (its memory, its collectives, its clocks and readings) is experimental until it was seen
on one: `ON_A_GPU` names what was, as docs/gpu.md records it.
"""

import json
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from controlplane.protocol import generated

ROOT = Path(__file__).resolve().parents[2]
PAGE, TABLE = ROOT / "docs" / "maturity.md", ROOT / "frontend" / "src" / "lib" / "maturity.gen.ts"
ON_A_GPU: frozenset[str] = frozenset()
"""Names of features that were seen on a GPU."""


class Layer(StrEnum):
    """Where it acts, from the smallest interruption to the largest; BESIDE: nothing is interrupted by it."""

    BESIDE = "beside training"
    IN_PROCESS = "in process"
    IN_JOB = "in job"
    NEW_ATTEMPT = "new attempt"
    NEW_NODES = "new nodes"
    ALL = "all layers"


class Label(StrEnum):
    """What may be relied on."""

    PRODUCTION = "production"
    EXPERIMENTAL = "experimental"


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """`fields` of a job spec that set it, as paths under `spec`; none: it is always there. `on_device`: it works on
    devices, so that what was shown on CPUs is not enough. `missing`: what else is not there, "" for nothing. `shown` by
    the tests `proof`."""

    name: str
    title: str
    layer: Layer
    fields: tuple[str, ...]
    on_device: bool
    shown: str
    proof: tuple[str, ...]
    missing: str = ""

    @property
    def label(self) -> Label:
        """Not set by hand: see the rule of this module."""
        ready = not self.missing and (not self.on_device or self.name in ON_A_GPU)
        return Label.PRODUCTION if ready else Label.EXPERIMENTAL

    @property
    def why(self) -> str:
        """What it lacks to be in production; "" for nothing."""
        unseen = "never run on a GPU" if self.on_device and self.name not in ON_A_GPU else ""
        return "; ".join(part for part in (unseen, self.missing) if part)


_SCENES = "tests/scenes/test_replica_failure.py"
FEATURES: tuple[Feature, ...] = (
    Feature(
        name="fault_tolerance",
        title="Sections and heartbeats with time limits that are learned",
        layer=Layer.BESIDE,
        fields=("resiliency.timeouts",),
        on_device=False,
        shown="a stopped process of a real job is found by its section's limit, and its replica replaced",
        proof=(f"{_SCENES}::test_a_stopped_rank_is_found_by_its_section_timeout_and_replaced",),
    ),
    Feature(
        name="in_process",
        title="Survivors take a new view and finish the step (in-process restart)",
        layer=Layer.IN_PROCESS,
        fields=("training.batch_mode", "resources.min_replicas"),
        on_device=True,
        shown="a killed rank costs no step and no micro-batch, over gloo",
        proof=(f"{_SCENES}::test_a_killed_rank_costs_no_step_and_its_replica_comes_back_from_a_peer",),
        missing="a lost replica's processes end: no rank is taken back inside its process",
    ),
    Feature(
        name="in_job",
        title="One replica starts again and takes its state from a peer (in-job restart)",
        layer=Layer.IN_JOB,
        fields=(),
        on_device=True,
        shown="it joins while the others train, and its parameters are theirs, over gloo",
        proof=("tests/integration/trainer/test_recovery.py::test_killed_rank_loses_no_step_and_its_replica_rejoins",),
    ),
    Feature(
        name="new_attempt",
        title="All start again from the newest trusted checkpoint, in another layout where devices are missing",
        layer=Layer.NEW_ATTEMPT,
        fields=("resiliency.allow_relayout",),
        on_device=True,
        shown="the job continues in fewer devices from its checkpoint, on CPUs",
        proof=("tests/scenes/test_heat_and_spares.py::test_with_too_few_devices_it_restarts_with_another_layout",),
    ),
    Feature(
        name="new_nodes",
        title="Spare devices and other nodes take what a node held",
        layer=Layer.NEW_NODES,
        fields=("resources.spares",),
        on_device=False,
        missing="its nodes were agents on one machine: several hosts were never tried",
        shown="a node that is silent for longer than its lease is ended and its replica placed elsewhere",
        proof=(
            "tests/scenes/test_silent_node.py"
            "::test_silent_for_longer_than_its_lease_it_is_ended_and_placed_elsewhere_while_another_dies",
        ),
    ),
    Feature(
        name="modes",
        title="How far automation acts by itself: observe, recommend and wait for a word, enforce",
        layer=Layer.ALL,
        fields=("resiliency.mode", "resiliency.act_after_s"),
        on_device=False,
        shown="what is recommended waits for people or its time, and is carried out as approved",
        proof=("tests/integration/backend/test_consent.py", "tests/e2e/test_page_consent.py"),
    ),
    Feature(
        name="budget",
        title="One budget over the restarts of all layers",
        layer=Layer.ALL,
        fields=("resiliency.budget",),
        on_device=False,
        shown="each rung is charged to one ledger, and nothing starts once it is spent",
        proof=("tests/properties/policy/test_budget.py", "tests/integration/backend/test_restart_budget.py"),
    ),
    Feature(
        name="risk",
        title="A device at risk: a save before it fails",
        layer=Layer.BESIDE,
        fields=("resiliency.risk", "checkpoint.emergency"),
        on_device=True,
        shown="one that overheats in the simulated probe causes one save",
        proof=(
            "tests/scenes/test_heat_and_spares.py"
            "::test_an_overheating_device_causes_one_emergency_checkpoint_and_nothing_else",
        ),
    ),
    Feature(
        name="straggler",
        title="Slow ranks are found by two scores, and moved",
        layer=Layer.IN_JOB,
        fields=("resiliency.stragglers",),
        on_device=True,
        shown="a slowed rank of real ranks is named, by times of the host's clock",
        proof=("tests/integration/trainer/test_timings.py", "tests/unit/policy/test_stragglers.py"),
    ),
    Feature(
        name="preemption",
        title="A job saves and yields its devices, and continues later",
        layer=Layer.NEW_ATTEMPT,
        fields=("scheduling.preemptible", "scheduling.preempt_grace_s", "scheduling.time_limit_s"),
        on_device=True,
        shown="the job that loses least yields to an urgent one and resumes with nothing lost, on CPUs",
        proof=("tests/scenes/test_urgent_job.py",),
    ),
    Feature(
        name="elastic",
        title="A job starts with fewer replicas and grows",
        layer=Layer.IN_JOB,
        fields=("scheduling.elastic",),
        on_device=True,
        shown="without a spare it shrinks, and grows back when there is one, over gloo",
        proof=(
            "tests/scenes/test_heat_and_spares.py"
            "::test_without_a_spare_the_job_shrinks_and_grows_back_when_there_is_one",
        ),
    ),
    Feature(
        name="async_save",
        title="Checkpoints are written while training continues",
        layer=Layer.BESIDE,
        fields=("checkpoint.async",),
        on_device=True,
        shown="steps advance while a save is being written, on CPUs",
        proof=("tests/integration/trainer/test_saves.py",),
    ),
    Feature(
        name="local_tier",
        title="Frequent saves on the nodes, with copies on others",
        layer=Layer.BESIDE,
        fields=("checkpoint.local",),
        on_device=True,
        shown="a lost node's state is read from another one's copy, on one machine",
        proof=("tests/integration/trainer/test_local_tier.py",),
        missing="how far apart copies lie is not chosen",
    ),
    Feature(
        name="rerun",
        title="A suspect step is computed again (Megatron's re-run state machine)",
        layer=Layer.IN_PROCESS,
        fields=("training.numerics",),
        on_device=True,
        shown="a NaN and a spike are found to be transient or to stay, on CPUs",
        proof=("tests/integration/trainer/test_numerics.py",),
        missing="not with virtual stages or data parallelism inside a replica",
    ),
    Feature(
        name="diagnostics",
        title="Stacks and Flight Recorder dumps, also on a schedule",
        layer=Layer.BESIDE,
        fields=("resiliency.look_every_s", "resiliency.look_ranks"),
        on_device=True,
        shown="a job is inspected on schedule while it trains; dumps are those of gloo",
        proof=(f"{_SCENES}::test_a_job_is_looked_into_on_schedule_while_it_trains",),
    ),
    Feature(
        name="log_markers",
        title="Lines of a rank's log are events",
        layer=Layer.BESIDE,
        fields=("resiliency.log_markers",),
        on_device=False,
        shown="a line that a marker matches is an event of its job",
        proof=("tests/unit/agents/test_log_markers.py", "tests/integration/backend/test_ingest.py"),
    ),
    Feature(
        name="rehearsal",
        title="Faults on purpose, at once or on a schedule",
        layer=Layer.BESIDE,
        fields=("resiliency.allow_faults", "resiliency.faults"),
        on_device=False,
        shown="a fault comes when the job has scheduled it, and is refused where the spec does not allow any",
        proof=(f"{_SCENES}::test_a_fault_comes_when_the_job_has_scheduled_it",),
        missing="faults of devices are those of the simulated probe",
    ),
)


def rows() -> list[dict[str, str | list[str]]]:
    """The table in plain words, a row for each feature."""
    return [
        {
            "name": each.name, "title": each.title, "layer": str(each.layer), "label": str(each.label),
            "fields": list(each.fields), "shown": each.shown, "proof": list(each.proof), "why": each.why,
        }
        for each in FEATURES
    ]  # fmt: skip


_HEAD = """# How mature each feature is

Generated from `controlplane/jobs/maturity.py` by `make generated`; do not edit.

No single feature covers all failures. They act in layers, from the smallest interruption to the largest: in process
(survivors take a new view), in job (one replica starts again), a new attempt (all start again from a checkpoint), new
nodes; all that starts again spends from one [budget](restart-ladder.md#the-ledger). The page of a job shows this table
beside its spec, `holdfast job features` prints it.

- **production**: what it does was shown with real ranks or on real rows, and nothing of it works on a device.
- **experimental**: it works on a device and was not seen on one ([what was seen on a GPU](gpu.md)), or a part of it is
  missing, which the last column says.

| feature | layer | label | set by, under `spec` | shown | not in production because |
|---|---|---|---|---|---|
"""


def page() -> str:
    """docs/maturity.md."""
    return _HEAD + "".join(_row(each) for each in FEATURES)


def _row(each: Feature) -> str:
    fields, proof = (", ".join(f"`{word}`" for word in words) for words in (each.fields, each.proof))
    cells = (each.title, each.layer, each.label, fields or "always", f"{each.shown}: {proof}", each.why or "-")
    return f"| {' | '.join(cells)} |\n"


def for_the_page() -> str:
    """The page's table."""
    shown = [{name: cell for name, cell in row.items() if name != "proof"} for row in rows()]
    lines = "".join(f"  {json.dumps(row)},\n" for row in shown)
    return (
        "/* Generated from controlplane/jobs/maturity.py by `make generated`; do not edit. */\n"
        'export interface Feature { name: string; title: string; layer: string; label: "production" | "experimental"; '
        "fields: string[]; shown: string; why: string }\n"
        f"export const FEATURES: readonly Feature[] = [\n{lines}];\n"
    )


def main(arguments: list[str] | None = None) -> int:
    """Write both, or fail when one on disk is stale."""
    return generated.keep({PAGE: page(), TABLE: for_the_page()}, arguments, what=__doc__)


if __name__ == "__main__":
    sys.exit(main())
