/* A node as of one moment: its state and its devices' health as last published until then, their readings, and what happened. */
import { useQuery } from "@tanstack/react-query";
import type { ReactElement } from "react";
import * as queries from "../api/queries";
import type { Device, Node, NodeDetail } from "../api/types";
import { DeviceCharts } from "../components/DeviceCharts";
import { Kept } from "../components/Frozen";
import { FrozenEvents } from "../components/FrozenEvents";
import { shortId } from "../lib/format";
import { latest, readingOf } from "../lib/frozen";
import { paths } from "../lib/paths";
import { Empty, Id, Loaded, PageHead, Panel, Skeleton, Time } from "../ui/basics";
import { Icon } from "../ui/icons";
import { Scroll } from "../ui/Scroll";
import { StateBadge } from "../ui/states";

export function FrozenNode({ id, at }: { id: string; at: { iso: string; ms: number } }): ReactElement {
  const node = useQuery(queries.node(id));
  return (
    <Loaded query={node} head={<PageHead crumbs={[{ to: paths.nodes(), text: "Nodes" }]} title={id} />} skeleton={<Skeleton height={420} />}>
      {(data) => <Then node={data} at={at.iso} />}
    </Loaded>
  );
}

function Then({ node, at }: { node: NodeDetail; at: string }): ReactElement {
  const read = useQuery(queries.nodeUntil(node.id, at, "node", 1));
  const state = readingOf(read, ({ items }) => latest<Node>(items)[0]);
  const was = state.value;
  const changes = useQuery(queries.nodeUntil(node.id, at, "device"));
  const since = read.data?.items.at(-1)?.seq ?? 0;
  const devices = new Map((was?.devices ?? []).map((device) => [device.id, device]));
  for (const device of latest<Device>((changes.data?.items ?? []).filter((event) => event.seq > since))) devices.set(device.id, device);
  return (
    <>
      <title>{`${node.name} at ${at} - Holdfast`}</title>
      <PageHead crumbs={[{ to: paths.nodes(), text: "Nodes" }]} title={node.name} badge={<Kept of={state} what="state">{(value) => <StateBadge kind="node" state={value.state} />}</Kept>}>
        {was ? <p className="why">{was.state_reason} <span className="muted">Since <Time at={was.state_since} />. {was.connected ? "Its agent was connected." : "Its agent was not connected."}</span></p> : null}
        <div className="meta"><Id id={node.id} short={shortId(node.id)} /></div>
      </PageHead>
      <Panel title="Devices" flush>
        <Loaded query={read} skeleton={<Skeleton lines={3} />}>
          {() => (
            <Loaded query={changes} skeleton={<Skeleton lines={3} />}>
              {() => (devices.size > 0 ? <Devices devices={[...devices.values()].sort((a, b) => a.index - b.index)} /> : <Empty title="Nothing of its devices is kept for this time" />)}
            </Loaded>
          )}
        </Loaded>
      </Panel>
      <DeviceCharts nodeId={node.id} until={at} />
      <p className="muted">Which ranks ran here, and which job held a device, is not kept for this time; the events say when ranks began and ended.</p>
      <Panel title="Events" flush><FrozenEvents of={{ node: node.id }} at={at} /></Panel>
    </>
  );
}

function Devices({ devices }: { devices: Device[] }): ReactElement {
  return (
    <Scroll label="Devices">
      <table>
        <thead><tr><th className="num">Index</th><th>Model</th><th>Health</th></tr></thead>
        <tbody>
          {devices.map((device) => (
            <tr key={device.id}>
              <td className="num"><b>{device.index}</b></td>
              <td>{device.model}<div className="muted"><code>{device.uuid}</code></div></td>
              <td><span className={`badge badge-compact tone-${!device.present ? "bad" : device.healthy ? "ok" : "warn"}`}><Icon name={!device.present ? "unplug" : device.healthy ? "check" : "alert"} size={13} /> {!device.present ? "off the bus" : device.healthy ? "healthy" : "unhealthy"}</span>{device.health_reason ? <div className="muted">{device.health_reason}</div> : null}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}
