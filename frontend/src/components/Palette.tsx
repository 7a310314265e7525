/* The command palette (E60): one field over jobs, nodes, incidents, pages and acts. What is chosen opens a page, or the same
   dialog that the object's own page opens. */
import { useQuery } from "@tanstack/react-query";
import { type KeyboardEvent, type ReactElement, useEffect, useId, useMemo, useRef, useState } from "react";
import { useLocation, useNavigate } from "react-router";
import { ApiProblem } from "../api/client";
import * as queries from "../api/queries";
import { type Asked, type Entry, type Group, offered } from "../lib/palette";
import { recentOf } from "../lib/recent";
import { setSetting } from "../lib/settings";
import { live } from "../live/store";
import { ANYWHERE, useWhyMayNot } from "../ui/ActButton";
import { Dialog } from "../ui/dialog";
import { Icon } from "../ui/icons";
import { AskedDialog } from "./AskedDialog";
import { useFound, useHere } from "./paletteFound";

interface Props {
  demo: boolean;
  onHelp: () => void;
  onFault: () => void;
  onClose: () => void;
}

export function Palette(props: Props): ReactElement {
  const [asked, setAsked] = useState<Asked | null>(null);
  return asked ? <AskedDialog asked={asked} onClose={props.onClose} /> : <Chooser {...props} onAsk={setAsked} />;
}

const PAGE_ROWS = 8;
const STEP: Record<string, number> = { ArrowDown: 1, ArrowUp: -1, PageDown: PAGE_ROWS, PageUp: -PAGE_ROWS };

function Chooser({ onAsk, ...props }: Props & { onAsk: (asked: Asked) => void }): ReactElement {
  const [text, setText] = useState("");
  const [activeKey, setActiveKey] = useState<string | null>(null);
  /* Enter was pressed before what was typed had been answered: it means what comes first then. */
  const [awaited, setAwaited] = useState(false);
  const navigate = useNavigate();
  const me = useQuery(queries.me()).data;
  const noFault = useWhyMayNot("/demo/faults", ANYWHERE);
  const here = useHere(useLocation().pathname);
  const search = useFound(text);
  const recent = useMemo(() => recentOf(me?.username ?? ""), [me]);
  const groups = offered({ text, me, here, recent, settings: settingsOf(props.onHelp), more: props.demo ? [faultOf(props.onFault, noFault)] : [], found: search.found });
  const entries = groups.flatMap((group) => group.entries);
  const at = Math.max(0, entries.findIndex((entry) => entry.key === activeKey));
  const type = (value: string): void => {
    setText(value);
    setActiveKey(null);
    setAwaited(false);
  };
  const choose = (entry: Entry | undefined): void => {
    if (!entry || entry.why) return;
    const { does } = entry;
    if ("fill" in does) return type(does.fill);
    if ("ask" in does) return onAsk(does.ask);
    props.onClose();
    if ("to" in does) void navigate(does.to);
    else does.run();
  };
  const unsettled = search.pending && activeKey === null && !isFixed(entries[0]);
  useEffect(() => {
    if (!awaited || unsettled) return;
    setAwaited(false);
    choose(entries[at]);
  });
  const onKey = (event: KeyboardEvent<HTMLInputElement>): void => {
    if (event.nativeEvent.isComposing) return;
    const step = STEP[event.key];
    if (event.key === "Enter" && unsettled) setAwaited(true);
    else if (event.key === "Enter") choose(entries[at]);
    else if (step !== undefined && entries.length > 0) setActiveKey(entries[moved(at, step, entries.length)]!.key);
    else return;
    event.preventDefault();
  };
  return (
    <Dialog title="Search and act" className="palette" onClose={props.onClose}>
      <Options text={text} groups={groups} active={entries[at]} pending={search.pending} onType={type} onKey={onKey} onChoose={choose} />
      {search.errors.map(({ kind, error }) => (
        <p key={kind} className="text-bad" role="alert">{kind === "job" ? "Jobs" : kind === "node" ? "Nodes" : "Incidents"} could not be searched: {error instanceof ApiProblem ? error.message : String(error)}</p>
      ))}
      <p className="palette-keys muted" aria-hidden><kbd>Up</kbd> <kbd>Down</kbd> choose, <kbd>Enter</kbd> opens, <kbd>Esc</kbd> closes</p>
    </Dialog>
  );
}

