/* How much of the past is drawn, back from the end of it: `?range=` of the page's address. */
import type { ReactElement } from "react";
import { useSearchParams } from "react-router";
import { useSetParam } from "../lib/params";

const ALL = { id: "all", text: "all", s: null };
const RANGES: { id: string; text: string; s: number | null }[] = [{ id: "2m", text: "2 m", s: 120 }, { id: "10m", text: "10 m", s: 600 }, { id: "1h", text: "1 h", s: 3600 }, ALL];

/** Seconds; null: all of it. And the buttons that choose. */
export function useTimeRange(): { rangeS: number | null; control: ReactElement } {
  const [params] = useSearchParams();
  const set = useSetParam();
  const range = RANGES.find((item) => item.id === params.get("range")) ?? ALL;
  const control = (
    <div className="segments" role="group" aria-label="Time range">
      {RANGES.map((item) => <button key={item.id} type="button" aria-pressed={item === range} onClick={() => set("range", item.id)}>{item.text}</button>)}
    </div>
  );
  return { rangeS: range.s, control };
}
