"""docs/readings.md and the page's list of charts: `python -m controlplane.policy.readings_doc --check|--write`.

From the table of readings (`protocol.readings`) and that of their limits (`policy.readings`).
"""

import json
from pathlib import Path

from controlplane.policy.readings import READINGS as LIMITS
from controlplane.protocol import generated
from controlplane.protocol.readings import READINGS, Chart, Reading

ROOT = Path(__file__).resolve().parents[2]
PAGE, CHARTS = ROOT / "docs" / "readings.md", ROOT / "frontend" / "src" / "lib" / "readings.gen.ts"
SOURCE = "controlplane/protocol/readings.py"
HEAD = f"""# Readings

Generated from `{SOURCE}` and `controlplane/policy/readings.py` by `make generated`; do not
edit.

What a node's agent reads of each device, and where it goes. A reading that a device does not give is absent
everywhere, never 0. The history of those that are kept is packed, and kept for `HOLDFAST_RETENTION_DAYS`
([settings](settings.md)), each value to within what "kept to" says ([ADR 0056](adr/0056-what-a-sensor-means.md));
`/nodes/NODE/series` of the [API](api.md), the charts on a node's page and the
[incidents](operations.md#incidents) show it. Each series of Prometheus has the labels `gpu` and `uuid`
([monitoring](monitoring.md)). DCGM is named for who has dashboards of it: Holdfast does not need it.

| reading | unit | what | NVML | DCGM | Prometheus | kept to | chart |
|---|---|---|---|---|---|---|---|
"""
LIMITS_HEAD = """
## Limits

A reading past its limit is a finding, [`device_reading`](signals.md).

| limit | reading | from | what follows | source |
|---|---|---|---|---|
"""


def render() -> str:
    """The whole page."""
    return HEAD + "".join(map(_row, READINGS)) + LIMITS_HEAD + "".join(_limit(name) for name in LIMITS)


def _row(reading: Reading) -> str:
    told = reading.exported
    name = "" if told is None else f"`holdfast_gpu_{told.name}{'_total' if told.counts else ''}`"
    labels = "" if told is None else "".join(f" {key}={value}" for key, value in told.labels.items())
    asked = f"`{reading.nvml}`" if reading.nvml else ", ".join(f"`{part}`" for part in reading.made_of) or "computed"
    cells = (
        f"`{reading.name}`",
        reading.unit,
        reading.what,
        asked,
        f"`{reading.dcgm}`" if reading.dcgm else "",
        f"{name}{labels}",
        _kept_to(reading),
        reading.chart.title if reading.chart else "",
    )
    return "| " + " | ".join(cells) + " |\n"


def _kept_to(reading: Reading) -> str:
    if not reading.step:
        return ""
    if reading.step == 1.0 and not reading.band:
        return "exact"
    share = f", {reading.band_ratio:.0%} of itself if that is more" if reading.band_ratio else ""
    return f"{max(reading.band, reading.step / 2):.10g}{share}"


def _limit(name: str) -> str:
    limit = LIMITS[name]
    within = f" within {limit.window_s:g} s" if limit.window_s else ""
    lasting = " seconds of it" if limit.lasts else ""
    ask = f"; {limit.ask}" if limit.ask else ""
    return f"| `{name}` | `{limit.reads}` | {limit.value:g}{lasting}{within} | {limit.bucket}{ask} | {limit.source} |\n"


def render_charts() -> str:
    """The page's list, in the order of its charts."""
    drawn = [(reading.name, reading.chart) for reading in READINGS if reading.chart is not None]
    lines = [
        f"/* Generated from {SOURCE} by `make generated`; do not edit. */",
        'import type { Metric } from "./align";',
        "",
        f"export type Shown = {' | '.join(json.dumps(name) for name in sorted({c.shown for _, c in drawn}))};",
        "",
        "export interface ReadingChart {",
        "  metric: Metric;",
        "  title: string;",
        "  shown: Shown;",
        "  range?: [number | null, number | null];",
        "  span?: number;",
        '  ticks?: "whole" | "binary";',
        "}",
        "",
        "export const CHARTS: ReadingChart[] = [",
        *(f"  {_chart(name, chart)}," for name, chart in sorted(drawn, key=lambda each: each[1].place)),
        "];",
        "",
    ]
    return "\n".join(lines)


def _chart(name: str, chart: Chart) -> str:
    parts = {"metric": json.dumps(name), "title": json.dumps(chart.title), "shown": json.dumps(chart.shown)}
    if (chart.low, chart.high) != (None, None):
        parts["range"] = f"[{_number(chart.low)}, {_number(chart.high)}]"
    if chart.span is not None:
        parts["span"] = _number(chart.span)
    if chart.ticks:
        parts["ticks"] = json.dumps(chart.ticks)
    return "{ " + ", ".join(f"{key}: {value}" for key, value in parts.items()) + " }"


def _number(value: float | None) -> str:
    return "null" if value is None else f"{value:g}"


def main(arguments: list[str] | None = None) -> int:
    """Write both, or fail when one on disk is stale."""
    return generated.keep({PAGE: render(), CHARTS: render_charts()}, arguments, what=__doc__)


if __name__ == "__main__":
    raise SystemExit(main())
