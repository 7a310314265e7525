/* Node by node, device by device (E51). The map is the quick look; the same facts as a table one press away. */
import { type KeyboardEvent, memo, type ReactElement } from "react";
import { Link, useSearchParams } from "react-router";
import { useFleet } from "../api/fleet";
import type { Device, Node } from "../api/types";
import { BigMap } from "./BigMap";
import { silentNode } from "./Heard";
import { bytes, count, duration, fixed, percent } from "../lib/format";
import { cellOf, MAP_COLOURS, type MapColour, readings, type Readings } from "../lib/heat";
import { useSetParam } from "../lib/params";
import { paths } from "../lib/paths";
import { UNSEEN } from "../lib/projects";
import { useHeard, useLive, usePatchedList, useSilentCount, useTopic } from "../live/hooks";
import { Empty, Loaded, Panel, Skeleton } from "../ui/basics";
import { Icon } from "../ui/icons";
import { FORMS, Segments } from "../ui/Segments";
import { styleOf, StateBadge } from "../ui/states";
import { Scroll } from "../ui/Scroll";

/** Beyond this many nodes the page follows them by polling: one topic a node would flood the socket. */
const LIVE_NODES = 64;

/** Beyond this many nodes no card a node is drawn, and the fleet is read as columns. */
export const CARD_NODES = 500;

/** `total`: nodes of the fleet. */
export function FleetMap({ total }: { total: number }): ReactElement {
  return total > CARD_NODES ? <BigMap /> : <Cards />;
}

function Cards(): ReactElement {
  const fleet = useFleet();
  const [params] = useSearchParams();
  const colour = MAP_COLOURS.find((item) => item === params.get("colour")) ?? "temperature";
  const table = params.get("map") === "table";
  const set = useSetParam();
  const actions = (
    <>
      <Segments label="Colour of the map" options={MAP_COLOURS} value={colour} onChange={(item) => set("colour", item)} />
      <Segments label="Form" options={FORMS} value={table ? "table" : "map"} onChange={(item) => set("map", item)} />
    </>
  );
  return (
    <Panel title="Nodes and devices" actions={actions}>
      <Loaded query={{ data: fleet.nodes, error: fleet.error, refetch: fleet.refetch }} skeleton={<Skeleton height={120} />}>
        {(nodes) => (nodes.length === 0 ? <Empty icon="server" title="No nodes" /> : <MapBody nodes={nodes} asOfSeq={fleet.asOfSeq} colour={colour} table={table} />)}
      </Loaded>
      {fleet.nodes && !fleet.complete ? <p className="muted" role="status">Reading the fleet: {count(fleet.nodes.length)} of {count(fleet.total)} nodes so far.</p> : null}
    </Panel>
  );
}

function MapBody({ nodes: read, asOfSeq, colour, table }: { nodes: Node[]; asOfSeq: number; colour: MapColour; table: boolean }): ReactElement {
  const nodes = usePatchedList("node", read, asOfSeq);
  const push = nodes.length <= LIVE_NODES;
  const silent = useSilentCount(nodes, push);
  const lost = nodes.filter((node) => !node.connected).length;
  const missing = [silent > 0 ? `${count(silent)} ${silent === 1 ? "node is" : "nodes are"} connected and not heard` : "", lost > 0 ? `${count(lost)} ${lost === 1 ? "has" : "have"} no link` : ""].filter(Boolean).join(", ");
  return (
    <>
      {missing ? <p className="map-missing text-bad"><Icon name="unplug" size={13} /> {missing}: grey readings are the last reported.</p> : null}
      {table ? <DeviceTable nodes={nodes} push={push} /> : (
        <>
          <div className="fleet" onKeyDown={moveFocus}>
            {nodes.map((node) => <NodeCard key={node.id} node={node} colour={colour} push={push} />)}
          </div>
          <Legend colour={colour} />
        </>
      )}
    </>
  );
}

/** Arrow keys walk through the cells. */
function moveFocus(event: KeyboardEvent<HTMLElement>): void {
  const step = event.key === "ArrowRight" || event.key === "ArrowDown" ? 1 : event.key === "ArrowLeft" || event.key === "ArrowUp" ? -1 : 0;
  if (step === 0) return;
  const cells = [...event.currentTarget.querySelectorAll<HTMLElement>(".cell")];
  const at = cells.indexOf(document.activeElement as HTMLElement);
  if (at < 0) return;
  event.preventDefault();
  cells[Math.min(cells.length - 1, Math.max(0, at + step))]?.focus();
}

/** What the page is sent of a node by now, and whether that is only the last that came (`stale`). */
function useNodeNow(node: Node, push: boolean) {
  useTopic(push ? `node:${node.id}` : null);
  const pushed = useLive((state) => (push ? state.data.devices.get(node.id) : undefined));
  const heard = useHeard(node, push);
  const silent = silentNode(node, heard);
  return { pushed, heard, silent, stale: silent || heard.hearing === "stale" };
}

