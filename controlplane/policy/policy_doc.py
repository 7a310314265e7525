"""docs/policy.md and the page's list of XIDs: `python -m controlplane.policy.policy_doc --check|--write`.

From the table of fields (`policy.fields`), the rules that obey a mode, and the catalogue of XIDs.
"""

import json
from pathlib import Path

from controlplane.policy.document import DEFAULT
from controlplane.policy.fields import FIELDS, TABLES, UNITS, Field
from controlplane.policy.rules.registry import REMEDIAL
from controlplane.policy.xid import XidBucket, known_xids, look_up
from controlplane.protocol import generated
from controlplane.protocol.spec_fault import plain_number

ROOT = Path(__file__).resolve().parents[2]
TARGET, XIDS = ROOT / "docs" / "policy.md", ROOT / "frontend" / "src" / "lib" / "xids.gen.ts"
HEAD = """# Policy documents

Generated from `controlplane/policy/data/policy_fields.csv`, `controlplane/policy/config.py` and
`controlplane/policy/policy_doc.py` by `make generated`; do not edit.

Every decision is made by one policy: the settings below. Each has a default, and a document names those that shall be
different, as YAML or JSON:

```yaml
max_acts: 10
lease_s: 20
rule_modes:
  straggler: recommend
xid_overrides:
  63: ignore
```

## Scopes, versions, roll-back
- A document is the fleet's, a [project's](projects.md) or one job's. The fleet's replaces defaults; a project's is laid
  over the fleet's, a job's over both. What lies below may only narrow, field by field: fewer acts, later acts, less
  automation, in the direction that the column "below the fleet" names. A mode may only be lowered (`enforce`,
  `recommend`, `observe`). What has no such direction is the fleet's alone: prices by which all jobs are compared, the
  queue's limits, actions for XIDs.
- If what lies above becomes narrower later, the narrower counts, and what lies below stays as it is stored. A change
  that leaves a threshold of a project or job out of reach is refused, and names them; a roll-back is not, as it has to
  work when something is wrong.
- Documents are stored as versions, with who, when and why; a version is never changed. A change names the version that
  its author has read; where another came since, it is refused (409), so that two editors never overwrite each other.
- A roll-back makes an earlier document the newest one, in one call. Version 0 is the defaults.
- The next pass of each job, of the fleet and of the queue decides by the newest documents; no process is started again.
  Jobs that are not over have that pass within seconds of a change.
- A decision carries `policy_version`, a hash of everything that was in force, and `policy_documents`, the number of the
  document of each scope that made it. `holdfast policy show --recorded VERSION` shows that policy, also after a
  document or the release's defaults have changed.
- Changes need an administrator, of the fleet or, for a project's document and those of its jobs, of the
  [project](projects.md). They are in the audit log with the values before and after; those of the fleet and of jobs are
  in the timeline too, as whoever reads that need not see the project.

## What is refused
A document is refused as a whole, with every fault named, where a field, rule, mode, XID or action is unknown, a value
is of the wrong type or out of range, or a cap is zero; where a project's or job's would widen what lies above it; where
a threshold cannot be reached, because another one always comes before it (for the document itself, or for that of a
project or job below it) or the fleet has fewer nodes or devices; and where a timeout lies below what
was measured here: the 99th percentile over a week, of twenty or more, of a step (`lease_s`), of answers to a view
(`flush_timeout_s`, `flush_limit_s`), of a joiner's transfer (`catch_up_limit_s`), of a save (`save_first_s`). Defaults
are nobody's demand and are not judged. A roll-back is not held against measurements: what was accepted once comes back.

## Commands
```text
holdfast policy show --all
holdfast policy versions
holdfast policy diff 0
holdfast policy set policy.yaml --reason "fewer evictions at night"
holdfast policy rollback 0 --reason "as it was"
holdfast policy dry-run policy.yaml --since 7d
holdfast decision replay --since 7d
holdfast policy shadow start policy.yaml
holdfast policy shadow show
holdfast policy shadow promote --reason "it wastes less"
holdfast policy shadow stop
```
Each but those of the shadow takes `--project NAME` or `--job JOB`. The same in the [API](api.md) (`/policy`), the
[Python client](sdk.md) (`client.policy`), and on the page "Policies".

## Replay and dry run
Every decision is stored with what the policy saw, so it can be made again. `holdfast decision replay` does so with
the policy that decided, and compares byte for byte; it exits with 1 where one comes out otherwise, which means that a
rule's code has changed since, or that a row was edited. `holdfast policy dry-run FILE` (and `decision replay --policy
FILE`) makes each pass's decisions by the document instead: held, freed, instead, changed, dropped or added, with the
acts that would have been carried out besides, those that would not, and what that costs by the decisions' own prices
in GPU-seconds; what it costs not to act is not in it.

Then each difference is continued in the [simulator](simulator.md#continued-decisions) from its recorded state, on your
machine: by the policy that decided and by the document, over `--seeds` worlds for what nobody can know, for `--within`
2m in all. The change in GPU-seconds that commit nothing stands beside the difference, with its deviation; of each
incident the first one is in the sum. What cannot be continued has the reason and no figure.

What it cannot say: what would have been decided at moments at which nothing was recorded. Where the other policy asks
for more of the fleet than was recorded, its answer is taken to be that nothing more is free, which a difference says
beside it. Not compared, and counted with the reason: scheduled diagnostics, which keep no snapshot; decisions of
releases that kept no policy; those that come out the same although more was asked. Snapshots of earlier
shapes are read as today's (`controlplane/policy/upcast.py`, a fixture for each).

## Shadow
A document of the fleet can decide beside the live policy from now on, and act on nothing: `holdfast policy shadow start
FILE`, or the page. A task of the worker makes each recorded decision again by it; the live path does nothing for it.

| agreement | means |
|---|---|
| alike | the same act |
| reworded | the same act of a rule that answers failures, for other thresholds or prices: what follows may differ |
| other | another act |
| acts | it acts where the live policy held |
| holds | it holds where the live policy acted |

What differs is priced: continued in the simulator by both policies, else by the decisions' own prices, else not at all.
What the incidents really cost is the ledger's word, from ten minutes after each is over. A promotion asks for a bar:

| of the bar | default | may be |
|---|---|---|
| decisions compared (`min_decisions`) | 50 | 1 to 100,000 |
| days (`min_days`) | 1 | 0 to 90 |
| share of differing decisions without a price, at most (`max_unpriced`) | 0.1 | 0 to 1 |
| what it wastes more, with two deviations, as a share of what the incidents cost (`tolerance`) | 0.02 | 0 to 1 |

Below it a promotion is refused with every reason. A promoted document is the newest version, and the one before it
watches: where that would have wasted less, beyond two deviations and the tolerance, it comes back by itself, with an
entry in the audit log and the reason. The watch ends after as much as the bar asks for, or when somebody changes the
policy. [ADR 0049](adr/0049-a-policy-beside-the-live-one.md) says why.
"""
FIELDS_HEAD = """
## Fields
"Source" says where the default comes from: an own value is a choice that nothing has measured yet.
"""
TABLES_HEAD = """
## Tables
Both are empty by default.
"""


