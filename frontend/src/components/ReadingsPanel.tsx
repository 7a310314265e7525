/* What the devices of an incident read around its fault: what is out of the ordinary in words, then a chart of
   each reading that moved, then all values. */
import { useQuery } from "@tanstack/react-query";
import { type ReactElement, useMemo } from "react";
import { Link } from "react-router";
import * as queries from "../api/queries";
import type { DeviceAround, IncidentDetail, IncidentReadings } from "../api/types";
import { chartsOf, markersAround, namesOf, notable, seriesOf } from "../lib/around";
import { count } from "../lib/format";
import { paths } from "../lib/paths";
import { CHARTS } from "../lib/readings.gen";
import { Empty, Loaded, Panel, Skeleton, Time } from "../ui/basics";
import { Scroll } from "../ui/Scroll";
import { MetricChart, SHOWN } from "./DeviceCharts";

/** Its findings name a device or a node: without one there is nothing to ask for. */
export function hasDevices(incident: IncidentDetail): boolean {
  return incident.node_id !== null || incident.signals.some((signal) => signal.node_id !== null);
}

export function ReadingsPanel({ incident }: { incident: IncidentDetail }): ReactElement {
  const query = useQuery(queries.readingsAround(incident.id, incident.phases[0]?.at ?? incident.opened_at));
  return (
    <Panel title="Device readings around the fault" id="readings-around">
      <Loaded query={query} skeleton={<Skeleton height={180} />}>{(around) => <Around around={around} />}</Loaded>
    </Panel>
  );
}

function Around({ around }: { around: IncidentReadings }): ReactElement {
  const known = useMemo(() => around.devices.filter((device) => device.series !== null), [around]);
  if (around.devices.length === 0) return <Empty icon="eye" title="No finding names a device or a node" />;
  if (known.length === 0) {
    return (
      <Empty icon="hourglass" title={around.awaited ? "The readings of this time are not there yet" : "There are no readings of this time"}>
        {[...new Set(around.devices.map((device) => device.note))].map((note) => <p key={note}>{note}</p>)}
      </Empty>
    );
  }
  return (
    <div className="around">
      <p>
        From <Time at={around.since} /> to <Time at={around.until} />{around.complete ? "" : ", which is not over yet"}.{" "}
        <span className="marker-legend">
          <i className="mk mk-incident" aria-hidden /> fault at <Time at={around.fault_at} />
          {around.detected_at ? <><i className="mk mk-detected" aria-hidden /> detected at <Time at={around.detected_at} /></> : null}
        </span>
      </p>
      {around.devices.map((device) => <Words key={`${device.node_id}/${device.index}`} device={device} />)}
      {around.note ? <p className="muted">{around.note}</p> : null}
      <Charts around={around} devices={known} />
      <Values devices={known} />
    </div>
  );
}

/** What is out of the ordinary on one device, and when nothing was read. */
function Words({ device }: { device: DeviceAround }): ReactElement {
  const found = notable(device);
  return (
    <div>
      <h3><Link to={paths.node(device.node_id)}>{device.node_name} gpu {device.index}</Link></h3>
      {device.note ? <p className="missing">{device.note}</p> : null}
      <ul>
        {device.xids.map((seen) => <li key={`${seen.xid} ${seen.at}`}><b>XID {seen.xid}{seen.meaning ? `: ${seen.meaning}` : ""}</b> <span className="muted">at <Time at={seen.at} /></span></li>)}
        {device.xids_left_out > 0 ? <li className="muted">{count(device.xids_left_out)} more XIDs are not shown.</li> : null}
        {found.map((reading) => <li key={reading.reading}>{reading.level === "limit" ? <b>{reading.sentence}</b> : reading.sentence} <span className="muted">Since <Time at={reading.at} />.</span></li>)}
        {device.note ? null : device.gaps.map((gap) => <li key={gap.since}>No readings between <Time at={gap.since} /> and <Time at={gap.until} />.</li>)}
        {device.gaps_left_out > 0 ? <li className="muted">{count(device.gaps_left_out)} shorter gaps are not named.</li> : null}
        {!device.note && found.length === 0 && device.xids.length === 0 ? <li className="muted">No reading changed or passed a limit.</li> : null}
      </ul>
    </div>
  );
}

function Charts({ around, devices }: { around: IncidentReadings; devices: DeviceAround[] }): ReactElement {
  const series = useMemo(() => seriesOf(devices), [devices]);
  const markers = useMemo(() => markersAround(around), [around]);
  const names = useMemo(() => namesOf(devices), [devices]);
  const { moved, still } = useMemo(() => chartsOf(devices), [devices]);
  return (
    <>
      <div className="charts">
        {moved.map((chart) => <MetricChart key={chart.metric} devices={series} chart={chart} names={names} markers={markers} restAt={markers[0]!.x} />)}
      </div>
      {still.length > 0 ? <p className="muted">Did not change: {still.map(({ chart, values }) => `${chart.title.toLowerCase()} ${values.map(SHOWN[chart.shown]).join(" or ")}`).join(", ")}.</p> : null}
    </>
  );
}

const TITLES = new Map(CHARTS.map((chart) => [chart.metric as string, SHOWN[chart.shown]]));

/** Every value that the charts draw, for those who cannot see them or want the number. */
function Values({ devices }: { devices: DeviceAround[] }): ReactElement {
  return (
    <details className="fold">
      <summary>Values before, during and after the fault</summary>
      <Scroll label="Values around the fault">
        <table>
          <thead><tr><th>Device</th><th>Reading</th><th className="num">Before</th><th className="num">Lowest</th><th className="num">Highest</th><th className="num">After</th></tr></thead>
          <tbody>
            {devices.flatMap((device) => device.readings.map((reading) => (
              <tr key={`${device.node_id}/${device.index} ${reading.reading}`}>
                <td className="nowrap">{device.node_name} gpu {device.index}</td>
                <td>{reading.title}</td>
                {([reading.before, reading.low, reading.high, reading.after]).map((value, i) => <td key={i} className="num">{value === null ? <span className="missing">not read</span> : (TITLES.get(reading.reading) ?? String)(value)}</td>)}
              </tr>
            )))}
          </tbody>
        </table>
      </Scroll>
    </details>
  );
}