const NodeCard = memo(function NodeCard({ node, colour, push }: { node: Node; colour: MapColour; push: boolean }): ReactElement {
  const { pushed, heard, silent, stale } = useNodeNow(node, push);
  const tone = silent ? "idle" : styleOf("node", node.state).tone;
  return (
    <div className={`node-card tone-${tone}${stale ? " node-stale" : ""}`}>
      <div className="node-name">
        <Link to={paths.node(node.id)}>{node.name}</Link>
        {node.state === "ready" && node.connected ? null : <StateBadge kind="node" state={node.state} compact />}
        {node.connected ? null : <span className="chip" title="The agent's link is down; the readings are the last it reported"><Icon name="unplug" size={11} /> no link</span>}
        {node.connected && silent ? <span className="chip" title="Its agent is connected but silent; the readings are the last it reported"><Icon name="unplug" size={11} /> not heard {duration(heard.ageS)}</span> : null}
      </div>
      <div className="cells">
        {node.devices.map((device) => <DeviceCell key={device.id} node={node} device={device} now={readings(device, pushed?.byIndex.get(device.index))} colour={colour} />)}
      </div>
    </div>
  );
});

function DeviceCell({ node, device, now, colour }: { node: Node; device: Device; now: Readings; colour: MapColour }): ReactElement {
  const present = now.present ?? device.present;
  const cell = cellOf(device, now, colour);
  const what = device.held_by?.job_id === UNSEEN ? device.held_by.job_name : device.held_by ? `rank ${device.held_by.rank} of replica ${device.held_by.replica} of ${device.held_by.job_name || device.held_by.job_id}` : device.spare_for ? "spare" : "free";
  const title = `${node.name} device ${device.index}: ${present ? what : "off the bus"}; ${fixed(now.temperature_c, 0, "C")}, risk ${fixed(now.risk ?? device.risk, 2)}, used ${percent(now.utilization_ratio)}${device.healthy ? "" : `; ${device.health_reason}`}`;
  const value = present ? (cell.text === "not reported" ? "n/a" : cell.text) : "lost";
  const form = !present ? "cell-lost" : cell.step === null ? "cell-none" : `${colour === "job" ? "job" : "heat"}-${cell.step}`;
  return (
    <Link to={paths.node(node.id)} className={`cell ${form}`} title={title} aria-label={`${device.index} ${value}, ${title}`}>
      <span className="cell-index">{device.index}</span>{" "}
      <span className="cell-value">{value}</span>
      {device.healthy && present ? null : <Icon name={present ? "alert" : "unplug"} size={11} />}
      {device.spare_for ? <Icon name="ring" size={10} /> : null}
    </Link>
  );
}

function Legend({ colour }: { colour: MapColour }): ReactElement {
  const ends: Record<MapColour, [string, string]> = {
    risk: ["risk 0", "1"], temperature: ["30 C", "95 C"], utilization: ["0 %", "100 %"], job: ["one colour a job", ""],
  };
  return (
    <div className="map-legend">
      <span>{ends[colour][0]}</span>
      <span className="map-scale" aria-hidden>
        {Array.from({ length: 8 }, (_, i) => <i key={i} className={`${colour === "job" ? "job" : "heat"}-${i}`} />)}
      </span>
      <span>{ends[colour][1]}</span>
      <span className="legend-mark"><Icon name="ring" size={11} /> spare</span>
      <span className="legend-mark"><Icon name="alert" size={11} /> unhealthy</span>
      <span className="legend-mark"><i className="cell-none swatch" /> not reported or free</span>
    </div>
  );
}

function DeviceTable({ nodes, push }: { nodes: Node[]; push: boolean }): ReactElement {
  return (
    <Scroll label="Devices">
      <table>
        <thead>
          <tr><th>Node</th><th className="num">Device</th><th>Held by</th><th>Health</th><th className="num">Risk</th><th className="num">Temperature</th><th className="num">Power</th><th className="num">Used</th><th className="num">Memory</th></tr>
        </thead>
        <tbody>{nodes.map((node) => <DeviceRows key={node.id} node={node} push={push} />)}</tbody>
      </table>
    </Scroll>
  );
}

/** Of one node; grey while what they show is only the last that came. */
const DeviceRows = memo(function DeviceRows({ node, push }: { node: Node; push: boolean }): ReactElement {
  const { pushed, heard, silent, stale } = useNodeNow(node, push);
  const age = !node.connected ? "no link" : silent ? `not heard ${duration(heard.ageS)}` : "";
  return (
    <>
      {node.devices.map((device) => {
        const now = readings(device, pushed?.byIndex.get(device.index));
        return (
          <tr key={device.id} className={stale ? "stale-row" : undefined}>
            <td><Link to={paths.node(node.id)}>{node.name}</Link>{age ? <span className="text-bad"> {age}</span> : null}</td>
            <td className="num">{device.index}</td>
            <td>{device.held_by?.job_id === UNSEEN ? device.held_by.job_name : device.held_by ? <Link to={paths.job(device.held_by.job_id)}>{device.held_by.job_name ? `${device.held_by.job_name}: ` : ""}replica {device.held_by.replica}, rank {device.held_by.rank}</Link> : device.spare_for ? "spare" : "free"}</td>
            <td>{device.present ? (device.healthy ? "healthy" : device.health_reason) : "off the bus"}</td>
            <td className="num">{fixed(now.risk ?? device.risk, 2)}</td>
            <td className="num">{fixed(now.temperature_c, 0, "C")}</td>
            <td className="num">{fixed(now.power_w, 0, "W")}</td>
            <td className="num">{percent(now.utilization_ratio)}</td>
            <td className="num">{bytes(now.memory_used_bytes)}</td>
          </tr>
        );
      })}
    </>
  );
});
