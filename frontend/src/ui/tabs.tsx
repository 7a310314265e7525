/* Tabs that are addresses: the chosen one is `?tab=`, arrow keys move between them. */
import { type KeyboardEvent, type ReactElement, type ReactNode, useId } from "react";
import { useSearchParams } from "react-router";
import { useSetParam } from "../lib/params";

export interface Tab {
  id: string;
  label: string;
  count?: number | null;
  body: () => ReactNode;
}

export function Tabs({ tabs, label }: { tabs: Tab[]; label: string }): ReactElement {
  const [params] = useSearchParams();
  const base = useId();
  const current = tabs.find((tab) => tab.id === params.get("tab")) ?? tabs[0]!;
  const setParam = useSetParam();
  const choose = (id: string): void => setParam("tab", id);
  const onKey = (event: KeyboardEvent): void => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (step === 0) return;
    event.preventDefault();
    const next = tabs[(tabs.indexOf(current) + step + tabs.length) % tabs.length]!;
    choose(next.id);
    document.getElementById(`${base}-${next.id}`)?.focus();
  };
  return (
    <div className="tabs">
      <div role="tablist" aria-label={label} className="tablist" onKeyDown={onKey}>
        {tabs.map((tab) => (
          <button
            key={tab.id} id={`${base}-${tab.id}`} role="tab" type="button" aria-selected={tab === current}
            aria-controls={`${base}-panel`} tabIndex={tab === current ? 0 : -1} onClick={() => choose(tab.id)}
          >
            {tab.label}
            {tab.count ? <span className="tab-count">{tab.count}</span> : null}
          </button>
        ))}
      </div>
      <div role="tabpanel" id={`${base}-panel`} aria-labelledby={`${base}-${current.id}`} className="tabpanel" tabIndex={0}>
        {current.body()}
      </div>
    </div>
  );
}
