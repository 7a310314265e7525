/* The end of a log, with its end in sight: the last lines say what went wrong. */
import { type ReactElement, useLayoutEffect, useRef } from "react";

export function LogText({ text, label }: { text: string; label: string }): ReactElement {
  const box = useRef<HTMLPreElement>(null);
  useLayoutEffect(() => {
    if (box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [text]);
  return <pre ref={box} className="code" role="region" aria-label={label} tabIndex={0}>{text}</pre>;
}
