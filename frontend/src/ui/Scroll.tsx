/* A table that may be wider than its place: a named, focusable region while it scrolls, so that
   the keyboard reaches what is hidden; a plain box while all of it is seen. */
import { type ReactElement, type ReactNode, useEffect, useRef, useState } from "react";

export function Scroll({ label, children, className = "" }: { label: string; children: ReactNode; className?: string }): ReactElement {
  const box = useRef<HTMLDivElement>(null);
  const [scrolls, setScrolls] = useState(false);
  useEffect(() => {
    const element = box.current;
    if (!element) return undefined;
    const measure = (): void => setScrolls(element.scrollWidth > element.clientWidth + 1 || element.scrollHeight > element.clientHeight + 1);
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    if (element.firstElementChild) observer.observe(element.firstElementChild);
    return () => observer.disconnect();
  }, []);
  const region = scrolls ? { role: "region", "aria-label": label, tabIndex: 0 } : {};
  return <div ref={box} className={`table-wrap ${className}`} {...region}>{children}</div>;
}