/** Whatever is found, a page that stands first stays first. */
const isFixed = (entry: Entry | undefined): boolean => entry !== undefined && entry.key.startsWith("place ");

/** Single steps go round; a page stops at the ends. */
function moved(at: number, step: number, length: number): number {
  return Math.abs(step) === 1 ? (at + step + length) % length : Math.min(length - 1, Math.max(0, at + step));
}

interface OptionsProps {
  text: string;
  groups: Group[];
  active: Entry | undefined;
  pending: boolean;
  onType: (text: string) => void;
  onKey: (event: KeyboardEvent<HTMLInputElement>) => void;
  onChoose: (entry: Entry) => void;
}

function Options({ text, groups, active, pending, onType, onKey, onChoose }: OptionsProps): ReactElement {
  const base = useId();
  const chosen = useRef<HTMLLIElement>(null);
  useEffect(() => {
    chosen.current?.scrollIntoView({ block: "nearest" });
  }, [active?.key]);
  const entries = groups.flatMap((group) => group.entries);
  const idOf = (entry: Entry): string => `${base}-${entries.indexOf(entry)}`;
  const total = entries.length;
  return (
    <>
      <input
        type="text" role="combobox" aria-label="Search jobs, nodes and incidents, or type an act" aria-expanded={total > 0} aria-controls={`${base}-list`} aria-autocomplete="list"
        aria-activedescendant={active ? idOf(active) : undefined} placeholder="A name, a page, or an act such as: drain gpu-07" maxLength={100} autoComplete="off" spellCheck={false}
        data-autofocus value={text} onChange={(event) => onType(event.target.value)} onKeyDown={onKey}
      />
      <div id={`${base}-list`} role="listbox" aria-label="What is found" className="palette-list" aria-busy={pending}>
        {groups.map((group) => (
          <ul key={group.label} role="group" aria-label={group.label}>
            <li role="presentation" className="palette-group">{group.label}</li>
            {group.entries.map((entry) => (
              <li
                key={entry.key} id={idOf(entry)} ref={entry === active ? chosen : undefined} role="option" aria-selected={entry === active} aria-disabled={entry.why ? true : undefined} className="palette-entry"
                onMouseDown={(event) => event.preventDefault()} onClick={() => onChoose(entry)}
              >
                <Icon name={entry.icon} size={14} /> <span className="palette-text">{entry.text}</span>{entry.why || entry.note ? <span className="muted">{entry.why || entry.note}</span> : null}
              </li>
            ))}
          </ul>
        ))}
      </div>
      <p role="status" className={total === 0 ? "palette-none muted" : "visually-hidden"}>
        {pending && total === 0 ? "Searching..." : total === 0 ? `Nothing is found for "${text.trim()}". Names of jobs, nodes and incidents are searched, and pages and acts.` : `${total} ${total === 1 ? "result" : "results"}`}
      </p>
    </>
  );
}

/** What is of this browser alone. */
function settingsOf(onHelp: () => void): Entry[] {
  const paused = live.paused;
  return [
    { key: "set pause", text: paused ? "Continue: the page is paused" : "Pause this page", icon: paused ? "play" : "pause", does: { run: () => live.setPaused(!paused) } },
    { key: "set light", text: "Light theme", icon: "sun", does: { run: () => setSetting("theme", "light") } },
    { key: "set dark", text: "Dark theme", icon: "moon", does: { run: () => setSetting("theme", "dark") } },
    { key: "set system", text: "System theme", icon: "screen", does: { run: () => setSetting("theme", "system") } },
    { key: "set local", text: "Times in this browser's zone", icon: "hourglass", does: { run: () => setSetting("time", "local") } },
    { key: "set utc", text: "Times in UTC", icon: "hourglass", does: { run: () => setSetting("time", "utc") } },
    { key: "set ago", text: "Times relative to now (ago)", icon: "hourglass", does: { run: () => setSetting("time", "relative") } },
    { key: "set keys", text: "Keyboard shortcuts", icon: "keyboard", does: { run: onHelp } },
  ];
}

const faultOf = (onFault: () => void, why: string): Entry => ({ key: "fault", text: "Inject a fault", why, icon: "bolt", does: { run: onFault } });
