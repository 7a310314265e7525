import { describe, expect, it } from "vitest";
import { fullness, lendsText, limitText, visibilityText } from "./projects";

describe("a quota", () => {
  it("is what is lent of: without one nothing is", () => {
    expect(lendsText({ quota_gpus: null, lend_limit_gpus: null })).toBe("none");
    expect(lendsText({ quota_gpus: 8, lend_limit_gpus: null })).toBe("no limit");
    expect(lendsText({ quota_gpus: 8, lend_limit_gpus: 2 })).toBe("2");
  });
  it("is as full as what is used of it, beyond it too", () => {
    expect(fullness({ quota_gpus: 8, in_use_gpus: 4 })).toBe(0.5);
    expect(fullness({ quota_gpus: 8, in_use_gpus: 12 })).toBe(1.5);
  });
  it("of 0 is full once something is used, and none is never full", () => {
    expect(fullness({ quota_gpus: 0, in_use_gpus: 0 })).toBe(0);
    expect(fullness({ quota_gpus: 0, in_use_gpus: 1 })).toBe(1);
    expect(fullness({ quota_gpus: null, in_use_gpus: 9 })).toBeNull();
  });
  it("of 0 is a limit, and null is none", () => {
    expect([limitText(0), limitText(16), limitText(null)]).toEqual(["0", "16", "no limit"]);
  });
});

describe("a visibility", () => {
  it("is told in words, an unknown one as it is", () => {
    expect(visibilityText("open")).toContain("what its scope says");
    expect(visibilityText("new")).toBe("new");
  });
});
