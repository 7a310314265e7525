/* Where the time of all devices went: one picture, down to the incident. */
import { useQuery } from "@tanstack/react-query";
import type { ReactElement } from "react";
import { useSearchParams } from "react-router";
import * as queries from "../api/queries";
import type { Ledger } from "../api/types";
import { ClassTable, LedgerBar, RowTable } from "../components/LedgerParts";
import { duration, percent } from "../lib/format";
import { csv, gpuHours, lost, money } from "../lib/ledger";
import { Empty, Figure, Loaded, PageHead, Panel, Skeleton, Time } from "../ui/basics";

const WINDOWS = [
  { name: "1h", text: "Hour", seconds: 3600 },
  { name: "24h", text: "Day", seconds: 86_400 },
  { name: "7d", text: "Week", seconds: 7 * 86_400 },
  { name: "30d", text: "30 days", seconds: 30 * 86_400 },
] as const;
const BY = [
  { name: "cause", text: "Cause" },
  { name: "job", text: "Job" },
  { name: "node", text: "Node" },
] as const;

export function LedgerPage(): ReactElement {
  const [params, setParams] = useSearchParams();
  const span = WINDOWS.find((each) => each.name === params.get("window")) ?? WINDOWS[2];
  const by = BY.find((each) => each.name === params.get("by")) ?? BY[0];
  const job = params.get("job") ?? undefined;
  const node = params.get("node") ?? undefined;
  const query = useQuery(queries.ledger(by.name, span.seconds, { job, node }));
  const choose = (name: string, value: string): void => {
    const next = new URLSearchParams(params);
    next.set(name, value);
    setParams(next, { replace: true });
  };
  return (
    <>
      <title>Ledger - Holdfast</title>
      <PageHead title="Where the GPU time went" />
      <div className="toolbar">
        <Choice label="Window" options={WINDOWS} chosen={span.name} choose={(value) => choose("window", value)} />
        <Choice label="By" options={BY} chosen={by.name} choose={(value) => choose("by", value)} />
        {job || node ? <button type="button" className="button" onClick={() => setParams({ window: span.name, by: by.name }, { replace: true })}>Only {job ?? node}: show all</button> : null}
      </div>
      <Loaded query={query} skeleton={<Skeleton height={320} />}>
        {(ledger) => <Whole ledger={ledger} what={by.text} />}
      </Loaded>
    </>
  );
}

function Choice<T extends string>(props: { label: string; options: readonly { name: T; text: string }[]; chosen: T; choose: (value: T) => void }): ReactElement {
  return (
    <div className="segments" role="group" aria-label={props.label}>
      {props.options.map(({ name, text }) => (
        <button key={name} type="button" aria-pressed={props.chosen === name} onClick={() => props.choose(name)}>{text}</button>
      ))}
    </div>
  );
}

function Whole({ ledger, what }: { ledger: Ledger; what: string }): ReactElement {
  if (ledger.known_gpu_s === 0 && ledger.queued_gpu_s === 0) {
    return <div className="panel"><Empty icon="hourglass" title="Nothing is counted in this window yet">The ledger begins with the first node, and is a few seconds behind the present.</Empty></div>;
  }
  const classes = Object.fromEntries(ledger.classes.map((each) => [each.of, each.gpu_s]));
  return (
    <>
      <Figures ledger={ledger} lostGpuS={lost(classes)} />
      <Panel title="Every second of every device, once">
        <LedgerBar classes={classes} label="All known device time" />
        <ClassTable ledger={ledger} />
      </Panel>
      <Panel title={`By ${what.toLowerCase()}`} flush actions={<Download ledger={ledger} />}>
        <RowTable ledger={ledger} what={what} />
        {ledger.left_out > 0 ? <p className="padded muted">{ledger.left_out} smaller ones are not shown; `holdfast ledger --limit 500` has more.</p> : null}
      </Panel>
    </>
  );
}

function Hours({ gpuS }: { gpuS: number }): ReactElement {
  return <span className="nowrap">{gpuHours(gpuS)}</span>;
}

function Figures({ ledger, lostGpuS }: { ledger: Ledger; lostGpuS: number }): ReactElement {
  const { price, currency } = ledger;
  return (
    <dl className="figures">
      <Figure label="Device time" value={<Hours gpuS={ledger.known_gpu_s} />} note={<>since <Time at={ledger.since} /></>} title="All that is known of all devices in the window" />
      <Figure
        label="Effective time (ETTR)"
        value={ledger.ettr === null ? <span className="missing">no figure yet</span> : percent(ledger.ettr, 1)}
        note="of what jobs asked for"
        title="Productive time / (devices at full strength x time since the first attempt), over all jobs that began: waiting and missing devices count, and so does one that kept no step; of one with too few steps nothing is known yet"
      />
      <Figure label="Lost in jobs" value={<Hours gpuS={lostGpuS} />} tone={lostGpuS > 0.2 * ledger.known_gpu_s ? "warn" : undefined} note={price === null ? "held, without progress" : money((lostGpuS / 3600) * price, currency)} title="Degraded, checkpoints, stalls, recovery, lost work and preemption" />
      <Figure label="Queued beside it" value={<Hours gpuS={ledger.queued_gpu_s} />} note="asked for, not held" title="Demand is no device's second: what jobs asked for and did not hold" />
      {ledger.failures ? <Failures failures={ledger.failures} /> : null}
      <Figure
        label="Judged until"
        value={<Time at={ledger.judged_until} />}
        note={ledger.restated_gpu_s > 0 ? `${gpuHours(ledger.restated_gpu_s)} restated` : undefined}
        title="Nothing later is in it. Restated: stretches that a restart, or an incident found later, changed after they were first shown"
      />
    </dl>
  );
}

function Failures({ failures }: { failures: NonNullable<Ledger["failures"]> }): ReactElement {
  const mean = (value: number | null): ReactElement | string => value === null ? <span className="missing">not observed</span> : duration(value);
  return (
    <>
      <Figure label="Time to failure (MTTF)" value={mean(failures.mttf_s)} note={`${failures.failures} in ${duration(failures.up_s)} of training`} title="Training time of all jobs / incidents that began with a fault" />
      <Figure label="Time to detection (MTTD)" value={mean(failures.mttd_s)} note={`of ${failures.detected}`} title="From the fault, the last sign of progress, until it was detected" />
      <Figure label="Time to recovery (MTTR)" value={mean(failures.mttr_s)} note={`of ${failures.recovered}`} title="From the fault until training was back, whole or with fewer replicas" />
    </>
  );
}

function Download({ ledger }: { ledger: Ledger }): ReactElement {
  const href = `data:text/csv;charset=utf-8,${encodeURIComponent(csv(ledger))}`;
  return <a className="button small" href={href} download={`holdfast-ledger-${ledger.by}.csv`}>CSV</a>;
}
