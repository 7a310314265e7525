/* What this reader has opened last, newest first: kept in this browser, under the name of the account, until it signs out. */
import { useQuery } from "@tanstack/react-query";
import { useEffect } from "react";
import * as queries from "../api/queries";

export const RECENT_LIMIT = 8;
const KEY = "holdfast.recent";
const KINDS = ["job", "node", "incident"] as const;
export type Kind = (typeof KINDS)[number];

export interface Recent {
  kind: Kind;
  id: string;
  name: string;
}

const isRecent = (value: unknown): value is Recent => {
  const item = value as Partial<Recent> | null;
  return typeof item === "object" && item !== null && KINDS.includes(item.kind as Kind) && typeof item.id === "string" && typeof item.name === "string";
};

/** Of another account, or what is no such list: none. */
export function recentOf(account: string): Recent[] {
  try {
    const kept = JSON.parse(localStorage.getItem(KEY) ?? "null") as { of?: unknown; items?: unknown } | null;
    return kept?.of === account && Array.isArray(kept.items) ? kept.items.filter(isRecent).slice(0, RECENT_LIMIT) : [];
  } catch {
    return [];
  }
}

export function keepRecent(account: string, item: Recent): void {
  const items = [item, ...recentOf(account).filter((other) => other.kind !== item.kind || other.id !== item.id)].slice(0, RECENT_LIMIT);
  try {
    localStorage.setItem(KEY, JSON.stringify({ of: account, items }));
  } catch {
    /* Storage is blocked or full: nothing is remembered. */
  }
}

export function forgetRecent(): void {
  try {
    localStorage.removeItem(KEY);
  } catch {
    /* Storage is blocked: nothing was kept. */
  }
}

/** This page is of that object. */
export function useOpened(kind: Kind, id: string, name: string): void {
  const account = useQuery(queries.me()).data?.username;
  useEffect(() => {
    if (account !== undefined) keepRecent(account, { kind, id, name });
  }, [account, kind, id, name]);
}
