import { describe, expect, it } from "vitest";
import type { Shadow } from "../api/types";
import { mayBePromoted, priced, scored, standing } from "./shadow";

const SHADOW = {
  run: 3, role: "candidate", state: "running", live_number: 2, below: [], waiting: 1,
  score: { decisions: 20, days: 2, differing: 6, continued: 3, expected: 1, unpriced: 2, incidents: 2, live_gpu_s: 500, change_gpu_s: -40, error_gpu_s: 10 },
} as unknown as Shadow;

describe("a shadow", () => {
  it("says what it does, or how it ended", () => {
    expect(standing(SHADOW)).toBe("Shadow 3 decides beside version 2, since");
    expect(standing({ ...SHADOW, role: "watch" })).toBe("Shadow 3 watches version 2, since");
    expect(standing({ ...SHADOW, state: "fell_back" })).toBe("Shadow 3 is in force again, by itself. It began");
  });

  it("says how many differ and how they were priced", () => {
    expect(priced(SHADOW)).toBe("20 decisions compared, 6 differ: 3 continued in the simulator, 1 by their own prices, 2 without a price, 1 still to come.");
    const one = { ...SHADOW, score: { ...SHADOW.score, decisions: 1, differing: 1 } };
    expect(priced(one)).toContain("1 decision compared, 1 differs:");
  });

  it("says whose way would have cost what", () => {
    expect(scored(SHADOW)).toBe("Over 2 incidents that it answers otherwise, it would have wasted 40 GPU-s less (+/- 10 GPU-s); all that were compared cost 500 GPU-s.");
    const watch = { ...SHADOW, role: "watch", score: { ...SHADOW.score, change_gpu_s: 7 } };
    expect(scored(watch)).toContain("the policy before it would have wasted 7.0 GPU-s more");
  });

  it("may be promoted over its bar, while it runs", () => {
    expect(mayBePromoted(SHADOW)).toBe(true);
    expect(mayBePromoted({ ...SHADOW, below: ["too few"] })).toBe(false);
    expect(mayBePromoted({ ...SHADOW, role: "watch" })).toBe(false);
    expect(mayBePromoted({ ...SHADOW, state: "stopped" })).toBe(false);
  });
});
