/* Theme and time mode: per browser, in local storage, readable without React. */
import { useSyncExternalStore } from "react";
import type { TimeMode } from "./time";

export type Theme = "system" | "light" | "dark";

interface Settings {
  theme: Theme;
  time: TimeMode;
}

const listeners = new Set<() => void>();
let current: Settings = { theme: stored("theme", ["system", "light", "dark"]), time: stored("time", ["local", "utc", "relative"]) };

function stored<T extends string>(name: string, allowed: readonly T[]): T {
  try {
    const value = localStorage.getItem(`holdfast.${name}`);
    return allowed.find((item) => item === value) ?? allowed[0]!;
  } catch {
    return allowed[0]!;
  }
}

export function getSettings(): Settings {
  return current;
}

export function setSetting<K extends keyof Settings>(name: K, value: Settings[K]): void {
  current = { ...current, [name]: value };
  try {
    localStorage.setItem(`holdfast.${name}`, value);
  } catch {
    /* Storage is blocked: the choice lasts until the tab is closed. */
  }
  if (name === "theme") applyTheme();
  for (const listener of listeners) listener();
}

export function applyTheme(): void {
  if (current.theme === "system") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = current.theme;
}

export function useSettings(): Settings {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => current,
  );
}

/** Charts draw on canvas and must hear about a change of colours. */
export function useDark(): boolean {
  const { theme } = useSettings();
  const system = useSyncExternalStore(
    (listener) => {
      const query = matchMedia("(prefers-color-scheme: dark)");
      query.addEventListener("change", listener);
      return () => query.removeEventListener("change", listener);
    },
    () => matchMedia("(prefers-color-scheme: dark)").matches,
  );
  return theme === "system" ? system : theme === "dark";
}
