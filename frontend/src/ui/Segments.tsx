/* One of a few ways to show something, as buttons side by side. */
import type { ReactElement } from "react";

export function Segments<T extends string>({ label, options, value, onChange }: { label: string; options: readonly T[]; value: T; onChange: (value: T) => void }): ReactElement {
  return (
    <div className="segments" role="group" aria-label={label}>
      {options.map((item) => <button key={item} type="button" aria-pressed={value === item} onClick={() => onChange(item)}>{item}</button>)}
    </div>
  );
}

/** The two forms of a map: itself, and the same as a table. */
export const FORMS = ["map", "table"] as const;
