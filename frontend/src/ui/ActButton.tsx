/* The button of an order. Whether it may be given is the server's word: what the object allows now (`capabilities`, from the table
   that refuses the order too), and what this account may do (`me`). Why not stands in its tooltip. */
import { useQuery } from "@tanstack/react-query";
import type { ReactElement, ReactNode } from "react";
import * as queries from "../api/queries";
import { type Scope, whyMayNot } from "../lib/rights";

export interface Able {
  capabilities: { [act: string]: string };
}

/** The server's reason against an act; "" where there is none. */
export function whyNot(object: Able, act: string): string {
  return object.capabilities?.[act] ?? "";
}

interface Props {
  /** What `act` is done to; not given: nothing about it can be against it. */
  of?: Able;
  act?: string;
  /** In which project, null: in the fleet; undefined: not known yet. */
  project: string | null | undefined;
  needs?: Scope;
  onPress: () => void;
  children: ReactNode;
  className?: string;
  label?: string;
  busy?: boolean;
}

export function ActButton({ of, act = "", project, needs = "operate", onPress, children, className = "", label, busy }: Props): ReactElement {
  /* As the frame of the page has read it: a button asks nothing. */
  const me = useQuery({ ...queries.me(), enabled: false }).data;
  const why = whyMayNot(me, needs, project) || (of ? whyNot(of, act) : "");
  return (
    <button type="button" className={`button ${className}`} onClick={onPress} disabled={why !== "" || busy} title={why || undefined} aria-label={label}>
      {children}
    </button>
  );
}
