/* One node (E55): its devices over time, what runs on it, what was found, when it leaves; cordon, drain, maintain and uncordon. */
import { useQuery } from "@tanstack/react-query";
import { lazy, type ReactElement, Suspense, useState } from "react";
import { Link, useParams } from "react-router";
import * as queries from "../api/queries";
import type { Device, NodeDetail, Rank, Signal } from "../api/types";
import { DeadLetters } from "../components/DeadLetters";
import { DeviceCharts } from "../components/DeviceCharts";
import { NodeEngine } from "../components/Engine";
import { EventTable } from "../components/EventTable";
import { AtThatTime, FreezeButton, useFrozen } from "../components/Frozen";
import { KnownEndLine } from "../components/KnownEnd";
import { type NodeAct, NodeActions } from "../components/NodeActions";
import { exitText } from "../components/ReplicaGrid";
import { ReservedLine } from "../components/Reservations";
import { ToItsId } from "../components/ToItsId";
import { retried } from "../lib/chunks";
import { errorsText, heldBack, partsText, remapText, signalText, valueText } from "../lib/readings";
import { bytes, count, duration, fixed, percent, scalar, shortId } from "../lib/format";
import { readings } from "../lib/heat";
import { paths } from "../lib/paths";
import { UNSEEN } from "../lib/projects";
import { useOpened } from "../lib/recent";
import { silentNode } from "../components/Heard";
import { useHeard, useLive, usePatched, useRefresh, useTopic } from "../live/hooks";
import { Empty, Figure, Id, Loaded, PageHead, Panel, Skeleton, Time } from "../ui/basics";
import { ActButton, whyNot } from "../ui/ActButton";
import { Icon } from "../ui/icons";
import { StateBadge } from "../ui/states";
import { Scroll } from "../ui/Scroll";

const FrozenNode = lazy(() => retried(() => import("./FrozenNode").then((module) => ({ default: module.FrozenNode }))));

export function NodePage(): ReactElement {
  const { id = "" } = useParams();
  const frozen = useFrozen();
  if (frozen === null) return <LiveNode id={id} />;
  return <AtThatTime frozen={frozen}>{(at) => <Suspense fallback={<Skeleton height={420} />}><FrozenNode id={id} at={at} /></Suspense>}</AtThatTime>;
}

function LiveNode({ id }: { id: string }): ReactElement {
  useTopic(`node:${id}`);
  const query = useQuery(queries.node(id));
  const node = usePatched("node", query.data, query.data?.as_of_seq ?? 0);
  return (
    <Loaded query={{ ...query, data: node }} head={<><title>{`Node - Holdfast`}</title><PageHead crumbs={[{ to: paths.nodes(), text: "Nodes" }]} title={id} /></>} skeleton={<Skeleton height={420} />}>
      {(data) => (data.id === id ? <Content node={data} /> : <ToItsId of="node" row={data} />)}
    </Loaded>
  );
}

