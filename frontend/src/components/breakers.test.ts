import { expect, test } from "vitest";
import type { Breaker } from "../api/types";
import { held } from "./Breakers";

const breaker = (held_jobs: number, held_gpus: number): Breaker => ({
  id: "brk_1", code: "evict", segment: "", reason: "100 replicas were ended", opened_at: "2026-01-01T00:00:00Z", decision_id: "dec_1",
  closed_at: null, closed_by: "", close_reason: "", held_jobs, held_gpus, capabilities: { close: "" },
});

test("what waits for a breaker is said with its cost", () => {
  expect(held(breaker(0, 0))).toBe("Nothing has waited for it so far.");
  expect(held(breaker(1, 8))).toBe("1 job waits for it, with 8 devices now.");
  expect(held(breaker(3, 1))).toBe("3 jobs have waited for it, with 1 device now.");
});
