import { describe, expect, it } from "vitest";
import { countsText, intentText, poolsText } from "./engine";

describe("what a scheduler gives, in words", () => {
  it("counts pilots by what they are good for", () => {
    expect(countsText({ in_use: 2, idle: 1, cold: 3, held: 0, other: 0 })).toBe("2 in use, 1 hot, 3 cold, 0 held");
    expect(countsText({ in_use: 0, idle: 0, cold: 0, held: 0, other: 1 })).toMatch(/1 others$/);
  });
  it("says whether all of a job's nodes come from there", () => {
    expect(poolsText({ nodes: 3, lent: 3, pools: ["9"] })).toBe("Its 3 nodes come from Slurm, by pilots of pool 9.");
    expect(poolsText({ nodes: 3, lent: 1, pools: ["9", "12"] })).toBe("1 of its 3 nodes comes from Slurm, by pilots of pools 9, 12.");
  });
  it("names what is asked for", () => {
    expect(intentText({ kind: "mark_bad", node_name: "n1", pool: "", size: null })).toBe("drain n1");
    expect(intentText({ kind: "resize", node_name: "", pool: "9", size: 4 })).toBe("4 pilots of pool 9 at a time");
  });
});
