import { describe, expect, it } from "vitest";
import { nodesOf, reservedText } from "./reservations";

const NOW = new Date("2026-03-01T12:00:00Z");

describe("a reservation in words", () => {
  it("says whether it has begun, and names no project that is not seen", () => {
    expect(reservedText({ project: "vision", who: "user:ada", starts_at: "2026-03-01T12:00:00Z" }, NOW)).toBe("Is reserved for project vision from");
    expect(reservedText({ project: "another project", who: "", starts_at: "2026-03-01T12:00:01Z" }, NOW)).toBe("Will be reserved for another project from");
  });
  it("counts the nodes that are not listed", () => {
    const node = { id: "node_1", name: "n1" };
    expect([nodesOf({ nodes: [node], node_count: 1 }), nodesOf({ nodes: [node], node_count: 4 })]).toEqual(["", " and 3 more"]);
  });
});
