/* How the large map is painted, and what its colours mean. */
import type { ReactElement } from "react";
import { type BigNode, type CellClass, HEAD, type Layout, type Show, squares, unhealthy } from "../lib/bigmap";
import { count } from "../lib/format";
import { STEPS } from "../lib/heat";
import { drawPixels, type Fill } from "../ui/drawing";
import { styleOf, type Tone } from "../ui/states";

const TOKENS: Record<Exclude<CellClass, `heat-${number}`>, string> = {
  lost: "--bad-solid", unhealthy: "--warn-solid", "at-risk": "--heat-5", healthy: "--heat-2", busy: "--info-solid", spare: "--special-solid", free: "--line-strong", none: "--line",
};
const WORDS: Record<Show, [keyof typeof TOKENS, string][]> = {
  health: [["lost", "off the bus"], ["unhealthy", "out of service"], ["at-risk", "at risk"], ["healthy", "healthy"]],
  use: [["busy", "busy"], ["spare", "spare"], ["free", "free, or not usable"]],
  risk: [["none", "no score"]],
};
const tokenOf = (name: CellClass): string => (name.startsWith("heat-") ? `--${name}` : TOKENS[name as keyof typeof TOKENS]);

/** Everything but the mark of the chosen one. */
export function paint(canvas: HTMLCanvasElement, layout: Layout, width: number, show: Show): void {
  const context = drawPixels(canvas, width, layout.height, (fill) => fillSquares(fill, layout, show));
  for (const { name, y, count: nodes, bad } of layout.groups) {
    context?.fillText(`${name}: ${count(nodes)} ${nodes === 1 ? "node" : "nodes"}${bad > 0 ? `, ${count(bad)} not well` : ""}`, 0, y + HEAD - 6, width);
  }
}

/** Behind what receives no work, or has no link, the colour of that; and where health is shown, behind a node with a
    device that is lost or out of service the colour of this: one square of a hundred thousand is not seen. */
function behind(node: BigNode, show: Show): Tone | null {
  if (show === "health" && node.lost > 0) return "bad";
  if (show === "health" && unhealthy(node) > 0) return "warn";
  const tone = node.connected ? styleOf("node", node.state).tone : "idle";
  return tone === "ok" ? null : tone;
}

function fillSquares(fill: Fill, layout: Layout, show: Show): void {
  const size = Math.max(2, layout.pitch - (layout.pitch > 5 ? 2 : 1));
  layout.nodes.forEach((node, i) => {
    const [x, y] = [layout.x[i]!, layout.y[i]!];
    const tone = behind(node, show);
    if (tone !== null) fill(x - 1, y - 1, layout.blockWidth - 1, layout.blockHeight - 1, `--${tone}`);
    let square = 0;
    for (const [name, number] of squares(node, show)) {
      for (const end = square + number; square < end; square += 1) {
        fill(x + (square % layout.across) * layout.pitch, y + Math.floor(square / layout.across) * layout.pitch, size, size, tokenOf(name));
      }
    }
  });
}

export function BigLegend({ show }: { show: Show }): ReactElement {
  return (
    <div className="map-legend">
      {show === "risk" ? (
        <>
          <span>highest risk of the node: 0</span>
          <span className="map-scale" aria-hidden>{Array.from({ length: STEPS }, (_, i) => <i key={i} className={`heat-${i}`} />)}</span>
          <span>1</span>
        </>
      ) : null}
      {WORDS[show].map(([name, words]) => <span key={name} className="legend-mark"><i className="swatch" style={{ background: `var(${TOKENS[name]})` }} /> {words}</span>)}
      {show === "health" ? <span className="legend-mark"><i className="swatch swatch-frame" /> framed: a device is lost or out of service</span> : null}
      <span className="legend-mark"><i className="swatch swatch-idle" /> shaded: receives no work, or has no link</span>
      <span>A block is a node, a square a device; squares of a node are sorted by what they show.</span>
    </div>
  );
}
