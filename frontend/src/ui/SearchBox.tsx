/* A search that lives in the address: what is typed is sent once the typing rests. */
import { type ReactElement, useEffect, useRef, useState } from "react";

const TYPING_MS = 250;

interface SearchBoxProps {
  value: string;
  label: string;
  placeholder: string;
  focus?: boolean;
  onChange: (value: string) => void;
}

export function SearchBox({ value, label, placeholder, focus, onChange }: SearchBoxProps): ReactElement {
  const [text, setText] = useState(value);
  const commit = useRef(onChange);
  commit.current = onChange;
  const known = useRef(value);
  useEffect(() => {
    /* The address changed by itself (back, a cleared filter): the field follows. */
    if (value !== known.current) setText(value);
    known.current = value;
  }, [value]);
  useEffect(() => {
    if (text === known.current) return undefined;
    const timer = setTimeout(() => {
      known.current = text;
      commit.current(text);
    }, TYPING_MS);
    return () => clearTimeout(timer);
  }, [text]);
  return <input type="search" placeholder={placeholder} aria-label={label} autoFocus={focus} value={text} onChange={(event) => setText(event.target.value)} />;
}
