/* The button of an order. Whether it may be given is the server's word: what the object allows now (`capabilities`, from the table
   that refuses the order too), and what this account may do (`me`), by the scope that the operation needs (`needs.gen`). One that
   may not be pressed stays where it is and can be reached: its reason is its description, and is shown when it is pressed. */
import { useQuery } from "@tanstack/react-query";
import { type ReactElement, type ReactNode, useId } from "react";
import * as queries from "../api/queries";
import { type Act, scopeOf, whyMayNot, whyNowhere, wordOf } from "../lib/rights";

export interface Able {
  capabilities: { [act: string]: string };
}

/** The server's reason against an act; "" where there is none. */
export function whyNot(object: Able, act: string): string {
  return object.capabilities?.[act] ?? "";
}

/** It is not about one thing yet: it may be done in the fleet or in any project. */
export const ANYWHERE = Symbol("anywhere");

interface Props {
  /** The operation that is ordered. */
  does: Act;
  /** What it is done to; not given: nothing about it can be against it. */
  of?: Able;
  /** In which project, null: in the fleet; undefined: not known yet. */
  project: string | null | undefined | typeof ANYWHERE;
  /** What else is against it; "" for nothing. */
  why?: string;
  onPress?: () => void;
  submits?: boolean;
  children: ReactNode;
  className?: string;
  label?: string;
  hint?: string;
  busy?: boolean;
}

/** Why this account may not do it; "" where it may. As the frame of the page has read the account: it asks nothing. */
export function useWhyMayNot(does: Act, project: Props["project"]): string {
  const me = useQuery({ ...queries.me(), enabled: false }).data;
  return project === ANYWHERE ? whyNowhere(me, scopeOf(does)) : whyMayNot(me, scopeOf(does), project);
}

export function ActButton({ does, of, project, onPress, children, className = "", label, hint, busy, ...props }: Props): ReactElement {
  const id = useId();
  const why = useWhyMayNot(does, project) || (of ? whyNot(of, wordOf(does)) : "") || (props.why ?? "");
  const off = why === "" ? {} : { "aria-disabled": true, "aria-describedby": id, "popoverTarget": id };
  return (
    <>
      <button
        type={props.submits && why === "" ? "submit" : "button"} className={`button ${className}`} onClick={why === "" ? onPress : undefined} disabled={busy}
        title={why || hint || undefined} aria-label={label} data-does={does} data-project={project === ANYWHERE ? "*" : project === undefined ? "?" : project ?? ""} {...off}
      >
        {children}
      </button>
      {why === "" ? null : <span id={id} popover="auto" className="why-not">{why}</span>}
    </>
  );
}
