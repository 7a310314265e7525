/* A job of a project that the reader does not see has no page: what names it leads nowhere. */
import { cleanup, render, screen } from "@testing-library/react";
import { MemoryRouter } from "react-router";
import { afterEach, expect, it } from "vitest";
import type { Capacity } from "../api/types";
import { UNSEEN } from "../lib/projects";
import { Ends, Yields } from "./CapacityParts";

const hidden = { id: UNSEEN, name: "a private job", priority: 500, devices: 8, expected_end_at: null, leaves: true, lost_gpu_s: null, trains_on: false, to: null };
const own = { ...hidden, id: "job_1", name: "mine", to: { id: UNSEEN, name: "a private job", priority: 900, expected_end_at: null } };
const capacity = { yields: [hidden, hidden, own], yields_count: 3, ends: [hidden, hidden, own], ends_count: 3, ends_unknown: 0 } as unknown as Capacity;

afterEach(cleanup);

it.each([["yields", Yields], ["ends", Ends]])("links no job that is not seen: %s", (_name, Part) => {
  render(<MemoryRouter><Part capacity={capacity} /></MemoryRouter>);
  expect(screen.getAllByRole("link").map((link) => link.textContent)).toEqual(["mine"]);
  expect(screen.getAllByText(/a private job/).length).toBeGreaterThan(1);
});