def render() -> str:
    """The whole page."""
    lines = [HEAD.rstrip(), FIELDS_HEAD]
    group = ""
    for field in FIELDS:
        if field.group != group:
            group = field.group
            lines += [f"### {group[0].upper()}{group[1:]}", ""]
            lines += [
                "| field | what it does | default | may be | below the fleet | source of the default |",
                "|---|---|---|---|---|---|",
            ]
        lines.append(_row(field))
        if field is FIELDS[-1] or FIELDS[FIELDS.index(field) + 1].group != group:
            lines.append("")
    lines += [TABLES_HEAD.strip("\n"), "", *(f"- `{name}`: {what}." for name, what in TABLES.items())]
    rules = ", ".join(f"`{name}`" for name in sorted(REMEDIAL))
    lines += ["", f"Rules that obey a mode: {rules}. What each does is in [signals](signals.md#rules)."]
    return "\n".join([*lines, ""])


def _row(field: Field) -> str:
    unit = f" {field.unit}" if field.unit in dict(UNITS).values() else ""
    default = plain_number(getattr(DEFAULT, field.name))
    span = f"{plain_number(field.least)} to {plain_number(field.most)}{unit}"
    span += f", at most `{field.within}`" if field.within else ""
    jobs = f"go {field.safer}" if field.narrows else "not set it"
    return f"| `{field.name}` | {field.what} | {default}{unit} | {span} | {jobs} | {field.source}: {field.because} |"


def render_xids() -> str:
    """The page's list: each XID of the catalogue with the action that it has by default."""
    rows = [(xid, look_up(xid)) for xid in known_xids()]
    lines = [
        "/* Generated from controlplane/policy/data/xid_catalog.csv by `make generated`; do not edit. */",
        f"export const XID_ACTIONS = {json.dumps([str(word) for word in XidBucket])} as const;",
        "",
        "/** [XID, what it is, its action by default]. */",
        "export const XIDS: readonly (readonly [number, string, string])[] = [",
        *(f"  [{xid}, {json.dumps(found.description)}, {json.dumps(str(found.bucket))}]," for xid, found in rows),
        "];",
        "",
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Write both, or fail when one on disk is stale."""
    return generated.keep({TARGET: render(), XIDS: render_xids()}, arguments, what=__doc__)


if __name__ == "__main__":
    raise SystemExit(main())