function Content({ node }: { node: NodeDetail }): ReactElement {
  const [act, setAct] = useState<NodeAct | null>(null);
  const refresh = useRefresh();
  useOpened("node", node.id, node.name);
  const heard = useHeard(node);
  const silent = silentNode(node, heard);
  const unfit = node.signals.find((signal) => signal.kind === "node_check" && signal.settled_at === null);
  return (
    <>
      <title>{`${node.name} - Holdfast`}</title>
      <PageHead
        crumbs={[{ to: paths.nodes(), text: "Nodes" }]} title={node.name} badge={<StateBadge kind="node" state={node.state} />}
        actions={<Acts node={node} onAct={setAct} />}
      >
        {unfit ? <p className="why text-bad">Its checks fail, so nothing is started here until they pass: {scalar(unfit.evidence["detail"] ?? null)}.</p> : null}
        {silent ? <p className="why text-bad">{node.name} is not heard{heard.ageS === null ? "" : ` for ${duration(heard.ageS)}`}: the values below are the last it reported. Whether its ranks still train is shown on the pages of their jobs.</p> : null}
        <p className="why">{node.state_reason || (unfit ? "What runs here continues." : silent ? "" : "Receives work.")} <span className="muted">Since <Time at={node.state_since} />.</span></p>
        <KnownEndLine node={node} onCancel={() => setAct("cancel-window")} />
        <ReservedLine nodeId={node.id} />
        <div className="meta"><Id id={node.id} short={shortId(node.id)} /></div>
      </PageHead>
      <dl className="figures">
        <Figure label="Link" value={!node.connected ? "no link" : silent ? `not heard ${duration(heard.ageS)}` : "connected"} tone={silent ? "bad" : heard.hearing === "ok" ? "ok" : undefined} note={heard.ageS === null ? undefined : `heard ${duration(heard.ageS)} ago`} />
        <Figure label="Ranks running" value={node.ranks_running} />
        <Figure label="Agent CPU" value={percent(node.agent_cpu_ratio, 1)} note="of one core" />
        <Figure label="Agent memory" value={bytes(node.agent_rss_bytes)} />
        <Figure label="Segment" value={node.segment || "not named"} note={node.segment ? "replicas are kept inside one where they fit" : undefined} />
        <Figure label="Agent version" value={node.agent_version || "not reported"} />
      </dl>
      <Devices node={node} stale={silent || heard.hearing === "stale"} />
      <DeviceCharts nodeId={node.id} />
      <NodeEngine node={node} />
      <div className="grid-2">
        <Panel title="Ranks on this node" flush><Ranks ranks={node.ranks} /></Panel>
        <Panel title="Signals" flush><Signals signals={node.signals} older={node.signals_left_out} /></Panel>
      </div>
      {node.dead_letters > 0 ? <DeadLetters node={node} /> : null}
      <Panel title="Events" flush><EventTable events={node.events} freezes /></Panel>
      {act ? <NodeActions act={act} node={node} onClose={() => { setAct(null); refresh(queries.keys.node(node.id)); }} /> : null}
    </>
  );
}

function Acts({ node, onAct }: { node: NodeDetail; onAct: (act: NodeAct) => void }): ReactElement {
  return (
    <>
      <FreezeButton />
      {whyNot(node, "confirm") === "" ? <ActButton of={node} does="/nodes/{node_id}:confirm" project={null} onPress={() => onAct("confirm")}><Icon name="check" size={13} /> {node.held ? "Admit" : "Confirm"}</ActButton> : null}
      <ActButton of={node} does="/nodes/{node_id}:drain" project={null} onPress={() => onAct("drain")}><Icon name="dash" size={13} /> Drain</ActButton>
      <ActButton of={node} does="/nodes/{node_id}:maintain" project={null} onPress={() => onAct("maintain")}><Icon name="hourglass" size={13} /> Maintain</ActButton>
      <ActButton of={node} does="/nodes/{node_id}:cordon" project={null} onPress={() => onAct("cordon")}><Icon name="ban" size={13} /> Cordon</ActButton>
      <ActButton of={node} does="/nodes/{node_id}:uncordon" project={null} onPress={() => onAct("uncordon")}><Icon name="check" size={13} /> Uncordon</ActButton>
    </>
  );
}

function Devices({ node, stale }: { node: NodeDetail; stale: boolean }): ReactElement {
  const pushed = useLive((state) => state.data.devices.get(node.id));
  return (
    <Panel title="Devices" flush className={stale ? "stale-values" : ""} actions={stale ? <span className="chip" title="No newer readings have come"><Icon name="unplug" size={11} /> last readings</span> : undefined}>
      <Scroll label="Devices">
        <table>
          <thead><tr><th className="num">Index</th><th>Model</th><th>Health</th><th>Held by</th><th className="num">Risk</th><th className="num">Temperature</th><th className="num">Power</th><th className="num">Used</th><th className="num">Memory</th><th className="num">SM clock</th><th className="num">Memory errors</th><th>Links and limits</th><th>Driver</th></tr></thead>
          <tbody>{node.devices.map((device) => <DeviceRow key={device.id} device={device} held={node.held} now={readings(device, pushed?.byIndex.get(device.index))} />)}</tbody>
        </table>
      </Scroll>
    </Panel>
  );
}

