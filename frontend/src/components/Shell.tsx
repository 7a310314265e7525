/* The frame around every page: navigation, live state, theme and time switches, shortcuts. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { lazy, type ReactElement, Suspense, useEffect, useState, useSyncExternalStore } from "react";
import { Link, Navigate, NavLink, Outlet, useLocation, useNavigate, useNavigation } from "react-router";
import { ApiProblem, post } from "../api/client";
import * as queries from "../api/queries";
import { retried } from "../lib/chunks";
import { isNewer, listenFresh } from "../lib/fresh";
import { useLive, useLiveInvalidation, useTopic } from "../live/hooks";
import { live } from "../live/store";
import { paths } from "../lib/paths";
import { PLACES } from "../lib/places";
import { forgetRecent } from "../lib/recent";
import { setSetting, type Theme, useSettings } from "../lib/settings";
import type { TimeMode } from "../lib/time";
import { ActButton, ANYWHERE } from "../ui/ActButton";
import { Problem, Skeleton } from "../ui/basics";
import { Icon, type IconName } from "../ui/icons";
import { LinkBanner, LinkIndicator } from "./LinkState";
import { KeysDialog, useShortcuts } from "./Shortcuts";
import { PasswordDialog } from "./PasswordForm";
import { SignInGate } from "./SignIn";

export const loadChaosSheet = () => import("./ChaosSheet").then((module) => ({ default: module.ChaosSheet }));
const ChaosSheet = lazy(() => retried(loadChaosSheet));
export const loadPalette = () => import("./Palette").then((module) => ({ default: module.Palette }));
const Palette = lazy(() => retried(loadPalette));

export function Shell(): ReactElement {
  const me = useQuery(queries.me());
  const location = useLocation();
  if (me.data) return <SignedIn demo={me.data.demo} username={me.data.username} />;
  if (me.error instanceof ApiProblem && (me.error.status === 401 || me.error.status === 403)) {
    const next = location.pathname + location.search;
    return <Navigate to={`${paths.login()}${next === "/" ? "" : `?next=${encodeURIComponent(next)}`}`} replace />;
  }
  if (me.error) return <main className="content"><Problem error={me.error} retry={() => void me.refetch()} /></main>;
  return <main className="content"><Skeleton lines={6} /></main>;
}

function SignedIn({ demo, username }: { demo: boolean; username: string }): ReactElement {
  const [chaos, setChaos] = useState(false);
  const [help, setHelp] = useState(false);
  const [palette, setPalette] = useState(false);
  useShortcuts(() => setHelp(true), setPalette);
  useLiveInvalidation();
  useTopic("overview");
  useEffect(() => {
    live.start();
    return () => live.stop();
  }, []);
  return (
    <div className="shell">
      <a className="skip" href="#content">Skip to content</a>
      <header className="topbar">
        <Link to={paths.overview()} className="brand"><span className="brand-mark"><Icon name="shield" size={14} /></span>Holdfast</Link>
        <MainNav />
        <div className="topbar-tools">
          <NewVersion />
          <button type="button" className="button" aria-label="Search and act" aria-haspopup="dialog" aria-keyshortcuts="Control+K Meta+K" title="Search jobs, nodes and incidents, or do something (Ctrl+K)" onClick={() => setPalette(true)}>
            <Icon name="search" size={13} /><span className="widest-word"> Search</span>
          </button>
          {demo ? (
            <ActButton does="/demo/faults" project={ANYWHERE} label="Inject a fault" hint="Inject a fault" onPress={() => setChaos(true)}><Icon name="bolt" size={13} /><span className="wide-word"> Inject a fault</span></ActButton>
          ) : null}
          <LinkIndicator />
          <Switches />
          <button type="button" className="icon-button known-key" aria-label="Keyboard shortcuts" title="Keyboard shortcuts (?)" onClick={() => setHelp(true)}>
            <Icon name="keyboard" size={16} />
          </button>
          <Account username={username} />
        </div>
      </header>
      <LinkBanner />
      <Opening />
      <main className="content" id="content" tabIndex={-1}>
        <Suspense fallback={<Skeleton lines={6} />}><Outlet /></Suspense>
      </main>
      <Foot />
      {chaos ? <Suspense fallback={null}><ChaosSheet onClose={() => setChaos(false)} /></Suspense> : null}
      {palette ? <Suspense fallback={null}><Palette demo={demo} onHelp={() => setHelp(true)} onFault={() => setChaos(true)} onClose={() => setPalette(false)} /></Suspense> : null}
      {help ? <KeysDialog onClose={() => setHelp(false)} /> : null}
      <SignInGate username={username} />
    </div>
  );
}

/** A part of the page is on its way: a click shows something also while the control plane is silent. */
function Opening(): ReactElement | null {
  const { state } = useNavigation();
  if (state === "idle") return null;
  return <div className="opening" role="status"><span>Opening the page; the control plane has not answered yet.</span></div>;
}

