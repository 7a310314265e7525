import { describe, expect, it } from "vitest";
import { endText, inHours, instant } from "./window";

const END = { id: "end_1", source: "window" as const, leaves_at: "2026-03-01T12:00:00Z", back_at: null, reason: "fans", who: "user:ada" };

describe("a maintenance window", () => {
  it("is proposed in local time and sent as the same moment with a zone", () => {
    const now = new Date("2026-03-01T12:34:56Z");
    expect(inHours(now, 1)).toMatch(/^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}$/);
    expect(instant(inHours(now, 1))).toBe("2026-03-01T13:34:00.000Z");
  });
  it("is not sent where the field holds no moment", () => {
    expect(instant("")).toBe("");
  });
  it("is told before it begins and while it lasts", () => {
    expect(endText(END, new Date("2026-03-01T11:59:59Z"))).toBe("Leaves");
    expect(endText(END, new Date("2026-03-01T12:00:00Z"))).toBe("Away since");
  });
});
