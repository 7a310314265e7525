/* Small parts every page uses: panels, key figures, times, copy buttons, empty and error states. */
import { type ReactElement, type ReactNode, useState } from "react";
import { Link } from "react-router";
import { ApiProblem } from "../api/client";
import type { SpecFault } from "../api/types";
import { useNow } from "../lib/clock";
import { useSettings } from "../lib/settings";
import { exactTime, timeText } from "../lib/time";
import { Icon, type IconName } from "./icons";
import type { Tone } from "./states";

export function Panel(props: { title: string; children: ReactNode; actions?: ReactNode; className?: string; id?: string; flush?: boolean }): ReactElement {
  return (
    <section className={`panel ${props.className ?? ""}`} id={props.id} aria-label={props.title}>
      <header className="panel-head">
        <h2>{props.title}</h2>
        {props.actions ? <div className="panel-actions">{props.actions}</div> : null}
      </header>
      <div className={props.flush ? "panel-body flush" : "panel-body"}>{props.children}</div>
    </section>
  );
}

export function Figure(props: { label: string; value: ReactNode; note?: ReactNode; tone?: Tone; title?: string }): ReactElement {
  return (
    <div className={`figure ${props.tone ? `figure-${props.tone}` : ""}`} title={props.title}>
      <dt>{props.label}</dt>
      <dd>
        <span className="figure-value">{props.value}</span>
        {props.note ? <span className="figure-note">{props.note}</span> : null}
      </dd>
    </div>
  );
}

/** A moment in the zone the reader chose; the exact one is in the tooltip. */
export function Time({ at }: { at: string | null | undefined }): ReactElement {
  const { time } = useSettings();
  const now = useNow();
  if (!at) return <span className="missing">not reported</span>;
  return (
    <time dateTime={at} title={exactTime(at)} className="nowrap">
      {timeText(at, time, now)}
    </time>
  );
}

export function Id({ id, short }: { id: string; short?: string }): ReactElement {
  return (
    <span className="id" title={id}>
      <code>{short ?? id}</code>
      <CopyButton text={id} what="id" />
    </span>
  );
}

export function CopyButton({ text, what, label }: { text: string | (() => string); what: string; label?: string }): ReactElement {
  const [done, setDone] = useState(false);
  const copy = (): void => {
    void writeClipboard(typeof text === "function" ? text() : text).then((ok) => {
      setDone(ok);
      setTimeout(() => setDone(false), 1_500);
    });
  };
  return (
    <button type="button" className={label ? "button" : "icon-button"} onClick={copy} aria-label={label ? undefined : `Copy ${what}`}>
      <Icon name={done ? "check" : "copy"} size={12} />
      {label ? <span>{done ? "Copied" : label}</span> : null}
    </button>
  );
}

/** The clipboard API exists in secure contexts only; consoles are often on plain HTTP. */
async function writeClipboard(text: string): Promise<boolean> {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return true;
  }
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  const ok = document.execCommand("copy");
  area.remove();
  return ok;
}

export function Empty({ icon = "check", title, children }: { icon?: IconName; title: string; children?: ReactNode }): ReactElement {
  return (
    <div className="empty">
      <Icon name={icon} size={20} />
      <p className="empty-title">{title}</p>
      {children ? <div className="empty-text">{children}</div> : null}
    </div>
  );
}

export function Skeleton({ lines = 3, height }: { lines?: number; height?: number }): ReactElement {
  if (height) return <div className="skeleton" style={{ height }} role="status" aria-label="Loading" />;
  return (
    <div role="status" aria-label="Loading" className="skeleton-lines">
      {Array.from({ length: lines }, (_, i) => (
        <div key={i} className="skeleton" style={{ width: `${[92, 74, 83, 60][i % 4]}%` }} />
      ))}
    </div>
  );
}

/** Where, what, and how to mend it: the same for a dry run and a refusal. */
export function FaultList({ faults }: { faults: SpecFault[] }): ReactElement {
  return (
    <ul className="faults">
      {faults.map((fault) => (
        <li key={fault.pointer + fault.message}>
          <code>{fault.pointer || "/"}</code> {fault.message}
          {fault.fix ? <span className="muted"> - {fault.fix}</span> : null}
        </li>
      ))}
    </ul>
  );
}

/** The server's own words, every listed fault, and the request id to quote. */
export function Problem({ error, retry }: { error: unknown; retry?: () => void }): ReactElement {
  const problem = error instanceof ApiProblem ? error : null;
  return (
    <div className="problem" role="alert">
      <Icon name="alert" size={16} />
      <div>
        <p className="problem-title">{problem ? problem.title : "This page failed"}</p>
        <p>{problem ? problem.detail : String(error)}</p>
        {problem && problem.faults.length > 0 ? (
          <FaultList faults={problem.faults} />
        ) : null}
        {problem?.requestId ? <p className="muted">request {problem.requestId}</p> : null}
        {retry ? <button type="button" className="button" onClick={retry}>Try again</button> : null}
      </div>
    </div>
  );
}

interface QueryLike<T> {
  data: T | undefined;
  error: unknown;
  refetch: () => unknown;
}

/** Skeleton, error or content: data that was once read stays on the page while a refetch fails.
    `head` stands over skeleton and error, where a whole page is read. */
export function Loaded<T>(props: { query: QueryLike<T>; children: (data: T) => ReactNode; skeleton?: ReactNode; head?: ReactNode }): ReactElement {
  const { data, error, refetch } = props.query;
  if (data !== undefined) return <>{props.children(data)}</>;
  if (error) return <>{props.head}<Problem error={error} retry={() => void refetch()} /></>;
  return (
    <>
      {props.head}
      {props.skeleton ?? <Skeleton lines={4} />}
      <p className="slow-note muted">The control plane has not answered yet; it is still being asked.</p>
    </>
  );
}

export function Bar({ ratio, tone = "info", label }: { ratio: number; tone?: Tone; label: string }): ReactElement {
  const width = Math.min(100, Math.max(0, ratio * 100));
  return (
    <div className={`bar tone-${tone}`} role="progressbar" aria-label={label} aria-valuemin={0} aria-valuemax={100} aria-valuenow={Math.round(width)}>
      <div className="bar-fill" style={{ width: `${width}%` }} />
    </div>
  );
}

export function PageHead(props: { crumbs?: { to: string; text: string }[]; title: ReactNode; badge?: ReactNode; actions?: ReactNode; children?: ReactNode }): ReactElement {
  return (
    <header className="page-head">
      {props.crumbs ? (
        <nav aria-label="Breadcrumb" className="crumbs">
          {props.crumbs.map((crumb, i) => (
            <span key={crumb.to}>
              {i > 0 ? <span aria-hidden> / </span> : null}
              <Link to={crumb.to}>{crumb.text}</Link>
            </span>
          ))}
        </nav>
      ) : null}
      <div className="page-title">
        <h1>{props.title}</h1>
        {props.badge}
        {props.actions ? <div className="page-actions">{props.actions}</div> : null}
      </div>
      {props.children}
    </header>
  );
}
