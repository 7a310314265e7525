/* Keyboard: one table that both the handler and the help read. */
import { type ReactElement, useEffect, useRef } from "react";
import { useNavigate } from "react-router";
import { paths } from "../lib/paths";
import { Dialog } from "../ui/dialog";

const GO: { key: string; text: string; to: string }[] = [
  { key: "o", text: "Overview", to: paths.overview() },
  { key: "j", text: "Jobs", to: paths.jobs() },
  { key: "q", text: "Queue", to: paths.queue() },
  { key: "n", text: "Nodes", to: paths.nodes() },
  { key: "i", text: "Incidents", to: paths.incidents() },
  { key: "p", text: "Policies", to: paths.policies() },
  { key: "a", text: "Access", to: paths.access() },
];
const CHORD_MS = 1_200;

function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
}

/** `palette`: opens it, or closes it where it is open. */
export function useShortcuts(openHelp: () => void, palette: (change: (open: boolean) => boolean) => void): void {
  const navigate = useNavigate();
  const chordAt = useRef(0);
  useEffect(() => {
    const onKey = (event: KeyboardEvent): void => {
      if ((event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === "k") {
        /* The browser's own use of the key is its search of the web. A dialog that asks something stays. */
        event.preventDefault();
        if (!document.querySelector("dialog[open]:not(.palette)")) palette((open) => !open);
        return;
      }
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "Escape" && isTyping(event.target)) (event.target as HTMLElement).blur();
      if (isTyping(event.target) || document.querySelector("dialog[open]")) return;
      const chord = Date.now() - chordAt.current < CHORD_MS;
      chordAt.current = 0;
      const go = chord ? GO.find((item) => item.key === event.key) : undefined;
      if (go) return void navigate(go.to);
      if (event.key === "g") chordAt.current = Date.now();
      else if (event.key === "?") openHelp();
      else if (event.key === "/") {
        const search = document.querySelector<HTMLInputElement>("input[type=search]");
        if (search) search.focus();
        else void navigate(`${paths.jobs()}?focus=search`);
        event.preventDefault();
      }
    };
    document.addEventListener("keydown", onKey);
    return () => document.removeEventListener("keydown", onKey);
  }, [navigate, openHelp, palette]);
}

export function KeysDialog({ onClose }: { onClose: () => void }): ReactElement {
  return (
    <Dialog title="Keyboard shortcuts" onClose={onClose}>
      <dl className="keys">
        {GO.map((item) => (
          <div key={item.key} style={{ display: "contents" }}>
            <dt><kbd>g</kbd> <kbd>{item.key}</kbd></dt>
            <dd>{item.text}</dd>
          </div>
        ))}
        <dt><kbd>Ctrl</kbd> <kbd>K</kbd></dt><dd>Search jobs, nodes and incidents, or do something</dd>
        <dt><kbd>/</kbd></dt><dd>Search this list, or the jobs</dd>
        <dt><kbd>Left</kbd> <kbd>Right</kbd></dt><dd>Between tabs, and between cells of the device map</dd>
        <dt><kbd>Esc</kbd></dt><dd>Close, or leave a field</dd>
        <dt><kbd>?</kbd></dt><dd>This help</dd>
      </dl>
    </Dialog>
  );
}
