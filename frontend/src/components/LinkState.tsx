/* Is what is on this page true right now? Always visible, with an honest "as of". */
import type { ReactElement } from "react";
import { useLocation } from "react-router";
import { useWallNow } from "../lib/clock";
import { duration } from "../lib/format";
import { useSetParam } from "../lib/params";
import { useSettings } from "../lib/settings";
import { clock } from "../lib/time";
import { useLive } from "../live/hooks";
import { type LinkState, live } from "../live/store";
import { Time } from "../ui/basics";
import { Icon } from "../ui/icons";
import type { Tone } from "../ui/states";
import { useFrozen } from "./Frozen";

const LOOK: Record<LinkState, { tone: Tone; word: string }> = {
  connecting: { tone: "info", word: "connecting" },
  live: { tone: "ok", word: "live" },
  reconnecting: { tone: "warn", word: "reconnecting" },
  stale: { tone: "bad", word: "stale" },
  paused: { tone: "special", word: "paused" },
};

function useAsOf(): string {
  const heard = useLive((state) => state.heardMs);
  const { time } = useSettings();
  const now = useWallNow();
  if (heard === null) return "no data yet";
  if (time === "relative") return `as of ${duration(Math.max(0, Math.round((now - heard) / 1000)))} ago`;
  return `as of ${clock(heard, time)}${time === "utc" ? "Z" : ""}`;
}

/** Pressing it freezes the page (and thaws it), so that a moving screen can be read. */
export function LinkIndicator(): ReactElement {
  const frozen = useFrozen();
  const { pathname } = useLocation();
  return frozen?.ms && /^\/(jobs|nodes)\/[^/]+$/.test(pathname) ? <FrozenIndicator iso={frozen.iso} /> : <LiveIndicator />;
}

function FrozenIndicator({ iso }: { iso: string }): ReactElement {
  const set = useSetParam();
  return (
    <button type="button" className="link-state tone-special" aria-pressed title="This page is frozen and shows one moment; press to go back to live" onClick={() => set("at", "")}>
      <span className="dot" aria-hidden /> <b>frozen</b> <span>at <Time at={iso} /></span>
    </button>
  );
}

function LiveIndicator(): ReactElement {
  const link = useLive((state) => state.link);
  const asOf = useAsOf();
  const { tone, word } = LOOK[link];
  const paused = link === "paused";
  return (
    <button
      type="button" className={`link-state tone-${tone}`} aria-pressed={paused}
      title={paused ? "This page is paused and shows one moment; press to continue" : "Press to pause this page"} onClick={() => live.setPaused(!paused)}
    >
      <span className={`dot ${link === "live" ? "dot-live" : ""}`} aria-hidden />
      <b>{word}</b> <span>{asOf}</span>
    </button>
  );
}

export function LinkBanner(): ReactElement | null {
  const link = useLive((state) => state.link);
  const asOf = useAsOf();
  if (link !== "reconnecting" && link !== "stale") return null;
  return (
    <div className="stale-banner" role="status">
      <Icon name="unplug" />
      <span>
        {link === "stale" ? "Nothing has been heard from the control plane" : "The link to the control plane is down; reconnecting"}: this page
        shows the world {asOf}. Training does not depend on it.
      </span>
    </div>
  );
}
