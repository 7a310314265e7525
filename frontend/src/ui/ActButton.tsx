/* The button of an order. Whether it may be given is the server's word (`capabilities` of the object, from the
   table that refuses the order too): no button has a rule of its own. Why not stands in its tooltip. */
import type { ReactElement, ReactNode } from "react";

export interface Able {
  capabilities: { [act: string]: string };
}

/** The server's reason against an act; "" where there is none. */
export function whyNot(object: Able, act: string): string {
  return object.capabilities?.[act] ?? "";
}

interface Props {
  of: Able;
  act: string;
  onPress: () => void;
  children: ReactNode;
  className?: string;
  label?: string;
  busy?: boolean;
}

export function ActButton({ of, act, onPress, children, className = "", label, busy }: Props): ReactElement {
  const why = whyNot(of, act);
  return (
    <button type="button" className={`button ${className}`} onClick={onPress} disabled={why !== "" || busy} title={why || undefined} aria-label={label}>
      {children}
    </button>
  );
}
