"""docs/signals.md: `python -m controlplane.policy.signals_doc --check|--write`.

From the tables of findings (`policy.signals`) and of rules (`rules.registry`).
"""

from dataclasses import fields
from pathlib import Path

from controlplane.policy.rules.registry import RULES
from controlplane.policy.signals import BY_KIND, KINDS, SIGNALS
from controlplane.policy.signals.base import PLACE, Finding, Trait
from controlplane.protocol import generated

TARGET = Path(__file__).resolve().parents[2] / "docs" / "signals.md"
HEAD = """# Signals

Generated from `controlplane/policy/signals` and `controlplane/policy/rules/registry.py` by `make generated`; do
not edit.

A signal is a finding of a detector. While one with its key is open it is not raised again. Rules answer
it, and it is settled by what they decide, or when it is over. What to do about each kind is in
[runbooks](runbooks.md#kinds-of-findings). A finding of a kind that a release does not know is reported once,
as an event, and no rule sees it.
"""
RULES_HEAD = """
## Rules

In the order in which they are asked; the earlier one wins where two want to touch the same thing. A rule
that obeys the job's mode may be held back further by `rule_modes` of the policy.
"""


def render() -> str:
    """The whole page."""
    lines = [HEAD, "| kind | severity | what was found | answered by | what is done with it |", "|---|---|---|---|---|"]
    for kind in KINDS:
        each = BY_KIND[kind]
        lines.append(
            f"| [`{kind}`](runbooks.md#{kind}) | {each.SEVERITY} | {each.MEANS} | {_answered(each)} | {_done(each)} |"
        )
    lines += ["", "## Key and evidence", "", "| kind | key | evidence |", "|---|---|---|"]
    lines += [f"| `{each.KIND}` | `{_key(each)}` | {_evidence(each)} |" for each in SIGNALS]
    lines += [RULES_HEAD, "| | rule | what it does | mode | findings that it answers |", "|---|---|---|---|---|"]
    lines += [
        f"| {number} | `{rule.name}` | {rule.what} | {'obeys it' if rule.remedial else 'always enforced'}"
        f" | {', '.join(f'`{kind}`' for kind in rule.answers)} |"
        for number, rule in enumerate(RULES, 1)
    ]
    return "\n".join([*lines, ""])


def _answered(kind: type[Finding]) -> str:
    rules = [f"`{rule.name}`" for rule in RULES if kind.KIND in rule.answers]
    return ", ".join(rules) or (f"`{kind.READER}`" if kind.READER else "people")


def _done(kind: type[Finding]) -> str:
    told = [str(trait) for trait in Trait if trait in kind.TRAITS]
    if kind.FAILURE:
        told.insert(0, f"a decision about it is titled as [{kind.FAILURE}](runbooks.md#{kind.FAILURE})")
    return "; ".join(told)


def _key(kind: type[Finding]) -> str:
    return ":".join((kind.PREFIX or kind.KIND, *(name.upper() for name in kind.KEY)))


def _evidence(kind: type[Finding]) -> str:
    own = [each.name for each in fields(kind) if each.name not in PLACE and each.name not in kind.UNKEPT]
    return ", ".join(f"`{name}`" for name in own)


def main(arguments: list[str] | None = None) -> int:
    """Write the page, or fail when the one on disk is stale."""
    return generated.keep({TARGET: render()}, arguments, what=__doc__)


if __name__ == "__main__":
    raise SystemExit(main())
