"""docs/policy.md: `python -m controlplane.policy.policy_doc --check|--write`.

From the table of fields (`policy.fields`) and the rules that obey a mode.
"""

from pathlib import Path

from controlplane.policy.document import DEFAULT
from controlplane.policy.fields import FIELDS, TABLES, UNITS, Field
from controlplane.policy.rules.registry import REMEDIAL
from controlplane.protocol import generated
from controlplane.protocol.spec_fault import plain_number

TARGET = Path(__file__).resolve().parents[2] / "docs" / "policy.md"
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
- A document is the fleet's, or one job's. A job's may only narrow: fewer acts, later acts, less automation, in the
  direction that the column "jobs may" names. If the fleet's becomes narrower later, the narrower counts. There is no
  scope of a project yet.
- Documents are stored as versions, with who, when and why; a version is never changed. A change names the version that
  its author has read; where another came since, it is refused (409), so that two editors never overwrite each other.
- A roll-back makes an earlier document the newest one, in one call. Version 0 is the defaults.
- The next pass of each job, of the fleet and of the queue decides by the newest documents; no process is started again.
  Jobs that are not over have that pass within seconds of a change.
- A decision carries `policy_version`, a hash of everything that was in force. `holdfast policy show --recorded VERSION`
  shows that policy, also after the document, the job's or the release's defaults have changed.
- Changes need an administrator, are in the audit log with the values before and after, and in the timeline.

## What is refused
A document is refused as a whole, with every fault named, where a field, rule, mode, XID or action is unknown, a value
is of the wrong type or out of range, or a cap is zero; where a job's would widen; where a threshold cannot be reached,
because another one always comes before it or the fleet has fewer nodes or devices; and where a timeout lies below what
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
```
Each takes `--job JOB`. The same in the [API](api.md) (`/policy`), the [Python client](sdk.md) (`client.policy`), and on
the page "Policies".

## Replay and dry run
Every decision is stored with what the policy saw, so it can be made again. `holdfast decision replay` does so with
the policy that decided, and compares byte for byte; it exits with 1 where one comes out otherwise, which means that a
rule's code has changed since, or that a row was edited. `holdfast policy dry-run FILE` (and `decision replay --policy
FILE`) makes each pass's decisions by the document instead: held, freed, instead, changed, dropped or added, with the
acts that would have been carried out besides, those that would not, and what that costs by the decisions' own prices
in GPU-seconds; what it costs not to act is not in it.

What it cannot say: how the job would have gone on after another decision (the journal holds the moments that were,
and the simulator does not begin at a recorded one), and what would have been decided at moments at which nothing was.
Not compared, and counted with the reason: scheduled diagnostics, which keep no snapshot; decisions of releases that
kept no policy; those for which the other policy asks for more of the fleet than was recorded. Snapshots of earlier
shapes are read as today's (`controlplane/policy/upcast.py`, a fixture for each).
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
                "| field | what it does | default | may be | jobs may | source of the default |",
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
    jobs = f"go {field.safer}" if field.of_jobs else "not set it"
    return f"| `{field.name}` | {field.what} | {default}{unit} | {span} | {jobs} | {field.source}: {field.because} |"


def main(arguments: list[str] | None = None) -> int:
    """Write the page, or fail when the one on disk is stale."""
    return generated.keep({TARGET: render()}, arguments, what=__doc__)


if __name__ == "__main__":
    raise SystemExit(main())