function NewVersion(): ReactElement | null {
  const newer = useSyncExternalStore(listenFresh, isNewer);
  if (!newer) return null;
  return (
    <button type="button" className="button primary" title="Holdfast was updated; this page is from the previous version" onClick={() => location.reload()}>
      <Icon name="cycle" size={13} /> New version: reload
    </button>
  );
}

function MainNav(): ReactElement {
  const open = useQuery(queries.overview()).data?.open_incidents ?? 0;
  return (
    <nav className="mainnav" aria-label="Main">
      {PLACES.map((item) => (
        <NavLink key={item.to} to={item.to} end={item.to === "/"}>
          <Icon name={item.icon} /> {item.text}
          {item.to === paths.incidents() && open > 0 ? <span className="nav-count" title={`${open} open`}>{open}</span> : null}
        </NavLink>
      ))}
    </nav>
  );
}

const TIMES: { mode: TimeMode; text: string; title: string }[] = [
  { mode: "local", text: "Local", title: "Times in this browser's zone" },
  { mode: "utc", text: "UTC", title: "Times in UTC" },
  { mode: "relative", text: "Ago", title: "Times relative to now" },
];
const THEMES: { theme: Theme; icon: IconName }[] = [
  { theme: "light", icon: "sun" },
  { theme: "dark", icon: "moon" },
  { theme: "system", icon: "screen" },
];

function Switches(): ReactElement {
  const settings = useSettings();
  return (
    <>
      <div className="segments" role="group" aria-label="Time zone">
        {TIMES.map(({ mode, text, title }) => (
          <button key={mode} type="button" title={title} aria-pressed={settings.time === mode} onClick={() => setSetting("time", mode)}>{text}</button>
        ))}
      </div>
      <div className="segments" role="group" aria-label="Theme">
        {THEMES.map(({ theme, icon }) => (
          <button key={theme} type="button" title={`${theme} theme`} aria-label={`${theme} theme`} aria-pressed={settings.theme === theme} onClick={() => setSetting("theme", theme)}>
            <Icon name={icon} size={13} />
          </button>
        ))}
      </div>
    </>
  );
}

function Account({ username }: { username: string }): ReactElement {
  const client = useQueryClient();
  const navigate = useNavigate();
  const [changing, setChanging] = useState(false);
  const leave = async (): Promise<void> => {
    await post("/logout", {}).catch(() => undefined);
    client.clear();
    forgetRecent();
    navigate(paths.login(), { replace: true });
  };
  const changed = (): void => {
    navigate(paths.login(), { replace: true, state: { passwordOf: username } });
    client.clear();
  };
  return (
    <>
      <button type="button" className="icon-button" aria-label="Change password" title="Change password" onClick={() => setChanging(true)}>
        <Icon name="key" size={16} />
      </button>
      <button type="button" className="button" onClick={() => void leave()} title={`Signed in as ${username}`}>
        <span className="username">{username}</span> <span className="muted">Sign out</span>
      </button>
      {changing ? <PasswordDialog username={username} onClose={() => setChanging(false)} onChanged={changed} /> : null}
    </>
  );
}

function Foot(): ReactElement {
  const { data } = useQuery(queries.version());
  const seq = useLive((state) => state.data.seq);
  return (
    <footer className="foot">
      <span>Holdfast {data?.version ?? ""}</span>
      {seq === null ? null : <span>event {seq}</span>}
      <span>Press <kbd>?</kbd> for shortcuts</span>
      <a href="/api/v1/openapi.json">API</a>
    </footer>
  );
}
