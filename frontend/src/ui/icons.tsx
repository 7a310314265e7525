/* Inline icons, 16 x 16, drawn in the text's colour. Shapes differ so that colour is never needed. */
import type { ReactElement } from "react";

const PATHS = {
  check: "M8 1.75a6.25 6.25 0 1 0 0 12.5 6.25 6.25 0 0 0 0-12.5ZM5.2 8.2l1.9 1.9 3.7-4",
  play: "M4.5 2.8v10.4l8.5-5.2-8.5-5.2Z",
  hourglass: "M4 1.75h8M4 14.25h8M4.75 2c0 3 2 4.2 3.25 6 1.25-1.8 3.25-3 3.25-6M4.75 14c0-3 2-4.2 3.25-6 1.25 1.8 3.25 3 3.25 6",
  pause: "M5.25 2.5v11M10.75 2.5v11",
  cross: "M5.4 1.75h5.2l3.65 3.65v5.2l-3.65 3.65H5.4L1.75 10.6V5.4L5.4 1.75ZM5.8 5.8l4.4 4.4M10.2 5.8l-4.4 4.4",
  alert: "M8 2 1.5 13.5h13L8 2ZM8 6.5v3.2M8 11.6v.1",
  dash: "M8 1.75a6.25 6.25 0 1 0 0 12.5 6.25 6.25 0 0 0 0-12.5ZM5 8h6",
  cycle: "M13.5 6A5.75 5.75 0 0 0 3 5.3M2.5 10A5.75 5.75 0 0 0 13 10.7M3 2.2v3.3h3.3M13 13.8v-3.3H9.7",
  down: "M8 1.75v8M4.75 6.75 8 10l3.25-3.25M2.5 13.75h11",
  ban: "M8 1.75a6.25 6.25 0 1 0 0 12.5 6.25 6.25 0 0 0 0-12.5ZM3.7 3.7l8.6 8.6",
  question: "M8 1.75a6.25 6.25 0 1 0 0 12.5 6.25 6.25 0 0 0 0-12.5ZM6.2 6.3c0-2.4 3.7-2.3 3.7-.1 0 1.5-1.9 1.5-1.9 3M8 11.4v.1",
  ring: "M8 3.25a4.75 4.75 0 1 0 0 9.5 4.75 4.75 0 0 0 0-9.5Z",
  disk: "M2.5 2.5h8.7l2.3 2.3v8.7h-11v-11ZM5 2.5v3.7h5V2.5M5 13.5V9.3h6v4.2",
  eye: "M1.5 8S4 3.5 8 3.5 14.5 8 14.5 8 12 12.5 8 12.5 1.5 8 1.5 8ZM8 6.2a1.8 1.8 0 1 0 0 3.6 1.8 1.8 0 0 0 0-3.6Z",
  unplug: "M5 1.75v3M11 1.75v3M3.5 4.75h9v3a4.5 4.5 0 0 1-3.2 4.3M8 12.25v2M2 2l12 12",
  wrench: "M10.2 2.2a3.6 3.6 0 0 0-3.4 4.9l-4.9 4.9 2.1 2.1 4.9-4.9a3.6 3.6 0 0 0 4.7-4.5l-2 2-2.1-.6-.6-2.1 2-2a3.6 3.6 0 0 0-.7.2Z",
  send: "M2 8h9.5M8 4.25 11.75 8 8 11.75M14 3v10",
  bolt: "M9 1.5 3 9h4.2L6.5 14.5 13 6.8H8.6L9 1.5Z",
  shield: "M8 1.5 2.75 3.5v4c0 3.4 2.2 5.8 5.25 7 3.05-1.2 5.25-3.6 5.25-7v-4L8 1.5Z",
  copy: "M5.5 5.5h8v8h-8v-8ZM10.5 5.5v-3h-8v8h3",
  search: "M7 2.25a4.75 4.75 0 1 0 0 9.5 4.75 4.75 0 0 0 0-9.5ZM10.5 10.5l3.5 3.5",
  sun: "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6ZM8 .9v1.8M8 13.3v1.8M.9 8h1.8M13.3 8h1.8M3 3l1.2 1.2M11.8 11.8 13 13M13 3l-1.2 1.2M4.2 11.8 3 13",
  moon: "M13.6 9.7A6 6 0 0 1 6.3 2.4a6 6 0 1 0 7.3 7.3Z",
  screen: "M1.75 2.75h12.5v8.5H1.75v-8.5ZM5.5 13.75h5M8 11.25v2.5",
  grid: "M2.25 2.25h4.5v4.5h-4.5v-4.5ZM9.25 2.25h4.5v4.5h-4.5v-4.5ZM2.25 9.25h4.5v4.5h-4.5v-4.5ZM9.25 9.25h4.5v4.5h-4.5v-4.5Z",
  list: "M5.5 3.5h8.5M5.5 8h8.5M5.5 12.5h8.5M2.2 3.5h.1M2.2 8h.1M2.2 12.5h.1",
  ledger: "M2 13.75h12M3.5 11.5v-6M6.5 11.5V2.5M9.5 11.5v-4M12.5 11.5v-7.5",
  server: "M2 2.25h12v4.75H2V2.25ZM2 9h12v4.75H2V9ZM4.5 4.6h.1M4.5 11.4h.1",
  close: "M3.5 3.5l9 9M12.5 3.5l-9 9",
  chevron: "M6 3.5 10.5 8 6 12.5",
  key: "M5.25 7a3.25 3.25 0 1 0 0 6.5 3.25 3.25 0 0 0 0-6.5ZM7.6 8 13.75 1.9M11 4.6l2.2 2.2M5.25 10.2h.1",
  keyboard: "M1.5 3.75h13v8.5h-13v-8.5ZM4 6.5h.1M6.6 6.5h.1M9.3 6.5h.1M11.9 6.5h.1M5 9.5h6",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, size = 14, title }: { name: IconName; size?: number; title?: string }): ReactElement {
  return (
    <svg
      className="icon" width={size} height={size} viewBox="0 0 16 16" fill="none" stroke="currentColor"
      strokeWidth="1.6" strokeLinecap="round" strokeLinejoin="round"
      aria-hidden={title ? undefined : true} role={title ? "img" : undefined} aria-label={title}
    >
      <path d={PATHS[name]} />
    </svg>
  );
}