function DeviceRow({ device, held, now }: { device: Device; held: boolean; now: ReturnType<typeof readings> }): ReactElement {
  const present = now.present ?? device.present;
  const tone = !present ? "bad" : device.healthy ? "ok" : "warn";
  return (
    <tr>
      <td className="num"><b>{device.index}</b></td>
      <td>{device.model}<div className="muted"><code>{device.uuid}</code></div></td>
      <td><span className={`badge badge-compact tone-${tone}`}><Icon name={!present ? "unplug" : device.healthy ? "check" : "alert"} size={13} /> {!present ? "off the bus" : device.healthy ? "healthy" : "unhealthy"}</span>{device.health_reason ? <div className="muted">{device.health_reason}</div> : null}</td>
      <td>{device.held_by?.job_id === UNSEEN ? device.held_by.job_name : device.held_by ? <Link to={paths.job(device.held_by.job_id)}>{device.held_by.job_name ? `${device.held_by.job_name}: ` : ""}replica {device.held_by.replica}, rank {device.held_by.rank}</Link> : device.spare_for === UNSEEN ? "spare" : device.spare_for ? <Link to={paths.job(device.spare_for)}>spare</Link> : <span className="muted">{held ? "not admitted" : "free"}</span>}</td>
      <td className="num">{fixed(now.risk ?? device.risk, 2)}<div className="muted">{partsText(now)}</div></td>
      <td className="num">{fixed(now.temperature_c, 0, "C")}<div className="muted">memory {fixed(now.memory_temperature_c, 0, "C")}</div></td>
      <td className="num">{fixed(now.power_w, 0, "W")}<div className="muted">of {fixed(now.power_limit_w, 0, "W")}</div></td>
      <td className="num">{percent(now.utilization_ratio)}</td>
      <td className="num">{bytes(now.memory_used_bytes)}<div className="muted">of {bytes(device.memory_bytes)}</div></td>
      <td className="num">{fixed(now.sm_clock_mhz, 0, "MHz")}</td>
      <td className="num">{errorsText(now)}<div className="muted">{remapText(now)}</div></td>
      <td>{heldBack(now)}<div className="muted">PCIe replays {fixed(now.pcie_replay_total, 0)}, NVLink errors {fixed(now.nvlink_error_total, 0)}</div></td>
      <td>{device.driver}</td>
    </tr>
  );
}

function Ranks({ ranks }: { ranks: Rank[] }): ReactElement {
  if (ranks.length === 0) return <Empty icon="list" title="Nothing runs here" />;
  return (
    <Scroll label="Ranks">
      <table>
        <thead><tr><th>Rank</th><th>State</th><th className="num">Device</th><th className="num">Pid</th><th>Started</th></tr></thead>
        <tbody>
          {ranks.map((rank) => (
            <tr key={rank.id}>
              <td>{rank.job_id ? <Link to={paths.job(rank.job_id)}>{rank.job_name ? `${rank.job_name}: ` : ""}replica {rank.replica}, rank {rank.rank}</Link> : `replica ${rank.replica}, rank ${rank.rank}`} <span className="muted">#{rank.incarnation}</span></td>
              <td><StateBadge kind="rank" state={rank.state} compact detail={exitText(rank)} /></td>
              <td className="num">{rank.device_index}</td>
              <td className="num">{rank.pid ?? "-"}</td>
              <td><Time at={rank.started_at} /></td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

function Signals({ signals, older }: { signals: Signal[]; older: number }): ReactElement {
  if (signals.length === 0) return <Empty title="Nothing has been found" />;
  return (
    <Scroll label="Signals">
      <table>
        <thead><tr><th>Signal</th><th className="num">Device</th><th className="num">Value</th><th className="num">Threshold</th><th>Seen</th></tr></thead>
        <tbody>
          {signals.map((signal) => (
            <tr key={signal.id}>
              <td>{signalText(signal)}{signal.settled_at ? <span className="muted"> (settled)</span> : null}</td>
              <td className="num">{signal.device_index ?? "-"}</td>
              <td className="num">{valueText(signal)}</td>
              <td className="num">{signal.threshold !== null ? scalar(signal.threshold) : <span className="muted" title="it needs none">-</span>}</td>
              <td><Time at={signal.seen_at} /></td>
            </tr>
          ))}
          {older > 0 ? <tr><td colSpan={5} className="muted">{count(older)} older ones are not shown</td></tr> : null}
        </tbody>
      </table>
    </Scroll>
  );
}
