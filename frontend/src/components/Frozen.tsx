/* A page as of one moment: what its address says, how to leave it, and how to move it. */
import type { ReactElement, ReactNode } from "react";
import { useSearchParams } from "react-router";
import { byServer, clockMs } from "../lib/clock";
import { type Frozen, frozenOf, instantOf, type Reading } from "../lib/frozen";
import { useSetParam } from "../lib/params";
import { CopyButton, Empty, Time } from "../ui/basics";
import { Icon } from "../ui/icons";

const MINUTE_MS = 60_000;

/** At which moment this page is frozen; null where it is live. */
export function useFrozen(): Frozen | null {
  const [params] = useSearchParams();
  return frozenOf(params.get("at"), byServer(Date.now()));
}

export function FreezeButton(): ReactElement {
  const set = useSetParam();
  return (
    <button type="button" className="button" title="Keep this page as of now in its address, to look at or to share" onClick={() => set("at", instantOf(byServer(clockMs())))}>
      <Icon name="pause" size={13} /> Freeze
    </button>
  );
}

/** Says that the page is frozen. `children`: its parts, where the address names a moment. */
export function AtThatTime({ frozen, children }: { frozen: Frozen; children: (at: { iso: string; ms: number }) => ReactNode }): ReactElement {
  const set = useSetParam();
  const live = <button type="button" className="button primary" onClick={() => set("at", "")}><Icon name="play" size={13} /> Back to live</button>;
  if (frozen.ms === null) return <Empty icon="question" title="This page cannot be shown as of that time">The address says at={frozen.iso}, but {frozen.wrong}. <p>{live}</p></Empty>;
  const { iso, ms } = frozen;
  return (
    <>
      <div className="notice tone-special frozen" role="status">
        <Icon name="pause" size={15} />
        <span>
          <b>Frozen at <Time at={iso} />.</b> This page shows what is kept of that time, and nothing of later. What is not kept for it is said to be so. The pages of incidents and decisions show them as they are now.
        </span>
        <span className="frozen-acts">
          <button type="button" className="button" onClick={() => set("at", instantOf(ms - MINUTE_MS))}>1 m earlier</button>
          <button type="button" className="button" disabled={ms + MINUTE_MS > byServer(Date.now())} onClick={() => set("at", instantOf(ms + MINUTE_MS))}>1 m later</button>
          <CopyButton text={() => location.href} what="link" label="Copy link" />
          {live}
        </span>
      </div>
      {children({ iso, ms })}
    </>
  );
}

/** A value of that time, or why it is not there. `what`: named where no label stands beside it. */
export function Kept<T>({ of, what = "", children }: { of: Reading<T>; what?: string; children: (value: T) => ReactNode }): ReactElement {
  if (of.value !== undefined) return <>{children(of.value)}</>;
  const why = of.read ? "not kept for this time" : of.error ? "could not be read" : "being read";
  return <span className="missing">{[what, why].filter(Boolean).join(" ")}</span>;
}
